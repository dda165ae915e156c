"""A run folder: its files, who may write there, and whether it was made with the same settings."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage import (
    differences,
    held,
    identity_in,
    keep_environment,
    read_lines,
    read_object,
    remove_partials,
    run_path,
    sync,
    write_json,
    write_manifest,
)


class _Place:
    """A path in a run folder, by its name there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, kind: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """The files of a run or a comparison."""

    path: Path
    """The folder."""

    config = _Place("config.json")
    """All settings."""
    environment = _Place("environment.json")
    """Versions and hardware."""
    metrics = _Place("metrics.jsonl")
    """Losses along training, one a line."""
    observations = _Place("observations.jsonl")
    """Gains, signal and curvature along training, one value a line."""
    budget = _Place("budget.json")
    """What each preset of a matched comparison may spend, and its number of steps."""
    results = _Place("results.csv")
    """Measured values, one a row."""
    checkpoints = _Place("checkpoints")
    """Checkpoints of a run under way."""
    model = _Place("model")
    """The trained model and its tokeniser, as Hugging Face reads them."""

    @cached_property
    def identity(self) -> str:
        """What its files say that they are of: a digest of config.json."""
        return identity_in(self.path)

    def sync_lines(self) -> None:
        """Wait until all lines so far are on the disk."""
        for path in (self.metrics, self.observations):
            if path.exists():
                sync(path)

    def mark_whole(self, folder: Path, name: str, progress: dict[str, Any]) -> None:
        """Write the manifest of a checkpoint or model, once all lines so far are on the disk.

        Args:
            folder: with every file in its place.
            name: that it has, or will have.
            progress: what to remember, beside how many lines there are.

        Raises:
            RunError: it cannot be written.
        """
        self.sync_lines()
        lines = {path.name: len(read_lines(path)) for path in (self.metrics, self.observations)}
        progress = {**progress, "lines": lines}
        write_manifest(folder, self.identity, name, progress)

    def run(self, preset: str, seed: int) -> RunFolder:
        """The folder of one run of a comparison."""
        return RunFolder(run_path(self.path, preset, seed))

    def prepare(self, config: Mapping[str, Any], growing: Collection[str] = ()) -> None:
        """Write config.json and environment.json, or check that they fit.

        Args:
            config: all settings.
            growing: names of lists that may have more entries than they had.

        Raises:
            ArgumentError: the folder holds another run, or something else.
            RunError: the folder cannot be written.
        """
        remove_partials(self.path)
        if self.config.exists():
            self._compare(config, growing)
        elif any(not path.name.startswith(".") for path in _entries(self.path)):
            raise ArgumentError(
                f"--out: {self.path} is not empty and holds no run; choose a new or empty folder."
            )
        if not self.config.exists():
            write_json(self.config, config)
        keep_environment(self.environment)

    def _compare(self, config: Mapping[str, Any], growing: Collection[str]) -> None:
        new = json.loads(json.dumps(config))
        try:
            old = read_object(self.config)
            more = {name: new[name] for name in growing if set(new[name]) > set(old[name])}
            command = new.get("command")
            other = old.get("command") != command
            found = differences(old | more, new)
        except (RunError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self.config}: damaged; remove {self.path} and run again.") from error
        if other:
            raise ArgumentError(
                f"--out: {self.path} holds something other than a run of `hessblocks {command}`; "
                "choose a new or empty folder."
            )
        if found:
            raise ArgumentError(
                f"--out: {self.path} holds a run with other settings ({'; '.join(found)}); "
                "choose another folder or the same settings."
            )
        if more:
            write_json(self.config, config)


@contextmanager
def claimed(
    path: Path, config: Mapping[str, Any], growing: Collection[str] = ()
) -> Iterator[RunFolder]:
    """The run folder, held for this process and prepared; the lock goes with the process.

    Args:
        path: of the folder.
        config: all settings.
        growing: as `RunFolder.prepare` takes it.

    Raises:
        ArgumentError: it holds something else.
        RunError: it cannot be written, or another process writes there.
    """
    with held(path):
        folder = RunFolder(path)
        folder.prepare(config, growing)
        yield folder


def _entries(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.exists() else []
