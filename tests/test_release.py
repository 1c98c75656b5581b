"""The wheel's description leads to the project's public address, and a wheel whose description does not is refused."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

import multidraft as md

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / ".ci" / "release.py"))
WHEEL = runpy.run_path(str(ROOT / ".ci" / "wheel.py"))
ADDRESS, TAG = "https://example.invalid/owner/multidraft", f"v{md.__version__}"
BLOB, RAW = f"{ADDRESS}/blob/{TAG}", f"{ADDRESS}/raw/{TAG}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/step.md)", f"[a]({BLOB}/docs/step.md)"),
        ("[a](./docs/step.md#the-walk)", f"[a]({BLOB}/docs/step.md#the-walk)"),
        ("[Apache-2.0](LICENSE)", f"[Apache-2.0]({BLOB}/LICENSE)"),
        ('[a](CHANGELOG.md "what changed")', f'[a]({BLOB}/CHANGELOG.md "what changed")'),
        ("![speed](docs/speed.svg)", f"![speed]({RAW}/docs/speed.svg)"),
        ("[![speed](docs/speed.png)](results/a.md)", f"[![speed]({RAW}/docs/speed.png)]({BLOB}/results/a.md)"),
        ("[`audit`](docs/audit.md)", f"[`audit`]({BLOB}/docs/audit.md)"),
        *[(text, text) for text in ("[a](#install)", "[a](https://host/x.md)", "[a](mailto:x@host)")],
        *[(text, text) for text in ("`rows[0](page)`", "```python\nrows[0](page)\n```\n")],
    ],
)
def test_links_lead_to_the_tag(text, expected):
    assert RELEASE["with_absolute_links"](text, ADDRESS, TAG) == expected


def test_the_copy_has_the_address_and_the_checkout_has_not(tmp_path, monkeypatch):
    monkeypatch.setattr(RELEASE["shutil"], "copytree", lambda source, folder, ignore: folder.mkdir(parents=True))
    RELEASE["main"](f"{ADDRESS}.git/", tmp_path)
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert set(urls) == WHEEL["ADDRESSES"]
    links = re.findall(rf"{re.escape(ADDRESS)}/(?:blob|raw)/{TAG}/([^)\s]+)", (tmp_path / "README.md").read_text())
    links += [url.removeprefix(f"{BLOB}/") for url in urls.values() if url.startswith(BLOB)]
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).is_file()] == []
    assert not any(ADDRESS in (ROOT / name).read_text() for name in ("README.md", "pyproject.toml"))


@pytest.mark.parametrize(
    "address", ["", "https://host.example", "http://host.example/owner/x", "https://HOST/OWNER/multidraft"]
)
def test_without_an_address_nothing_is_made(tmp_path, address):
    with pytest.raises(SystemExit, match="make release ADDRESS=https://HOST/OWNER/multidraft"):
        RELEASE["main"](address, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_citation_has_version_date_and_authors_from_where_they_are_kept():
    lines = dict(re.findall(r'^(version|date-released): "?([^"\n]+)"?$', (ROOT / "CITATION.cff").read_text(), re.M))
    released = re.search(rf"^## {re.escape(md.__version__)}, (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released
    assert lines == {"version": md.__version__, "date-released": released[1]}
    authors = [author["name"] for author in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["authors"]]
    assert re.findall(r"^  - name: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M) == authors


def test_what_a_wheel_leaves_behind_is_no_part_of_the_checkout():
    """`pip wheel .` writes build/ and egg-info: git and ruff, which reads .gitignore, pass over them."""
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"build/", "/dist/", "*.egg-info/"} <= set(ignored)


def metadata(description: str, names: set[str] = WHEEL["ADDRESSES"]) -> bytes:
    """What a wheel's METADATA has of addresses and of a description."""
    lines = [f"Project-URL: {name}, {ADDRESS}" for name in sorted(names)]
    return "\n".join(["Metadata-Version: 2.4", *lines, "", description]).encode()


def test_a_description_with_absolute_links_is_accepted():
    readme = RELEASE["with_absolute_links"]((ROOT / "README.md").read_text(), ADDRESS, TAG)
    assert WHEEL["metadata_faults"](metadata(readme)) == []


@pytest.mark.parametrize(
    "description", ["[a](docs/a.md)", "![a](a.svg)", '<img src="a.png">', "[a][b]\n\n[b]: docs/a.md", "[a](<a b.md>)"]
)
def test_a_description_with_a_relative_link_is_refused(description):
    (fault,) = WHEEL["metadata_faults"](metadata(description))
    assert fault.startswith("a relative link: ")


def test_metadata_without_an_address_are_refused():
    assert WHEEL["metadata_faults"](metadata("", WHEEL["ADDRESSES"] - {"Issues"})) == ["no Project-URL Issues"]
