"""The docs say what is so: Python snippets run, links lead somewhere, pages made by commands are up to date."""

import doctest
import re
import runpy
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from typer import cli as typer_cli
from typer.testing import CliRunner

import multidraft as md
from multidraft.cli import run_report
from multidraft.decoding.metrics import Info
from multidraft.generation import DEFAULT_TREE
from multidraft.verification import registry
from multidraft.zoo import FOLDER, load_pair
from multidraft.zoo.smollm2 import INSTALL

ROOT, PACKAGE = Path(__file__).parents[1], FOLDER.parent
FOLDERS = ("", "docs/", "results/", "examples/**/", "benchmarks/")
PAGES = [page for folder in FOLDERS for page in ROOT.glob(f"{folder}*.md")]
FENCE = re.compile(
    r"(?:<!-- snippet: (?P<how>.*?) -->\n)?```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<out>.*?)```)?", re.S
)
ROOMS = ["docs", "results", "tests", "benchmarks", "examples", "theory", "multidraft"]
ROOMS += [folder.name for folder in PACKAGE.iterdir() if folder.is_dir()]
NAMED = re.compile(rf"(?<![\w/.-])(?:{'|'.join(ROOMS)})/[\w/]+\.(?:py|md|jsonl|svg|png)\b")
EMBEDDED = "embedded pair on the CPU"  # in place of models from the hub on a GPU, so that the lines really run
FILES = "embedded pair as GGUF files"  # where llama.cpp is installed
PLACES = {
    "Qwen/Qwen3-8B": str(FOLDER / "target"),
    "Qwen/Qwen3-0.6B": str(FOLDER / "draft"),
    "cuda:0": "cpu",
    "cuda": "cpu",
    "<this folder, or a hub repository made of it>": str(ROOT / "examples" / "hub"),
}


class Snippet(NamedTuple):
    """A block of Python in a page: its code, what it is said to print, and what it needs."""

    code: str
    printed: str | None
    how: str | None


def snippets() -> list[Any]:
    """All of them, with a name for messages."""
    return [
        pytest.param(Snippet(match["code"], match["out"], match["how"]), id=f"{page.relative_to(ROOT)}-{number}")
        for number, (page, match) in enumerate(
            (page, match) for page in PAGES for match in FENCE.finditer(page.read_text())
        )
    ]


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the pages take for granted."""
    target, draft, tokenizer = load_pair()
    inputs = tokenizer(["It was a dark"], return_tensors="pt")
    return dict(md=md, target=target, model=target, draft=draft, tokenizer=tokenizer, inputs=inputs)


@pytest.fixture
def own_schemes() -> Iterator[None]:
    """What a snippet registers is forgotten."""
    before = dict(registry.SCHEMES)
    yield
    for name in registry.SCHEMES.keys() - before:
        del registry.SCHEMES[name]


@pytest.mark.filterwarnings("ignore")  # transformers speaks of padding and of code that it trusts
@pytest.mark.parametrize("snippet", snippets())
def test_snippets_run(snippet, names, own_schemes):
    torch.manual_seed(0)
    assert snippet.how in (None, EMBEDDED, FILES)
    if snippet.code.startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(snippet.code, {}, "snippet", None, 0)
        assert doctest.DocTestRunner().run(test).failed == 0
        return
    code, known = snippet.code, {}
    if snippet.how == EMBEDDED:
        known = dict(names)
        for theirs, ours in PLACES.items():
            code = code.replace(f'"{theirs}"', f'"{ours}"')
    if snippet.how == FILES:
        pytest.importorskip("ik_llama_cpp")
        from ggufs import pair_files

        for name, path in zip(("model.gguf", "draft.gguf"), pair_files(), strict=True):
            code = code.replace(name, str(path))
    with redirect_stdout(StringIO()) as printed:
        exec(code, known)
    assert snippet.printed in (None, printed.getvalue())


def test_reports_have_the_names_that_the_pages_say():
    """The table of docs/metrics.md has all, and no other; what pages call `info.name` is there."""
    table = (ROOT / "docs" / "metrics.md").read_text().split("## Traces")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == Info().as_dict().keys()
    named = {(page, name) for page in PAGES for name in re.findall(r"`info\.(\w+)", page.read_text())}
    assert len(named) > 3
    assert [(str(page), name) for page, name in named if name not in dir(Info())] == []


def test_the_demo_compares_enough_for_a_verdict():
    """Its prompts are there, and its steps suffice if one gives up to 2.4 tokens, more than SmolLM2's do."""
    makefile = (ROOT / "Makefile").read_text()
    limit, tokens = re.search(r"--compare --limit (\d+) --max-new-tokens (\d+)", makefile).groups()
    compared = re.search(r"^CHATS = (.*)$", makefile, re.M)[1]
    assert "--engine" not in compared, "its numbers are those of the engine that a plain command takes"
    assert int(limit) >= run_report.MIN_PROMPTS
    assert int(limit) * int(tokens) >= 2.4 * run_report.MIN_STEPS
    for name in ("demo_chats.jsonl", "demo_prompts.jsonl"):
        assert len((FOLDER / "prompts" / name).read_text().splitlines()) >= int(limit)


