"""Check typed words before torch is loaded: models, texts, blocks, devices, folders to write.

Each check takes the value of one option and raises an ArgumentError that says what to type next.
The library checks again, with the whole files.
"""

import codecs
import difflib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from hessblocks.errors import ArgumentError, check_name, in_units
from hessblocks.settings import BUILT_IN, TRACKERS, check_place

NAMES = "pre-ln pre-ln-zero post-ln parallel skipless v-skipinit sas sas-p sas-p-no-norm op modern"
PRESETS = tuple(NAMES.split())
"""Names of `hessblocks.blocks.PRESETS`, repeated here since importing that module loads torch."""
PLAIN = tuple(f"{name}-plain" for name in PRESETS if re.match("skipless|v-|sas", name))
"""Presets with plain softmax attention, `hessblocks.inspection.opening.plain_names`."""
PREFIX = "preset:"
SIZE = 1 << 12
"""Number of first bytes that are read of a file."""
KINDS = {b"GGUF": "a model", b"%PDF": "a PDF, not UTF-8 text", b"PK\3\4": "a zip archive"}
"""First bytes → kind of file that is not text."""
EXCHANGED = "did you exchange MODEL and --data?"
BYTES = 4
"""Bytes of English text in a token, about."""
GIVE = "give a folder that save_pretrained wrote, or a GGUF file"


def text(path: Path | str) -> None:
    """Refuse a path that is not a text or a folder of files."""
    check_place(path)
    if path in BUILT_IN:
        return
    place, refusal = Path(path), ""
    try:
        if place.is_dir():
            if not any(place.iterdir()):
                refusal = "holds no files; give a folder with text."
            elif (place / "config.json").is_file() and any(place.glob("*.safetensors")):
                refusal = f"is a model, not a text; {EXCHANGED}"
        elif not place.is_file():
            refusal = "is not a file or folder; give one that exists."
        elif "model" in (kind := _not_text(place)):
            refusal = f"{kind}, not a text; {EXCHANGED}"
        elif kind:
            refusal = f"{kind}; convert it, or give text or code."
    except OSError as error:
        refusal = f"cannot be read ({error.strerror}); change its permissions or leave it out."
    if refusal:
        raise ArgumentError(f"--data: {path} {refusal}")


def _not_text(file: Path) -> str:
    """Say what a file is, if its first bytes are not text; empty if they are."""
    with file.open("rb") as opened:
        head = opened.read(SIZE)
    if not head:
        return "has too little text, since it is empty"
    if kind := "a model" if file.suffix == ".safetensors" else KINDS.get(head[:4]):
        return f"is {kind}"
    with suppress(UnicodeDecodeError):  # a character may be cut off at the end
        decoder = codecs.getincrementaldecoder("utf-8")()
        if "\0" not in decoder.decode(head, final=len(head) < SIZE):
            return ""
    return "is not UTF-8 text"


def length(path: Path | str | None, windows: int, tokens: int) -> None:
    """Refuse a text with fewer than half as many bytes as tokens are needed."""
    if path is None or not Path(path).is_file():
        return
    size, needed = Path(path).stat().st_size, windows * tokens
    if 2 * size < needed:  # half: what the tokenizer puts first in each window is not of the text
        raise ArgumentError(
            f"--data: {path} has {in_units(size)}; {needed:,} tokens are needed ({windows} times "
            f"{tokens}), about {in_units(BYTES * needed)}: give more text."
        )


def saved(source: str, what: str = "MODEL") -> None:
    """Refuse a source that is not a saved model: a folder, a GGUF file or a name in the cache."""
    word, place = source.removeprefix(PREFIX), Path(source)
    if word.partition("[")[0] in PRESETS and not os.path.exists(source):
        raise ArgumentError(
            f"{what}: {source} is a block without trained weights; type `hessblocks train {word} "
            f"--out runs/{word}` first, then give runs/{word}."
        )
    if os.path.isdir(source):
        inner = place / "model"
        _check_folder(inner if (inner / "config.json").is_file() else place, what)
    elif os.path.isfile(source):
        _check_file(place, what)
    elif re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", source) and not source.endswith(".gguf"):
        _check_cached(source, what)
    else:
        raise ArgumentError(f"{what}: {source or 'an empty name'} is not a folder; {GIVE}.")


def _check_folder(folder: Path, what: str) -> None:
    """Refuse a folder without configuration or weights."""
    names = {path.name for path in folder.iterdir()}
    has_weights = any(name.endswith(".safetensors") for name in names)
    if "adapter_config.json" in names or ("config.json" in names and has_weights):
        return
    if files := sorted(name for name in names if name.endswith(".gguf")):
        raise ArgumentError(f"{what}: {folder} is a folder; give its file {folder / files[0]}.")
    lacks = "no weights (*.safetensors)" if "config.json" in names else "no config.json"
    raise ArgumentError(f"{what}: {folder} holds no model, since it has {lacks}; {GIVE}.")


