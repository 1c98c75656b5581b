"""Print what the wheel in a folder holds, and end with 1 where it is too large or lacks a file that users need."""

import sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

MAX_MEGABYTES = 30
NEEDED = {
    "multidraft/zoo/smollm2_eagle3/model.safetensors",
    "multidraft/zoo/smollm2_draft/draft.gguf",
    "multidraft/zoo/plans/copy_eagle3_smollm2_transformers.json",
    "multidraft/zoo/prompts/kinds.jsonl",
    "multidraft/server/page.html",
    "multidraft/py.typed",
}


def main(folder: str) -> int:
    """The sizes by folder; returns whether something is wrong."""
    (path,) = Path(folder).glob("*.whl")
    with ZipFile(path) as wheel:
        files = wheel.infolist()
    sizes, megabytes = Counter[str](), path.stat().st_size / 1e6
    for file in files:
        sizes["/".join(file.filename.split("/")[:-1][:3])] += file.compress_size
    for name, size in sizes.most_common(6):
        print(f"{size / 1e6:6.1f} MB  {name}")
    missing = NEEDED - {file.filename for file in files}
    is_large = megabytes > MAX_MEGABYTES
    print(f"{megabytes:6.1f} MB  {path.name}, limit {MAX_MEGABYTES}{'  ABOVE' if is_large else ''}")
    for name in sorted(missing):
        print(f"{name} is missing")
    return int(is_large or bool(missing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
