"""Words of the package: a function is named by what it does or gives; the name of a type or a file means one thing."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import multidraft as md

PACKAGE = Path(md.__file__).parent
CORE = [*PACKAGE.rglob("*.py")]
CODE = [*CORE, *(PACKAGE.parent / "research" / "multidraft_research").rglob("*.py")]
PARTICIPLES = "begun built chosen done drawn found given grown held kept known learnt left lost made met".split()
PARTICIPLES += "seen sent shown sold spelt taken told understood unknown unseen written".split()
PARTICLES = set("already apart alone by from not once together under up where with".split())
VERBS = {"embed", "speed"}
FIXED = {"biased", "deferred"}  # what `md.audit` returns says it; a walk, by the name that users give
SHARED = {"generate.py"}  # the function, and the command that calls it


def is_participle(name: str) -> bool:
    words = set(name.strip("_").split("_")) - PARTICLES
    return bool(words) and all(word in PARTICIPLES or (word.endswith("ed") and word not in VERBS) for word in words)


def types(file: ast.Module) -> Iterator[str]:
    """Classes and module-level aliases; not what a call makes, such as a TypeVar."""
    for node in file.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign([ast.Name(name)], ast.Subscript() | ast.BinOp() | ast.Name()) if not name.isupper():
                yield from [name] if name[0].isupper() else []


def test_a_function_is_not_named_by_a_participle_alone():
    assert is_participle("told_apart")
    assert not is_participle("drafted_tokens")
    nodes = [node for path in CODE for node in ast.walk(ast.parse(path.read_text()))]
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert set(filter(is_participle, names)) == FIXED


def test_a_type_and_a_file_of_the_core_have_names_of_their_own():
    names = Counter(name for path in CODE for name in types(ast.parse(path.read_text())))
    names += Counter(path.name for path in CORE if not path.stem.startswith("__"))
    assert {name for name, count in names.items() if count > 1} == SHARED
