"""Check typed words before torch is loaded: models, texts, blocks, devices, folders to write.

Each check takes the value of an option and returns what is wrong and what to type next; empty if
nothing is. The library checks again, with the whole files.
"""

import codecs
import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from hessblocks.errors import ArgumentError, in_units, unknown_name
from hessblocks.settings import BUILT_IN, TRACKERS

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
BYTES = 4
"""Bytes of English text in a token, about."""
EXCHANGED = "did you exchange MODEL and --data?"
GIVE = "give a folder that save_pretrained wrote, or a GGUF file."


def text(path: Path | str) -> str:
    """Check that a path is a text, a folder of files, or built-in data."""
    file = Path(path)
    if path in BUILT_IN:
        return ""
    try:
        if path != "" and file.is_dir():
            if not any(file.iterdir()):
                return f"{path} holds no files; give a folder with text."
            is_model = (file / "config.json").is_file() and any(file.glob("*.safetensors"))
            return f"{path} is a model, not a text; {EXCHANGED}" if is_model else ""
        if path == "" or not file.is_file():
            return f"{path or 'an empty name'} is not a file or folder; give one that exists."
        kind = _not_text(file)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}); change its permissions or leave it out."
    if "model" in kind:
        return f"{path} {kind}, not a text; {EXCHANGED}"
    return kind and f"{path} {kind}; convert it, or give text or code."


def _not_text(file: Path) -> str:
    """Say what a file is, if its first bytes are not text; empty if they are."""
    with file.open("rb") as opened:
        head = opened.read(SIZE)
    if not head:
        return "has too little text, since it is empty"
    if kind := "a model" if file.suffix == ".safetensors" else KINDS.get(head[:4]):
        return f"is {kind}"
    with suppress(UnicodeDecodeError):  # a character may be cut off at the end
        if "\0" not in codecs.getincrementaldecoder("utf-8")().decode(head, len(head) < SIZE):
            return ""
    return "is not UTF-8 text"


def check_length(path: Path | str | None, windows: int, tokens: int) -> None:
    """Refuse a text with fewer than half as many bytes as tokens are needed.

    Raises:
        ArgumentError: the text is too short.
    """
    if path is None or not Path(path).is_file():
        return
    size, needed = Path(path).stat().st_size, windows * tokens
    if 2 * size < needed:  # half: what the tokenizer puts first in each window is not of the text
        raise ArgumentError(
            f"--data: {path} has {in_units(size)}; {needed:,} tokens are needed ({windows} times "
            f"{tokens}), about {in_units(BYTES * needed)}: give more text."
        )


def saved(source: str) -> str:
    """Check that a source is a saved model: a folder, a GGUF file or a name in the cache."""
    word, path = source.removeprefix(PREFIX), Path(source)
    if word.partition("[")[0] in PRESETS and not os.path.exists(source):
        trained = f"`hessblocks train {word} --out runs/{word}` first, then give runs/{word}."
        return f"{source} is a block without trained weights; type {trained}"
    if os.path.isdir(source):
        inner = path / "model"
        return _folder(inner if (inner / "config.json").is_file() else path)
    if os.path.isfile(source):
        return _file(path)
    if re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", source) and not source.endswith(".gguf"):
        return _cached(source)
    return f"{source or 'an empty name'} does not exist; {GIVE}"


def _folder(folder: Path) -> str:
    """Check that a folder has a configuration and weights."""
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError:
        return ""  # the command tells why it cannot be read
    has_weights = any(name.endswith(".safetensors") for name in names)
    if "adapter_config.json" in names or ("config.json" in names and has_weights):
        return ""
    if files := sorted(name for name in names if name.endswith(".gguf")):
        return f"{folder} is a folder; give its file {folder / files[0]}."
    lacks = "no weights (*.safetensors)" if "config.json" in names else "no config.json"
    return f"{folder} holds no model, since it has {lacks}; {GIVE}"


def _file(file: Path) -> str:
    """Check that a file is GGUF by its name and its first bytes."""
    with file.open("rb") as opened:
        is_gguf = opened.read(4) == b"GGUF"
    if file.suffix.lower() == ".gguf":
        if not is_gguf:
            return f"{file} is damaged or not a GGUF file; copy or download it again."
        return "" if find_spec("gguf") else f"{file} needs the package gguf: pip install gguf"
    if is_gguf:
        return f"{file} is a GGUF file; rename it so that it ends in .gguf."
    if (file.parent / "config.json").is_file() and file.suffix in (".safetensors", ".json"):
        return f"{file} is a part of a model; give its folder {file.parent}."
    kind = _not_text(file)
    return f"{file} {kind}; {GIVE}" if kind else f"{file} is a text, not a model; {EXCHANGED}"


