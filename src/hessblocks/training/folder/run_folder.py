"""A run folder: its files, who may write there, and whether it was made with the same settings."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError, RunError
from hessblocks.settings import with_defaults
from hessblocks.storage import differences, held, keep_environment, remove_partials, write_json


@dataclass(frozen=True)
class RunFolder:
    """The files of a run or a comparison."""

    path: Path
    """The folder."""

    @property
    def config(self) -> Path:
        """All settings."""
        return self.path / "config.json"

    @property
    def environment(self) -> Path:
        """Versions and hardware."""
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        """Losses along training, one a line."""
        return self.path / "metrics.jsonl"

    @property
    def observations(self) -> Path:
        """Gains, signal and curvature along training, one value a line."""
        return self.path / "observations.jsonl"

    @property
    def budget(self) -> Path:
        """What each preset of a matched comparison may spend, and its number of steps."""
        return self.path / "budget.json"

    @property
    def results(self) -> Path:
        """Measured values, one a row."""
        return self.path / "results.csv"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of a run under way."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The trained model and its tokeniser, as Hugging Face reads them."""
        return self.path / "model"

    def run(self, preset: str, seed: int) -> RunFolder:
        """The folder of one run of a comparison."""
        return RunFolder(self.path / "runs" / f"{preset}-seed{seed}")

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
            old = with_defaults(json.loads(self.config.read_text(encoding="utf-8")))
            more = {name: new[name] for name in growing if set(new[name]) > set(old[name])}
            found = differences(old | more, new)
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            raise RunError(f"{self.config}: damaged; remove {self.path} and run again.") from error
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
