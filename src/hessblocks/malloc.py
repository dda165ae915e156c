"""Set glibc's malloc to keep freed memory; only the commands do so, not the library."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h."""
_NEVER, _NONE = -1, 0
"""Never trim the heap, and map no block by itself: a freed mapping goes back to the kernel."""
_OWN = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "GLIBC_TUNABLES",
)
"""Environment variables with which a user configures malloc."""


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, since the next step allocates it again.

    Otherwise glibc returns logits, gradients and vectors to the kernel at each step, and the kernel
    clears every page again: a quarter of the processor time of sampled gradients of 135M
    parameters. The setting lasts until the process ends. A C library without `mallopt` and settings
    of the user are not changed.
    """
    if any(name in os.environ for name in _OWN):
        return
    if os.name != "posix" or not hasattr(library := ctypes.CDLL(None), "mallopt"):
        return
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_MMAP_MAX, _NONE)
