"""Hooks of mkdocs: linked files outside of docs/ are part of the site, and the site loads nothing from elsewhere."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:|[#/])[^)#\s]+")
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=[\"']?(?:https?:)?//[^\"'\s>]+"
    r"|<link\b[^>]*?\bhref=[\"']?(?:https?:)?//[^\"'\s>]+"
    r"|url\([\"']?(?:https?:)?//[^)]+|@import\s+[\"'](?:https?:)?//[^\"']+"
)


def site_path(file: File, link: str) -> str:
    """Where in the site a link of a page leads: what is in docs/ stands at the top, all else as in the repository."""
    folder = Path(file.abs_src_path or "").parent.relative_to(ROOT).as_posix()
    return posixpath.normpath(posixpath.join(folder, link)).removeprefix("docs/")


def linked_files(page: File, files: Files, config: Any) -> Iterator[File]:
    """Files of the repository that a page links to, and that are not part of the site yet."""
    for link in LINK.findall(page.content_string):
        path = site_path(page, link)
        if files.get_file_from_path(path) is None and (ROOT / path).is_file():
            yield File.generated(config, path, abs_src_path=str(ROOT / path))


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to, and what those pages link to."""
    pending = list(files.documentation_pages())
    while pending:
        for file in linked_files(pending.pop(), files, config):
            files.append(file)
            pending += [file] * file.is_documentation_page()
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links lead to places of the site."""
    folder = posixpath.dirname(page.file.src_uri) or "."
    return LINK.sub(lambda match: posixpath.relpath(site_path(page.file, match[0]), folder), markdown)


def on_post_build(config: Any) -> None:
    """Raise where a page or a style sheet loads something from another host."""
    site = Path(config["site_dir"])
    texts = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    loads = [(path, match) for path in texts for match in LOADED.findall(path.read_text(encoding="utf-8"))]
    if loads:
        lines = "\n".join(f"{path.relative_to(site)}: {match[:120]}" for path, match in loads[:20])
        raise PluginError(f"the site loads from elsewhere:\n{lines}")
