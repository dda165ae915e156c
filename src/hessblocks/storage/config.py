"""Read config.json of a run, compare two of them, and record versions and hardware."""

import contextlib
import os
import platform
import reprlib
import subprocess
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from hessblocks._version import __version__
from hessblocks.errors import ArgumentError, RunError, main_memory
from hessblocks.storage.files import damaged, read_object, stays_inside, write_json
from hessblocks.typed import JSON, typed


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a command, read from its folder."""

    command: str
    """Command that made the folder, such as `demo`."""
    presets: tuple[str, ...]
    """Names of the blocks, in the given order."""
    seeds: tuple[int, ...]
    """Random seeds of the runs."""
    values: Mapping[str, Any]
    """Content of the whole file."""

    def section(self, name: str) -> Mapping[str, Any]:
        """Read one section (`model`, `data`, `training`, `curvature`); empty if absent."""
        section = self.values.get(name)
        return section if isinstance(section, dict) else {}


def read_settings(path: Path) -> Settings:
    """Read the settings of one run or of a comparison.

    Returns:
        Command, presets, seeds, and the whole file.

    Raises:
        ArgumentError: the folder is a saved model, or of `hessblocks signal`; neither has a page.
        RunError: the file is damaged, or a block's name is a path.
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
        expected = "expected `preset` or `presets`, as a run or a comparison writes them"
        raise damaged(path, None, expected)
    if not isinstance(presets, list) or not all(map(stays_inside, presets)):
        raise damaged(path, None, f"`presets`: expected names of blocks, got {presets!r:.100}")
    try:
        numbers = typed(JSON, tuple[int, ...], seeds)
    except ValueError as error:
        raise damaged(path, None, f"`seeds`: {error}") from error
    command = str(values.get("command", ""))
    return Settings(command=command, presets=tuple(presets), seeds=numbers, values=values)


def run_path(folder: Path, preset: str, seed: int) -> Path:
    """Return the path of a run in the folder of a comparison.

    Args:
        folder: folder of the comparison.
        preset: name of the block; `read_settings` refuses a path as a name.
        seed: seed of the run.

    Returns:
        A path below `folder`.
    """
    return folder / "runs" / f"{preset}-seed{seed}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List each setting that differs, as "training.steps is 300, was 200"; long values are cut."""
    texts = []
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            texts += differences(before, now, f"{prefix}{name}.")
        elif before != now:
            texts.append(f"{prefix}{name} is {reprlib.repr(now)}, was {reprlib.repr(before)}")
    return texts


COMMAND = "command.json"
"""File with the words of the command that made a folder."""
PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy")


class EnvironmentWarning(UserWarning):
    """Warning that a run resumes with other versions or hardware than at its start."""


def keep_environment(path: Path) -> None:
    """Write versions and hardware to environment.json, unless the file is there and readable.

    Args:
        path: path of environment.json.

    Raises:
        RunError: the file cannot be written.
    """
    try:
        read_object(path)
    except RunError:
        write_json(path, environment())


def warn_of_another_environment(path: Path) -> None:
    """Warn if a run resumes with other versions or hardware than at its start.

    Raises:
        RunError: environment.json is damaged.
    """
    if differing := differences(read_object(path), environment()):
        warnings.warn(
            f"--out: {path.parent.name} was begun in another environment ({'; '.join(differing)}), "
            "and goes on with slightly other numbers than without the change",
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
    }


def _processor() -> str:
    """Read the model name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Read the git commit of the checkout that tracks this file; `-dirty` if it has edits."""
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["git", "-C", str(folder), *arguments]
        output = subprocess.check_output(words, stderr=subprocess.DEVNULL, text=True, timeout=10)
        return output.strip()
    return None