def _check_file(file: Path, what: str) -> None:
    """Refuse a file that is not GGUF by its name and its first bytes."""
    with file.open("rb") as opened:
        is_gguf = opened.read(4) == b"GGUF"
    named = file.suffix.lower() == ".gguf"
    if named and is_gguf and find_spec("gguf"):
        return
    refusal = f"is a text, not a model; {EXCHANGED}"
    if is_gguf:
        refusal = "needs the package gguf: pip install gguf"
        if not named:
            refusal = "is a GGUF file; rename it so that it ends in .gguf."
    elif named:
        refusal = "is damaged or not a GGUF file; copy or download it again."
    elif kind := _not_text(file):
        refusal = f"{kind}; {GIVE}."
    raise ArgumentError(f"{what}: {file} {refusal}")


def _check_cached(name: str, what: str) -> None:
    """Refuse a name that is not in the local Hugging Face cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
    here = [path.name for path in Path().iterdir()]
    near = difflib.get_close_matches(name, here, n=1)
    raise ArgumentError(
        f"{what}: {name!r} is not a folder, and no model of that name is in the local Hugging Face "
        f"cache; {f'did you mean {near[0]}? Else ' if near else ''}run `hf download {name}` where "
        "there is a network, or give a folder."
    )


def model(source: str) -> None:
    """Refuse a source that is neither `preset:NAME` nor a saved model."""
    if source.startswith(PREFIX):
        blocks([source.removeprefix(PREFIX)], "MODEL", (*PRESETS, *PLAIN))
    elif source.partition("[")[0] in (*PRESETS, *PLAIN) and not os.path.exists(source):
        raise ArgumentError(f"MODEL: {source} is a block, not a model: write {PREFIX}{source}.")
    else:
        saved(source)


def models(sources: Sequence[str]) -> None:
    """Refuse the sources that `model` refuses."""
    for source in sources:
        model(source)


def blocks(words: Sequence[str], what: str, known: Sequence[str] = PRESETS) -> None:
    """Refuse an unknown block, or a file that holds none."""
    for word in words:
        for part in re.split(r"\+(?![^\[\]]*\])", word):
            name, ending, _ = part.rpartition(".json")
            if ending:
                _check_block(Path(name + ending), what)
            elif os.path.exists(part) and "[" not in part and part not in known:
                raise ArgumentError(
                    f"{what}: {part} is a file or folder, not a block; a block is a name of "
                    "`hessblocks presets` or FILE.json."
                )
            else:
                check_name(what, part.partition("[")[0], known)


def _check_block(file: Path, what: str) -> None:
    if not file.is_file():
        raise ArgumentError(f"{what}: {file} is not a file; give one that exists.")
    with suppress(OSError, ValueError, RecursionError):
        described = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(described, dict) and described.get("kind") == "block":
            return
    raise ArgumentError(
        f"{what}: {file} holds no block that this version knows, since it is not a JSON object "
        'with "kind": "block"; write it with BlockConfig.to_dict.'
    )


def out(folder: Path) -> None:
    """Refuse a path that cannot become a folder."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    try:
        if not there.is_dir():
            raise NotADirectoryError(None, f"{there} is a file")
        if there != folder:
            TemporaryDirectory(dir=there).cleanup()
        elif not os.access(folder, os.W_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        raise ArgumentError(
            f"--out: {folder} cannot be written ({error.strerror}); give another folder."
        ) from error


def folders(paths: Sequence[Path]) -> None:
    """Refuse what is not a folder, or is empty."""
    for path in paths:
        if not (path.is_dir() and any(path.iterdir())):
            raise ArgumentError(
                f"DIR: {path} has no config.json; expected a folder that a command wrote with --out"
            )


def device(name: str) -> None:
    """Refuse an unknown device, and cuda where torch is built for CPUs."""
    if name not in ("auto", "cpu", "cuda"):
        raise ArgumentError(f"--device: expected auto, cpu or cuda, got {name!r}.")
    if name == "cuda" and version("torch").endswith("+cpu"):
        raise ArgumentError("--device: this machine has no usable cuda device; use --device cpu.")


def tracker(name: str) -> None:
    """Refuse an experiment tracker that is unknown or not installed."""
    check_name("--report-to", name, TRACKERS)
    if name != "none" and not (find_spec(name) or find_spec(f"{name}X")):
        raise ArgumentError(
            f"--report-to: {name} is not installed; run pip install {name}, or leave it out."
        )
