"""Manage a run folder and its checkpoints: identity, lock, and the checkpoint to resume from."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedModel

from hessblocks import storage
from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError, RunError
from hessblocks.quiet import quiet


class RunFolder:
    """Files of a run or a comparison."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        """All settings."""
        self.environment = path / "environment.json"
        """Versions and hardware."""
        self.metrics = path / "metrics.jsonl"
        """Losses along training, one per line."""
        self.observations = path / "observations.jsonl"
        """Gains, signal and curvature along training, one value per line."""
        self.lines = (self.metrics, self.observations)
        self.results = path / "results.csv"
        """Measured values, one per row."""
        self.checkpoints = path / "checkpoints"
        """Checkpoints of a run under way."""
        self.model = path / "model"
        """Trained model and its tokeniser, as Hugging Face reads them."""

    @cached_property
    def identity(self) -> str:
        """Digest of config.json; every model and checkpoint of the folder stores it."""
        return storage.identity_in(self.path)

    def sync_lines(self) -> None:
        """Wait until all lines so far are on the disk."""
        for path in self.lines:
            if path.exists():
                storage.sync(path)

    def mark_whole(self, folder: Path, name: str, progress: dict[str, Any]) -> None:
        """Write the manifest of a checkpoint or model, after all lines so far are on the disk.

        Args:
            folder: folder of the checkpoint or model, complete except for the manifest.
            name: name that the folder has, or will have.
            progress: JSON values to store in the manifest, besides the numbers of lines.

        Raises:
            RunError: the manifest cannot be written.
        """
        self.sync_lines()
        lines = {path.name: len(storage.read_lines(path)) for path in self.lines}
        storage.write_manifest(folder, self.identity, name, {**progress, "lines": lines})

    def run(self, preset: str, seed: int) -> RunFolder:
        """Return the folder of one run of a comparison."""
        return RunFolder(storage.run_path(self.path, preset, seed))

    def prepare(
        self, config: Mapping[str, Any], growing: Collection[str] = (), free: Collection[str] = ()
    ) -> None:
        """Write config.json and environment.json, or check that config.json has the same settings.

        Args:
            config: all settings.
            growing: names of lists that may have more entries than before.
            free: names of settings that may differ from before.

        Raises:
            ArgumentError: the folder contains another run, or other files.
            RunError: the folder cannot be written.
        """
        storage.remove_partials(self.path)
        if self.config.exists():
            self._compare(config, growing, free)
        elif self.path.exists() and any(path.name[0] != "." for path in self.path.iterdir()):
            raise ArgumentError(
                f"--out: {self.path} is not empty and holds no run; choose a new or empty folder."
            )
        else:
            storage.write_json(self.config, config)
        storage.keep_environment(self.environment)

    def _compare(
        self, config: Mapping[str, Any], growing: Collection[str], free: Collection[str]
    ) -> None:
        new = json.loads(json.dumps(config))
        try:
            old = storage.read_object(self.config)
            command = new.get("command")
            if is_other := old.get("command") != command:
                growing = free = ()  # another command may lack these settings
            grown = {name: new[name] for name in growing if set(new[name]) > set(old[name])}
            grown |= {name: new[name] for name in free if new[name] != old[name]}
            if grown and growing:
                grown["blocks"] = new["blocks"] | old["blocks"]
            differing = storage.differences(old | grown, new)
        except (RunError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self.config}: damaged; remove {self.path} and run again.") from error
        if is_other:
            raise ArgumentError(
                f"--out: {self.path} holds something other than a run of `hessblocks {command}`; "
                "choose a new or empty folder."
            )
        if differing:
            raise ArgumentError(
                f"--out: {self.path} holds a run with other settings ({'; '.join(differing)}); "
                "choose another folder or the same settings."
            )
        if grown:
            storage.write_json(self.config, config)


@contextmanager
def claimed(
    path: Path,
    config: Mapping[str, Any],
    growing: Collection[str] = (),
    free: Collection[str] = (),
    finish: Callable[[Path], object] | None = None,
) -> Iterator[RunFolder]:
    """Lock the run folder for this process, and prepare it; the lock ends with the process.

    Args:
        path: path of the folder.
        config: all settings.
        growing: see `RunFolder.prepare`.
        free: see `RunFolder.prepare`.
        finish: called with the folder at the end, while it is still locked.

    Raises:
        ArgumentError: the folder contains another run, or other files.
        RunError: the folder cannot be written, or another process has locked it.
    """
    with storage.held(path):
        folder = RunFolder(path)
        folder.prepare(config, growing, free)
        try:
            yield folder
            if finish:
                finish(path)
        except ArgumentError:  # what was refused must not stand in the way of the corrected call
            written = {file.name for file in path.iterdir() if file.name[0] != "."}
            if written == {folder.config.name, folder.environment.name}:
                folder.config.unlink()
                folder.environment.unlink()
            raise


KEPT = 2
"""Number of checkpoints to keep: if the newest is damaged, the one before is used."""
_NAME = re.compile(r"checkpoint-(\d+)")
_WRITERS = re.compile(r"inline_container|PytorchStreamWriter|iostream error|\(os error \d+\)")
"""Error messages of torch and tokenizers for a failed write, which has no error class there."""


class CheckpointWarning(UserWarning):
    """Warning that a checkpoint is damaged, so that training resumes from an earlier state."""


@contextmanager
def writing(folder: Path, shown: Path) -> Iterator[None]:
    """Run code that saves into `folder`; on any error remove the folder and report a failed write.

    Args:
        folder: folder to remove.
        shown: path in the message.

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
        words, by_system, _ = str(error).partition(" (os error")
        said = words if by_system else "the disk is full or failing"
        reason = getattr(error, "strerror", None) or said
        raise RunError(
            f"--out: {shown} cannot be written ({reason}); free some space and run again."
        ) from error


