"""GGUF models of the hub by names as people type them, `ORG/NAME:TYPE`; the hub's client keeps them in its cache."""

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from multidraft.errors import AdviceError, shown_error
from multidraft.models.gguf.header import PART

NAME = re.compile(r"(?:(?:https?://)?(?:hf|huggingface)\.co/)?(\w[\w.-]*/\w[\w.-]*)(?:(?<!\.gguf)|\s*:([^:]*))", re.I)
SUFFIX, OTHER_WEIGHTS, OTHER_MODEL = ".gguf", (".safetensors", ".bin"), re.compile("mmproj|imatrix", re.IGNORECASE)
TYPE = re.compile(r"(?<![A-Z0-9])(?:UD-)?(?:I?Q\d+|TQ\d+|BF16|FP?16|FP?32|(?:MX|NV)FP\d+)(?:_[A-Z0-9]+)*(?![A-Z0-9])")
DEFAULT_TYPE, ANY_TYPE = "Q4_K_M", "LATEST"  # Ollama's word for no type
SECONDS = 10  # to wait for a list of files
NOTES = logging.getLogger("multidraft")


class HubModel(NamedTuple):
    """The files of a model, of which the first stands for all: in a folder, or else in a repository."""

    files: list[str]
    folder: Path | None
    repository: str
    revision: str | None

    def fetch(self) -> Path:
        """The first file, once all are on this machine; raises AdviceError where one cannot be had or kept."""
        if self.folder is not None:
            return self.folder / self.files[0]
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        paths = list[str]()
        for file in self.files:
            if not isinstance(try_to_load_from_cache(self.repository, file, revision=self.revision), str):
                NOTES.warning("downloading %s of %s into the hub's cache", file, self.repository)
            try:
                paths.append(hf_hub_download(self.repository, file, revision=self.revision))
            except Exception as error:  # the client's kinds of errors depend on its version
                raise AdviceError(advice(error, self.repository, self.revision)) from None
        return Path(paths[0])


def name_of(text: str) -> tuple[str, str | None] | None:
    """The repository that a text names, and the type or file in it; None for a path, which wins, or another form."""
    match = None if Path(text).expanduser().exists() else NAME.fullmatch(text.strip())
    return (match[1], match[2]) if match else None


def look_up(text: str, revision: str | None = None, is_gguf: bool = False) -> HubModel | None:
    """The files that a name of the hub stands for; None for other names, and for other weights unless `is_gguf`."""
    if (name := name_of(text)) is None:
        return None
    (repository, kind), is_gguf = name, is_gguf or name[1] is not None
    folder, files = files_of(repository, revision, is_gguf)
    models = models_in(files)
    if not is_gguf and (not models or any(file.endswith(OTHER_WEIGHTS) for file in files)):
        return None
    where = f"what is here of {repository!r}" if folder else repr(repository)
    return HubModel(models[model_of(list(models), kind or ANY_TYPE, where)], folder, repository, revision)


def files_of(repository: str, revision: str | None, is_gguf: bool) -> tuple[Path | None, list[str]]:
    """The files of a repository; those of a folder of its name, or of the cache where no hub answers, and that one."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        if not (folder := Path(repository)).is_dir():
            files = HfApi().model_info(repository, revision=revision, timeout=SECONDS).siblings or ()
            return None, [file.rfilename for file in files]
    except Exception as failure:  # the client's kinds of errors depend on its version
        try:  # without patterns it would ask for all files
            folder = Path(snapshot_download(repository, revision=revision, local_files_only=True, allow_patterns=[]))
        except Exception:
            if is_gguf:
                raise AdviceError(advice(failure, repository, revision)) from None
            return None, []  # transformers will say why it has none
    found = (*folder.glob("*"), *folder.glob("*/*"))
    return folder, [path.relative_to(folder).as_posix() for path in found if path.is_file()]


def models_in(files: Iterable[str]) -> dict[str, list[str]]:
    """The files of each language model, by its name without parts; of one that is also there as a whole, that."""
    models = dict[str, list[str]]()
    for file in sorted(files):
        if file.lower().endswith(SUFFIX) and not OTHER_MODEL.search(Path(file).name):
            models.setdefault(PART.sub(SUFFIX, file), []).append(file)
    return {name: [name] if name in parts else parts for name, parts in sorted(models.items())}


def model_of(models: list[str], kind: str, where: str) -> str:
    """The model of a type or of a file's name; of any type, that in Q4_K_M, else the first."""
    if not models:
        raise AdviceError(f"{where} has no GGUF file; name a repository that has, often ORG/NAME-GGUF, or a file")
    types = {file: ["", *map(str, TYPE.findall(file.upper()))][-1] for file in models}  # by the file, else its folder
    kind = PART.sub(SUFFIX, kind.strip()).upper()
    if kind == ANY_TYPE:
        kind = DEFAULT_TYPE if any(DEFAULT_TYPE in name for name in types.values()) else types[models[0]]
    found = [file for file in models if kind in (types[file], file.upper(), Path(file).name.upper())]
    found = found or [file for file in models if kind and re.search(rf"(?<!\w){re.escape(kind)}(?!\w)", file.upper())]
    if len(found) == 1:
        return found[0]
    if found:
        raise AdviceError(f"{where} has {len(found)} such models; name one behind the colon: {', '.join(found)}")
    raise AdviceError(f"{where} has no {kind}; it has {', '.join(sorted({types[file] or file for file in models}))}")


def advice(error: Exception, repository: str, revision: str | None) -> str:
    """Why a repository or a file of it cannot be had, and what to do."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    hub, log_in = constants.ENDPOINT, "log in with `hf auth login`, or set HF_TOKEN"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return f"{repository!r} is gated: accept its terms at {hub}/{repository}, and {log_in}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repository!r} has no revision {revision!r}; give a branch, a tag or a commit of {hub}/{repository}"
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403, 404):
        return f"{hub} shows you no {repository!r} ({status}); check the name, or, if it is private, {log_in}"
    is_off, cache = isinstance(error, errors.OfflineModeIsEnabled), constants.HF_HUB_CACHE
    reason = "it does not answer, or HF_HUB_OFFLINE is set" if is_off else shown_error(error)
    return f"{repository!r} is not in {cache}, nor to be had from {hub} ({reason}); check the network, or make room"
