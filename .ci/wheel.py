"""Print what the wheels in a folder hold, and end with 1 where something is wrong.

It may be too large, lack a file that users need or an address, or have a description with a relative link, which leads
nowhere on a package index.
"""

import re
import sys
from collections import Counter
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

MAX_MEGABYTES = {"multidraft": 30, "multidraft_judge": 0.2}  # by distribution
NEEDED = {
    "multidraft/zoo/smollm2_eagle3/model.safetensors",
    "multidraft/zoo/smollm2_draft/draft.gguf",
    "multidraft/zoo/plans/copy_eagle3_smollm2_transformers.json",
    "multidraft/zoo/prompts/kinds.jsonl",
    "multidraft/server/page.html",
    "multidraft/py.typed",
    "multidraft_judge/prompts.jsonl",
    "multidraft_judge/py.typed",
}
ADDRESSES = {"Source", "Documentation", "Changelog", "Issues"}
RELATIVE_LINK = re.compile(r"""(?:\]\(|^\[[^\]\n]+\]:\s+|\b(?:src|href)=["']?)(?!https://|mailto:|#)[^)\s]*""", re.M)


def metadata_faults(metadata: bytes) -> list[str]:
    """Addresses that the metadata lack, and links of the description that lead nowhere on an index."""
    message = message_from_bytes(metadata)
    named = {line.partition(",")[0] for line in message.get_all("Project-URL", [])}
    text = message.get_payload(decode=True).decode()
    links = RELATIVE_LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    faults = [f"no Project-URL {name}" for name in sorted(ADDRESSES - named)]
    return faults + [f"a relative link: {link}" for link in links]


def main(folder: str) -> int:
    """The sizes by folder; returns whether something is wrong."""
    return max(check(folder, name, most) for name, most in MAX_MEGABYTES.items())


def check(folder: str, name: str, most: float) -> int:
    """The same of one wheel."""
    (path,) = Path(folder).glob(f"{name}-*.whl")
    with ZipFile(path) as wheel:
        files = wheel.infolist()
        (metadata,) = [wheel.read(file) for file in files if file.filename.endswith(".dist-info/METADATA")]
    sizes, megabytes = Counter[str](), path.stat().st_size / 1e6
    for file in files:
        sizes["/".join(file.filename.split("/")[:-1][:3])] += file.compress_size
    for name, size in sizes.most_common(6):
        print(f"{size / 1e6:6.1f} MB  {name}")
    needed = {file for file in NEEDED if file.startswith(f"{name}/")}
    faults = [f"{file} is missing" for file in sorted(needed - {file.filename for file in files})]
    faults += metadata_faults(metadata)
    is_large = megabytes > most
    print(f"{megabytes:6.1f} MB  {path.name}, limit {most}{'  ABOVE' if is_large else ''}")
    print(*faults, sep="\n", end="\n" * bool(faults))
    return int(is_large or bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
