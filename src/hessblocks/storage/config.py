"""Read the config.json of a run, say how two of them differ, and record versions and hardware."""

import contextlib
import os
import platform
import subprocess
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hessblocks._version import __version__
from hessblocks.errors import ArgumentError, RunError, main_memory
from hessblocks.storage.files import damaged, read_object, stays_inside, write_json


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a command, read from its folder."""

    command: str
    """The command that made the folder, such as `demo`."""
    presets: tuple[str, ...]
    """The blocks that were asked for, in their order."""
    seeds: tuple[int, ...]
    """The random seeds that were asked for."""
    values: Mapping[str, Any]
    """The whole file."""

    def section(self, name: str) -> Mapping[str, Any]:
        """Read one section (`model`, `data`, `training`, `curvature`); empty if absent."""
        section = self.values.get(name)
        return section if isinstance(section, dict) else {}


def read_settings(path: Path) -> Settings:
    """Read the settings of one run or of a comparison.

    Returns:
        Command, presets and seeds, and the whole file beside them.

    Raises:
        ArgumentError: it is of what has no blocks side by side: a saved model, or signal alone.
        RunError: the file is damaged, or names a block by what is a path.
    """
    values = read_object(path)
    presets = values.get("presets", [values["preset"]] if "preset" in values else [])
    seeds = values.get("seeds", [values["seed"]] if "seed" in values else [])
    if values.get("command") == "signal":
        raise ArgumentError(
            f"DIR: {path.parent} is of `hessblocks signal`, which has no page; its figures lie in "
            "figures/, and the same command makes them anew."
        )
    if "model_type" in values:
        raise ArgumentError(
            f"DIR: {path.parent} is a saved model, which has no page; give the folder of its run."
        )
    if not presets:
        raise damaged(
            path, None, "expected `preset` or `presets`, as a run or a comparison writes them"
        )
    if not isinstance(presets, list) or not isinstance(seeds, list):
        raise damaged(path, None, "expected lists under `presets` and `seeds`")
    for preset in presets:
        if not stays_inside(preset):
            raise damaged(path, None, f"`presets`: expected names of blocks, got {preset!r:.100}")
    try:
        return Settings(
            command=str(values.get("command", "")),
            presets=tuple(presets),
            seeds=tuple(map(int, seeds)),
            values=values,
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise damaged(path, None, f"`seeds`: expected whole numbers, got {seeds!r}") from error


def run_path(folder: Path, preset: str, seed: int) -> Path:
    """Make the path under which a comparison keeps a run.

    Args:
        folder: folder of the comparison.
        preset: as it was asked for; `read_settings` lets no path pass as the name of one.
        seed: seed of the run.

    Returns:
        A folder below `folder`.
    """
    return folder / "runs" / f"{preset}-seed{seed}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List each setting that differs, as "training.steps is 300, was 200"."""
    found = []
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += differences(before, now, f"{prefix}{name}.")
        elif before != now:
            found.append(f"{prefix}{name} is {now!r}, was {before!r}")
    return found


PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy")


class EnvironmentWarning(UserWarning):
    """Numbers go on with other versions or on other hardware than they began with."""


def keep_environment(path: Path) -> None:
    """Write what a folder's numbers are computed with, unless it is written already and whole.

    Args:
        path: environment.json of the folder.

    Raises:
        RunError: it cannot be written.
    """
    try:
        read_object(path)
    except RunError:
        write_json(path, environment())


def warn_of_another_environment(path: Path) -> None:
    """Warn that the run goes on with other versions or hardware than it began with.

    Raises:
        RunError: environment.json is damaged.
    """
    found = differences(read_object(path), environment())
    if found:
        warnings.warn(
            f"--out: {path.parent.name} was begun elsewhere ({'; '.join(found)}); its numbers may "
            "differ from those of an undisturbed run",
            EnvironmentWarning,
            stacklevel=4,
        )


def read_environment(folder: Path) -> dict[str, Any]:
    """Read environment.json of a folder; empty where it is missing.

    Returns:
        Versions and hardware by name.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / "environment.json"
    return read_object(path) if path.is_file() else {}


def environment() -> dict[str, Any]:
    """Collect versions, hardware and, in a git checkout of hessblocks, its commit."""
    import torch

    return {
        "hessblocks": __version__,
        "commit": _commit(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory": main_memory(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        # of float32 training; a key of its own where there is an accelerator
        **({"products of training": "tf32"} if torch.cuda.is_available() else {}),
    }


def _processor() -> str:
    """Read the model of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Read the commit of the checkout that tracks this file; `-dirty` where it was edited."""
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["git", "-C", str(folder), *arguments]
        found = subprocess.check_output(words, stderr=subprocess.DEVNULL, text=True, timeout=10)
        return found.strip()
    return None