def _cached(name: str) -> str:
    """Check that a name is in the local Hugging Face cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return ""
    near = difflib.get_close_matches(name, (path.name for path in Path().iterdir()), n=1)
    return (
        f"{name!r} is not a folder, and no model of that name is in the local Hugging Face cache; "
        f"{f'did you mean {near[0]}? Else ' if near else ''}run `hf download {name}` where there "
        "is a network, or give a folder."
    )


def models(sources: str | Sequence[str]) -> str:
    """Check that each source is `preset:NAME` or a saved model."""
    sources = [sources] if isinstance(sources, str) else sources
    return next(filter(None, map(_model, sources)), "") or _repeated(sources)


def _model(source: str) -> str:
    if source.startswith(PREFIX):
        return blocks([source.removeprefix(PREFIX)], (*PRESETS, *PLAIN))
    if source.partition("[")[0] in (*PRESETS, *PLAIN) and not os.path.exists(source):
        return f"{source} is a block, not a model: write {PREFIX}{source}."
    return saved(source)


def blocks(words: str | Sequence[str], known: Iterable[str] = PRESETS) -> str:
    """Check that each block is known, or a file that holds one."""
    words = [words] if isinstance(words, str) else words
    for word in words:
        for part in re.split(r"\+(?![^\[\]]*\])", word):
            file, ending, _ = part.rpartition(".json")
            base = part.partition("[")[0]
            if ending and (refusal := _block(Path(file + ending))):
                return refusal
            if not ending and base not in known:
                if os.path.exists(part):
                    return f"{part} is a file or folder, not a block; see `hessblocks presets`."
                return str(unknown_name("", base, known)).removeprefix(": ")
    return _repeated(words)


def _repeated(words: Iterable[str]) -> str:
    more = [word for word, count in Counter(words).items() if count > 1]
    return f"{more[0]} was given twice; give each once." if more else ""


def _block(file: Path) -> str:
    if not file.is_file():
        return f"{file} is not a file; give one that exists."
    with suppress(OSError, ValueError, RecursionError):
        described = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(described, dict) and described.get("kind") == "block":
            return ""
    why = 'it is not a JSON object with "kind": "block"; write it with BlockConfig.to_dict.'
    return f"{file} holds no block that this version knows, since {why}"


def out(folder: Path) -> str:
    """Check that a path is or can become a folder to write to."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    reason = "" if there.is_dir() else f"{there} is a file"
    try:
        if there != folder and not reason:
            TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        reason = str(error.strerror)
    if not os.access(there, os.W_OK):
        reason = reason or "Permission denied"
    return reason and f"{folder} cannot be written ({reason}); give another folder."


def check_run(command: str, folder: Path | None) -> None:
    """Refuse a folder with a readable config.json of another command, or with other files.

    Raises:
        ArgumentError: it has.
    """
    try:
        names = [path.name for path in folder.iterdir() if path.name[0] != "."] if folder else []
        config = Path(folder or "", "config.json")
        there = json.loads(config.read_bytes()) if config.name in names else {"command": ""}
        other = bool(names) and there.get("command", command) != command  # a model has none
    except (OSError, ValueError, AttributeError, RecursionError):
        return  # a new folder, or the command tells what is damaged
    if other:
        raise ArgumentError(
            f"--out: {folder} holds something other than a run of `hessblocks {command}`; choose a "
            "new or empty folder."
        )


def folders(paths: Sequence[Path]) -> str:
    """Check that each path is a folder with files."""
    try:
        empty = next((p for p in paths if not (p.is_dir() and any(p.iterdir()))), None)
    except OSError:
        return ""  # the command tells why it cannot be read
    if empty and empty.is_file():
        return f"{empty} is a file; give the folder that holds it."
    expected = "expected a folder that a command wrote with --out"
    return f"{empty} has no config.json; {expected}" if empty else ""


def device(name: str) -> str:
    """Check that a device is known, and is not cuda where torch is built for CPUs."""
    if name not in ("auto", "cpu", "cuda"):
        return f"expected auto, cpu or cuda, got {name!r}."
    from importlib.metadata import version

    lacking = name == "cuda" and version("torch").endswith("+cpu")
    return "this machine has no usable cuda device; use --device cpu." if lacking else ""


def tracker(name: str) -> str:
    """Check that an experiment tracker is known and installed."""
    if name not in TRACKERS:
        return str(unknown_name("", name, TRACKERS)).removeprefix(": ")
    lacking = name != "none" and not (find_spec(name) or find_spec(f"{name}X"))
    return f"{name} is not installed; run pip install {name}, or leave it out." if lacking else ""
