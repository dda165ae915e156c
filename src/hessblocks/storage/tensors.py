"""Tensors of a run in one safetensors file, tagged with the run and a SHA-256 of their bytes."""

import hashlib
from pathlib import Path

import safetensors.torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hessblocks.errors import RunError
from hessblocks.storage.files import atomic_path

NamedTensors = dict[str, Shaped[Tensor, "..."]]


def write_tensors(path: Path, tensors: NamedTensors, run: str) -> None:
    """Write tensors, whole or not at all.

    Args:
        path: file to write.
        tensors: tensors by name.
        run: identity of the run.

    Raises:
        RunError: the file cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(safetensors.torch.save(tensors, metadata={"of": _tag(run, tensors)}))


def read_tensors(path: Path, run: str) -> NamedTensors:
    """Read the tensors of a run.

    Args:
        path: file of `write_tensors`.
        run: identity of the run.

    Returns:
        The tensors by name.

    Raises:
        RunError: the file is damaged, or of another run.
    """
    try:
        tensors, metadata = opened(path)
        if metadata == {"of": _tag(run, tensors)}:
            return tensors
    except (SafetensorError, OSError):
        pass
    raise RunError(f"{path}: damaged, or of another run; remove it and run the same command again.")


def opened(path: Path) -> tuple[NamedTensors, dict[str, str]]:
    """Read the tensors of a safetensors file by name, and its metadata."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def _tag(run: str, tensors: NamedTensors) -> str:
    # safetensors itself has no checksum
    return f"{run} {hashlib.sha256(safetensors.torch.save(tensors)).hexdigest()}"
