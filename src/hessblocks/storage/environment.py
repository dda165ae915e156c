"""Record versions and hardware of a run, nothing that names the machine or its user."""

import contextlib
import os
import platform
import subprocess
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hessblocks._version import __version__
from hessblocks.errors import RunError, main_memory
from hessblocks.storage.config import differences
from hessblocks.storage.files import read_object, write_json

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
