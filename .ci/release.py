"""Copy what the wheel is built from, with links that lead to the project's public address.

    python .ci/release.py https://HOST/OWNER/multidraft FOLDER

README.md is the wheel's description, and on a package index its relative links would lead nowhere. In the copy they
lead to the files of the version's tag, by addresses that GitHub and GitLab have. The checkout stays as it is.
The judge, a package of its own, comes into FOLDER/judge.
"""

import re
import shutil
import sys
from pathlib import Path
from urllib.parse import urljoin

ROOT = Path(__file__).parents[1]
CODE_OR_TARGET = re.compile(r"```.*?```|`[^`\n]+`|(?<=\]\()[^)\s<]+", re.S)
PICTURES = (".svg", ".png", ".jpg", ".gif")


def with_absolute_links(page: str, address: str, tag: str) -> str:
    """A page whose relative links lead to files of a tag, pictures to the raw files; anchors of the page stay."""

    def absolute(match: re.Match[str]) -> str:
        target = match[0]
        kind = "raw" if target.endswith(PICTURES) else "blob"
        return target if target[0] in "`#" else urljoin(f"{address}/{kind}/{tag}/", target)

    return CODE_OR_TARGET.sub(absolute, page)


def project_urls(address: str, tag: str) -> str:
    """The table of pyproject.toml that becomes the wheel's Project-URL."""
    files = f"{address}/blob/{tag}"
    return f"""
[project.urls]
Source = "{address}"
Documentation = "{files}/docs/index.md"
Changelog = "{files}/CHANGELOG.md"
Issues = "{address}/issues"
"""


def main(address: str, folder: Path) -> None:
    """Write the copy, or end with what to pass."""
    address = address.removesuffix("/").removesuffix(".git")
    if not re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/[\w.~-]+)+", address):
        sys.exit(f"not a public address: '{address}'; pass make release ADDRESS=https://HOST/OWNER/multidraft")
    (version,) = re.findall(r'^__version__ = "(.+)"$', (ROOT / "multidraft" / "__init__.py").read_text(), re.M)
    tag = f"v{version}"
    for part in ("multidraft", "research"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "LICENSE", folder)
    shutil.copytree(
        ROOT / "judge", folder / "judge", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "tests")
    )
    for part in (".", "judge"):
        readme, project = (ROOT / part / name for name in ("README.md", "pyproject.toml"))
        (folder / part / "README.md").write_text(
            with_absolute_links(readme.read_text(encoding="utf-8"), address, tag), encoding="utf-8"
        )
        (folder / part / "pyproject.toml").write_text(
            project.read_text(encoding="utf-8") + project_urls(address, tag), encoding="utf-8"
        )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
