"""The command that a missing package's error gives: from a checkout and from an installed copy."""

import sys
from pathlib import Path

import pytest

from multidraft import errors

REQUIRES = [
    "torch<2.14,>=2.6",
    'fastapi>=0.165; extra == "serve"',
    'uvloop>=0.21; sys_platform == "nowhere" and extra == "serve"',
    'ray[serve]<3,>=2.60; extra == "serve"',
    'matplotlib>=3.8; extra == "plot"',
]


@pytest.fixture
def installed_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This copy is no checkout, and its metadata lists `REQUIRES`."""
    metadata = tmp_path / "multidraft-0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: multidraft", *(f"Requires-Dist: {line}" for line in REQUIRES)]
    metadata.write_text("\n".join(lines))
    monkeypatch.setattr(errors, "CHECKOUT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_checkout_installs_its_own_extra_in_its_folder() -> None:
    folder = Path(errors.__file__).parents[1]
    assert errors.install_command("serve") == f"in {folder}: pip install -c constraints.txt -e '.[serve]'"


@pytest.mark.usefixtures("installed_copy")
def test_an_installed_copy_names_the_requirements_themselves() -> None:
    """Only those of the extra that this system needs; never the name of this project, which no index has."""
    assert errors.install_command("serve") == 'pip install "fastapi>=0.165" "ray[serve]<3,>=2.60"'


@pytest.mark.usefixtures("installed_copy")
def test_without_metadata_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none")])
    with pytest.raises(errors.MissingExtra, match=r"this needs Nothing; run pip install with what .* lists for serve"):
        errors.optional("no.such", "Nothing", "serve")