@contextmanager
def saving(folder: AnyPath) -> Iterator[Path]:
    """Yield a temporary folder for a model of transformers, and rename it to `folder` on success.

    Raises:
        RunError: the folder cannot be written.
    """
    path = Path(folder)
    with storage.atomic_folder(path) as temporary, quiet(), writing(temporary, path):
        yield temporary


def continued(folder: RunFolder, name: str, *, observed: bool) -> Path | None:
    """Find the checkpoint to resume from: the newest whole one of this run.

    JSON lines of later steps are removed. If a line is damaged or lost, training starts from the
    beginning, with a warning; a file with a damaged line is moved into `aside`.

    Args:
        folder: folder of the run.
        name: name of the run, for warnings.
        observed: whether the run writes observations as well as losses.

    Returns:
        The checkpoint; None if training starts from the beginning.

    Raises:
        RunError: a file of lines cannot be written.
    """
    checkpoint = newest(folder)
    paths = (folder.metrics, *([folder.observations] if observed else []))
    for path in paths:
        fault = storage.fault_in_lines(path, torn=False)
        if fault or (checkpoint and _lacks_lines(checkpoint, path)):
            aside = fault and storage.set_aside(path, folder.path).parent
            why = f" ({fault}; kept in {aside})" if fault else ""
            _warn(f"{path} is damaged; training {name} from the start{why}")
            checkpoint = None
    if not checkpoint:
        prune(folder.checkpoints, count=0)
    for path in paths:
        lines = _lines_until(checkpoint, path) if checkpoint else []
        storage.write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
    return checkpoint


def _lacks_lines(checkpoint: Path, path: Path) -> bool:
    """Tell whether a file lacks lines that it had when the checkpoint was written."""
    count = storage.remembered_in(checkpoint).get("lines", {}).get(path.name)
    return isinstance(count, int) and len(_lines_until(checkpoint, path)) < count


def _lines_until(checkpoint: Path, path: Path) -> list[dict[str, Any]]:
    """Read the lines of a file up to the step of a checkpoint."""
    return [line for line in storage.read_lines(path) if line["step"] <= _step_of(checkpoint)]


def newest(folder: RunFolder) -> Path | None:
    """Find the newest whole checkpoint; remove incomplete ones, move damaged ones into `aside`.

    Returns:
        The checkpoint; None if no checkpoint is whole.

    Raises:
        RunError: a checkpoint cannot be moved.

    Warns:
        CheckpointWarning: a checkpoint is damaged, renamed or of another run, and is moved.
    """
    newest_whole = None
    for checkpoint in _by_step(folder.checkpoints):
        fault = storage.check_manifest(checkpoint, folder.identity, checkpoint.name)
        if not fault:
            newest_whole = newest_whole or checkpoint
        elif (checkpoint / storage.MANIFEST).exists():
            aside = storage.set_aside(checkpoint, folder.path).parent
            label = f"{folder.path.name}/{checkpoint.name}"
            _warn(f"checkpoints: {label} {fault}; it is set aside in {aside}")
        else:
            shutil.rmtree(checkpoint)
    return newest_whole


def _warn(message: str) -> None:
    warnings.warn(message, CheckpointWarning, stacklevel=4)


def _step_of(checkpoint: Path) -> int:
    """Read the step of a checkpoint from its name."""
    match = _NAME.fullmatch(checkpoint.name)
    assert match, checkpoint
    return int(match[1])


def prune(folder: Path, count: int = KEPT) -> None:
    """Remove all but the newest `count` checkpoints, and the folder if it is then empty."""
    for checkpoint in _by_step(folder)[count:]:
        shutil.rmtree(checkpoint)
    with suppress(OSError):
        folder.rmdir()


def _by_step(folder: Path) -> list[Path]:
    """List checkpoints, the newest first."""
    checkpoints = [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
    return sorted(checkpoints, key=_step_of, reverse=True)


def save_model(model: PreTrainedModel, tokenizer: Any, folder: RunFolder, **progress: Any) -> None:
    """Save model and tokeniser in the run's folder as Hugging Face reads them, or not at all.

    Args:
        model: trained model.
        tokenizer: tokeniser of transformers that belongs to the model.
        folder: folder of the run; all its lines are written already.
        **progress: JSON values to store in the manifest, besides the numbers of lines.

    Raises:
        RunError: the folder cannot be written.
    """
    with saving(folder.model) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        folder.mark_whole(temporary, folder.model.name, progress)
