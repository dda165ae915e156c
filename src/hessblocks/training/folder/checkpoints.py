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
    """Where training goes on: the newest whole checkpoint of this run whose lines are all written down.

    Lines of later steps are forgotten. A damaged checkpoint, or one with lost lines, is said and removed;
    a checkpoint of another run, and a file with a damaged line, is said and set aside.

    Args:
        folder: of the run.
        name: of the run, for warnings.
        observed: whether the run leaves observations beside its losses.

    Returns:
        The checkpoint; None where training starts from the beginning.

    Raises:
        RunError: a file of lines cannot be written.
    """
    spare_foreign(folder)
    found, lacking = _newest(folder)
    step = _step_of(found) if found else -1
    for path in (folder.metrics, *([folder.observations] if observed else [])):
        kept = [line for line in read_lines(path) if line["step"] <= step]
        fault = fault_in_lines(path, torn=False)
        why = f" ({fault}; kept in {set_aside(path, folder.path).parent})" if fault else ""
        if fault or path in lacking:
            place = found.name if found else "the start"
            _warn(f"{path} is damaged; training {name} from {place}{why}")
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
    return found


def spare_foreign(folder: RunFolder) -> None:
    """Set checkpoints aside that are of another run, renamed, or hold a file that is not of them.

    Raises:
        RunError: one cannot be moved.

    Warns:
        CheckpointWarning: names each.
    """
    for checkpoint in _by_step(folder.checkpoints):
        found = check_manifest(checkpoint, folder.identity, checkpoint.name)
        if found.state == "foreign":
            place = f"{folder.path.name}/{checkpoint.name}"
            kept = set_aside(checkpoint, folder.path).parent
            _warn(f"checkpoints: {place} {found.words}; it is set aside in {kept}")


def _newest(folder: RunFolder) -> tuple[Path | None, set[Path]]:
    """The newest checkpoint that counts, and the files whose lines others lacked; those others go."""
    lacking: set[Path] = set()
    for checkpoint in _by_step(folder.checkpoints):
        found = check_manifest(checkpoint, folder.identity, checkpoint.name)
        if not found.usable:
            if (checkpoint / MANIFEST).exists():
                _warn(
                    f"checkpoints: {folder.path.name}/{checkpoint.name} is damaged and removed; "
                    "going on from the state before it"
                )
        elif lost := _lacking(folder, checkpoint):
            lacking.add(lost)
        else:
            return checkpoint, lacking
        shutil.rmtree(checkpoint)
    return None, lacking


def _warn(message: str) -> None:
    warnings.warn(message, CheckpointWarning, stacklevel=4)


def _lacking(folder: RunFolder, checkpoint: Path) -> Path | None:
    """The file that lacks lines written before the checkpoint."""
    step, written = _step_of(checkpoint), remembered_in(checkpoint).get("lines", {})
    for path in (folder.metrics, folder.observations):
        steps = [line["step"] for line in read_lines(path) if line["step"] <= step]
        count = written.get(path.name)
        if isinstance(count, int):
            whole = len(steps) >= count
        else:  # earlier versions noted no number; a checkpoint always came with a loss
            whole = not fault_in_lines(path, torn=False) and (
                path == folder.observations or step in steps
            )
        if not whole:
            return path
    return None


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
