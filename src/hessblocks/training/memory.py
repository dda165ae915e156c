"""The most memory in use, in bytes: of the accelerator, or of this process."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def reset_peak(device: str) -> None:
    """Count from now on; where the system cannot, the peak is that of the whole process."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5", encoding="ascii")


def peak_memory(device: str) -> int:
    """Bytes at most in use since `reset_peak`.

    On a cpu it is the resident memory of the process, libraries included.
    """
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    with contextlib.suppress(OSError, StopIteration):
        lines = _STATUS.read_text(encoding="ascii").splitlines()
        line = next(line for line in lines if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
