"""Find, keep and write checkpoints; one counts where its manifest, which is written last, fits its files."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedModel

from hessblocks.errors import RunError
from hessblocks.models import HessblocksPreTrainedModel, write_card
from hessblocks.quiet import quiet
from hessblocks.storage import (
    MANIFEST,
    atomic_folder,
    check_manifest,
    fault_in_lines,
    read_lines,
    remembered_in,
    set_aside,
    write_text,
)
from hessblocks.training.folder.run_folder import RunFolder

KEPT = 2
"""How many checkpoints are kept, so that a damaged one costs little."""
_NAME = re.compile(r"checkpoint-(\d+)")
_WRITERS = re.compile(r"inline_container|PytorchStreamWriter|iostream error|\(os error \d+\)")
"""How torch and tokenizers, which have no error of their own for it, say that they cannot write."""


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged and an earlier state is used."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Around code that only saves: what goes wrong is the disk, and the half-written folder goes.

    Raises:
        RunError: the folder cannot be written. A full disk shows as an OSError, or as an error of
            safetensors', torch's or tokenizers' file writer.
    """
    try:
        yield
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, OSError | SafetensorError) and not _WRITERS.search(str(error)):
            raise
        reason = getattr(error, "strerror", None) or "the disk is full or failing"
        raise RunError(
            f"--out: {folder.parent} cannot be written ({reason}); free some space and run again."
        ) from error


def continued(folder: RunFolder, name: str, *, observed: bool = False) -> Path | None:
    """Where training goes on: the newest whole checkpoint of this run.

    Lines of later steps are forgotten. Where a line is damaged or lost, that is said, and training starts from
    the beginning; the file with a damaged one is set aside.

    Args:
        folder: of the run.
        name: of the run, for warnings.
        observed: whether the run leaves observations beside its losses.

    Returns:
        The checkpoint; None where training starts from the beginning.

    Raises:
        RunError: a file of lines cannot be written.
    """
    found = newest(folder)
    paths = (folder.metrics, *([folder.observations] if observed else []))
    for path in paths:
        fault = fault_in_lines(path, torn=False)
        if fault or (found and _lacks_lines(found, path)):
            why = f" ({fault}; kept in {set_aside(path, folder.path).parent})" if fault else ""
            _warn(f"{path} is damaged; training {name} from the start{why}")
            found = None
    if not found:
        prune(folder.checkpoints, kept=0)
    for path in paths:
        kept = _lines_until(found, path) if found else []
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
    return found


def _lacks_lines(checkpoint: Path, path: Path) -> bool:
    """Whether a file lacks lines that were there when the checkpoint was written."""
    count = remembered_in(checkpoint).get("lines", {}).get(path.name)
    return isinstance(count, int) and len(_lines_until(checkpoint, path)) < count


def _lines_until(checkpoint: Path, path: Path) -> list[dict[str, Any]]:
    """The lines of a file up to a checkpoint."""
    return [line for line in read_lines(path) if line["step"] <= _step_of(checkpoint)]


def newest(folder: RunFolder) -> Path | None:
    """The newest checkpoint that counts; what a killed process left half-written goes.

    Returns:
        None where none counts.

    Raises:
        RunError: one cannot be moved.

    Warns:
        CheckpointWarning: one is damaged, renamed or of another run; it is set aside.
    """
    whole = None
    for checkpoint in _by_step(folder.checkpoints):
        found = check_manifest(checkpoint, folder.identity, checkpoint.name)
        if found.usable:
            whole = whole or checkpoint
        elif (checkpoint / MANIFEST).exists():
            kept = set_aside(checkpoint, folder.path).parent
            words = found.words if found.state == "foreign" else "is damaged"
            place = f"{folder.path.name}/{checkpoint.name}"
            _warn(f"checkpoints: {place} {words}; it is set aside in {kept}")
        else:
            shutil.rmtree(checkpoint)
    return whole


def _warn(message: str) -> None:
    warnings.warn(message, CheckpointWarning, stacklevel=4)


def _step_of(checkpoint: Path) -> int:
    """The step at which a checkpoint was made."""
    found = _NAME.fullmatch(checkpoint.name)
    assert found, checkpoint
    return int(found[1])


def prune(folder: Path, kept: int = KEPT) -> None:
    """Remove all but the last checkpoints; the folder too where it is then empty."""
    for checkpoint in _by_step(folder)[kept:]:
        shutil.rmtree(checkpoint)
    with suppress(OSError):
        folder.rmdir()


def _by_step(folder: Path) -> list[Path]:
    """Checkpoints, the last first."""
    found = [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_step_of, reverse=True)


def save_model(
    model: PreTrainedModel,
    tokenizer: Any,
    folder: RunFolder,
    told: Mapping[str, Any],
    **progress: Any,
) -> None:
    """Save model and tokeniser as Hugging Face reads them, whole or not at all, in the folder of the run.

    Args:
        model: trained.
        tokenizer: that the model knows, of transformers.
        folder: of the run, whose lines are all written.
        told: of its training, in the card of a model of ours.
        **progress: to remember in the manifest, beside the number of lines.

    Raises:
        RunError: the folder cannot be written.
    """
    with atomic_folder(folder.model) as temporary, quiet(), writing(temporary):
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        if isinstance(model, HessblocksPreTrainedModel):
            write_card(temporary, model, told)
        folder.mark_whole(temporary, folder.model.name, progress)
