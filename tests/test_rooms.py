"""The plan of the house, beyond what `lint-imports` holds: a small root, few floors, no name that hides a file."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import multidraft as md

PACKAGE = Path(md.__file__).parent
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
CONTRACTS = {  # by type; of layers those of rooms, which come first
    contract["type"]: contract for contract in reversed(PROJECT["tool"]["importlinter"]["contracts"])
}


def entries(folder: Path) -> set[str]:
    """What lies in a folder of the package, by name, without caches."""
    return {entry.stem for entry in folder.iterdir() if entry.name != "__pycache__"}


def exported(init: Path) -> Iterator[str]:
    """Names that a package's `__init__` defines or takes out of a file, whatever that file is called."""
    for node in ast.parse(init.read_text()).body:
        match node:
            case ast.ImportFrom(module=module) if module and module.startswith("multidraft."):
                package = ".".join(("multidraft", *init.parent.relative_to(PACKAGE).parts))
                yield from (alias.asname or alias.name for alias in node.names if module != package)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def test_the_house_has_few_rooms_and_its_contracts_no_exceptions():
    floors = CONTRACTS["layers"]["layers"]
    assert len(entries(PACKAGE)) <= 20
    assert len(floors) <= 13
    assert floors[:2] == ["__main__", "cli"]
    assert {"layers", "acyclic_siblings"} <= set(CONTRACTS)
    assert CONTRACTS["layers"]["exhaustive"]
    assert not PROJECT["tool"]["importlinter"]["exclude_type_checking_imports"]
    assert [c for c in PROJECT["tool"]["importlinter"]["contracts"] if "ignore" in " ".join(c)] == []


def test_no_exported_name_hides_a_file():
    hidden = {init: set(exported(init)) & entries(init.parent) for init in PACKAGE.rglob("__init__.py")}
    hidden[PACKAGE / "__init__.py"] |= set(md.__all__) & entries(PACKAGE)
    assert {str(init.relative_to(PACKAGE)): names for init, names in hidden.items() if names} == {}


def test_the_package_names_its_licenses_and_versions_of_python():
    project, root = PROJECT["project"], PACKAGE.parent
    licenses = {path for pattern in project["license-files"] for path in root.glob(pattern)}
    assert licenses == {root / "LICENSE", *PACKAGE.rglob("NOTICE.md")}
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_only_where_models_come_in_and_their_readers_know_hugging_face_models():
    naming = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if "PreTrainedModel" in path.read_text()}
    assert {path for path in naming if path.parts[:2] != ("models", "huggingface")} == {Path("models/user_models.py")}


def test_what_there_is_can_be_listed():
    """An editor, or a shell, completes names by it."""
    assert set(dir(md)) == {*md.__all__, "__version__"}
