"""Checkpoints that are whole or do not count: sealed by checksums after everything is written."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hessblocks.data import END_OF_TEXT, Corpus, sha256
from hessblocks.errors import RunError
from hessblocks.quiet import quiet
from hessblocks.storage import atomic_folder, cut_back, read_lines, write_json
from hessblocks.training.folder.run_folder import RunFolder

SEAL = "seal.json"
KEPT = 2
"""How many checkpoints are kept, so that a damaged one costs little."""
_NAME = re.compile(r"checkpoint-(\d+)")
_TORCH_WRITER = re.compile(r"inline_container|PytorchStreamWriter|iostream error")


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged and an earlier state is used."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Around code that only saves: what goes wrong is the disk, and the half-written folder goes.

    Raises:
        RunError: the folder cannot be written. A full disk shows as an OSError, or as an error of
            safetensors' or of torch's file writer.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, RuntimeError) and not _TORCH_WRITER.search(str(error)):
            raise
        reason = getattr(error, "strerror", None) or "the disk is full or failing"
        raise RunError(
            f"--out: {folder.parent} cannot be written ({reason}); free some space and run again."
        ) from error


def seal(folder: Path, progress: dict[str, Any]) -> None:
    """Mark a folder as whole.

    Args:
        folder: with every file in its place.
        progress: what to remember beside the files, as JSON values.

    Raises:
        RunError: the seal cannot be written.
    """
    files = {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name != SEAL}
    write_json(folder / SEAL, {"files": files, "progress": progress})


def is_whole(folder: Path) -> bool:
    """Whether the folder is sealed, every file is as it was and no other is there."""
    try:
        files = json.loads((folder / SEAL).read_text(encoding="utf-8"))["files"]
        there = {path.name for path in folder.iterdir()} - {SEAL}  # none besides, none elsewhere
        return there == set(files) and all(sha256(folder / n) == files[n] for n in there)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def remembered_in(folder: Path) -> dict[str, Any]:
    """What was remembered beside the files of a whole checkpoint."""
    progress: dict[str, Any] = json.loads((folder / SEAL).read_text(encoding="utf-8"))["progress"]
    return progress


def continued(folder: RunFolder, name: str, *, observed: bool = False) -> Path | None:
    """Where training goes on: the newest whole checkpoint whose lines are all written down.

    Lines of later steps are forgotten. A damaged checkpoint, or one with lost lines, is said and removed.

    Args:
        folder: of the run.
        name: of the run, for warnings.
        observed: whether the run leaves observations beside its losses.

    Returns:
        The checkpoint; None where training starts from the beginning.

    Raises:
        RunError: a file of lines cannot be written.
    """
    found = newest_whole(folder.checkpoints)
    damaged = _incomplete(folder, found) if found else None
    if damaged:
        warnings.warn(
            f"{damaged} is damaged; training {name} from the start",
            CheckpointWarning,
            stacklevel=2,
        )
        shutil.rmtree(folder.checkpoints)
        found = None
    for path in (folder.metrics, *([folder.observations] if observed else [])):
        cut_back(path, _step_of(found) if found else None)
    return found


def _incomplete(folder: RunFolder, checkpoint: Path) -> Path | None:
    """The file that lacks lines written before the checkpoint."""
    step = _step_of(checkpoint)
    if not any(line["step"] == step for line in read_lines(folder.metrics)):
        return folder.metrics
    lines = [line for line in read_lines(folder.observations) if line["step"] <= step]
    expected = remembered_in(checkpoint).get("observations", 0)
    return folder.observations if len(lines) < expected else None


def newest_whole(folder: Path) -> Path | None:
    """The last whole checkpoint; later ones are removed, with a warning where they were sealed.

    Args:
        folder: holds `checkpoint-<step>` folders.

    Returns:
        The checkpoint; None where none is whole.
    """
    for checkpoint in _by_step(folder):
        if is_whole(checkpoint):
            return checkpoint
        if (checkpoint / SEAL).exists():
            warnings.warn(
                f"checkpoints: {checkpoint.parent.parent.name}/{checkpoint.name} is damaged and "
                "removed; going on from the state before it",
                CheckpointWarning,
                stacklevel=2,
            )
        shutil.rmtree(checkpoint)
    return None


def _step_of(checkpoint: Path) -> int:
    """The step at which a checkpoint was made."""
    found = _NAME.fullmatch(checkpoint.name)
    assert found, checkpoint
    return int(found[1])


def prune(folder: Path) -> None:
    """Keep the last `KEPT` checkpoints."""
    for checkpoint in _by_step(folder)[KEPT:]:
        shutil.rmtree(checkpoint)


def _by_step(folder: Path) -> list[Path]:
    """Checkpoints, the last first."""
    found = [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_step_of, reverse=True)


def save_model(model: PreTrainedModel, corpus: Corpus, context: int, folder: Path) -> None:
    """Save model and tokeniser as Hugging Face reads them, whole or not at all.

    Raises:
        RunError: the folder cannot be written.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=corpus.tokenizer, eos_token=END_OF_TEXT, model_max_length=context
    )
    with atomic_folder(folder) as temporary, quiet(), writing(temporary):
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        seal(temporary, {})