def test_the_page_on_rules_shows_the_example_as_it_is():
    example = (ROOT / "examples" / "own_rule.py").read_text()
    assert f"```python\n{example}```\n" in (ROOT / "docs" / "extending.md").read_text()


@pytest.mark.filterwarnings("ignore")
def test_the_quickstart_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "quickstart.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "tokens a pass" in printed
    target, law = (eval(line) for line in re.findall(r"\[.*?\]", printed.splitlines()[-1]))
    assert law == pytest.approx(target, abs=1e-12)


def test_extras_that_are_named_exist():
    """In pages and in the files that install; the container has what serves SmolLM2 and GGUF files."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    container = (ROOT / "examples" / "Dockerfile").read_text()
    texts = [page.read_text() for page in PAGES if page.name != "CHANGELOG.md"]
    named = [
        set(names.split(",")) for text in [*texts, container] for names in re.findall(r"(?:\.|whl)\[([\w,-]+)\]'", text)
    ]
    assert len(named) > 9
    assert set().union(*named) <= extras
    assert {"smollm2", "gguf", "serve"} <= named[-1]
    assert INSTALL.removeprefix("pip install ") in container


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("folder", [".", "docs", "multidraft", "benchmarks", "examples"])
def test_files_that_are_named_are_there(folder):
    """Pages and code name files from the root of the repository, pages also from the package."""
    texts = [path for path in (ROOT / folder).glob("*" if folder == "." else "**/*") if path.suffix in (".md", ".py")]
    named = [(path.name, name) for path in texts for name in NAMED.findall(path.read_text())]
    assert [pair for pair in named if not any((place / pair[1]).exists() for place in (ROOT, PACKAGE))] == []


def test_the_page_of_the_command_line_is_its_help():
    command = ["multidraft.cli.main", "utils", "docs", "--name", "multidraft", "--title", "The command line"]
    result = CliRunner().invoke(typer_cli.app, command)
    assert result.exit_code == 0, result.output
    assert (ROOT / "docs" / "cli.md").read_text().strip() == result.stdout.strip(), "run `make docs`"


def test_the_pages_name_the_default_and_readme_is_short():
    assert f"default is `{DEFAULT_TREE}`" in (ROOT / "docs" / "choosing.md").read_text()
    assert len(re.findall(r"\S*\w\S*", (ROOT / "README.md").read_text())) <= 600


def test_the_home_page_has_the_readmes_table_picture_and_install_lines():
    readme, home = ((ROOT / page).read_text() for page in ("README.md", "docs/index.md"))
    table = re.findall(r"^\|.*\|$", readme, re.M)
    install = re.search(r"```console\n\$ pip install.*?```", readme, re.S)
    picture = re.search(r"^!\[.*$", readme, re.M)
    assert table
    assert install
    assert picture
    for part in ("\n".join(table), install[0], picture[0].replace("docs/", "")):
        assert part in home


@pytest.mark.slow  # 2 s; `make check` builds the site too
def test_the_site_has_all_that_pages_link_to_and_loads_nothing_from_elsewhere(tmp_path, caplog):
    """`mkdocs build --strict`; with the theme's way to colour code, which it loads from another host, it fails."""
    config = pytest.importorskip("mkdocs.config")
    from mkdocs.commands.build import build
    from mkdocs.exceptions import Abort

    def site(**settings: Any) -> Path:
        build(config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True, **settings))
        return tmp_path

    assert "smollm2" in (site() / "results" / "index.html").read_text()
    with pytest.raises(Abort):
        site(theme={"name": "readthedocs", "highlightjs": True})
    assert "loads from elsewhere" in caplog.text


FIRST_IMPORT = re.compile(r"^(?:>>> )?(?:import|from) (multidraft|torch|transformers)\b", re.M)


@pytest.mark.parametrize("snippet", snippets())
def test_snippets_import_multidraft_before_torch(snippet):
    """Else idle threads spin for milliseconds, which is ten times as slow on a busy machine."""
    imported = FIRST_IMPORT.findall(snippet.code)
    assert "multidraft" not in imported or imported[0] == "multidraft"
