"""Set glibc's malloc to keep freed memory; for the commands, never for the library."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Names of settings in glibc's malloc.h."""
_NEVER, _NONE = -1, 0
"""Nothing is given back, and no block is mapped by itself, which is given back when it is freed."""
_OWN = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "GLIBC_TUNABLES",
)
"""Variables with which a user says so himself."""


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, since the next step needs it again.

    glibc otherwise gives logits, gradients and vectors back at each step, and the kernel clears
    every page anew: a quarter of the processor time of sampled gradients of 135M parameters. It
    holds until the process ends. C libraries without `mallopt` are left as they are, and so is what
    the user has set.
    """
    if any(name in os.environ for name in _OWN):
        return
    if os.name != "posix" or not hasattr(library := ctypes.CDLL(None), "mallopt"):
        return
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_MMAP_MAX, _NONE)
