"""Set glibc's malloc to keep freed memory until a stage ends; only the commands do so."""

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
_keeping: list[ctypes.CDLL] = []
"""The C library, once it keeps freed memory."""


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, since the next step allocates it again.

    Otherwise glibc returns logits, gradients and vectors to the kernel at each step, and the kernel
    clears every page again: a quarter of the processor time of sampled gradients of 135M
    parameters. `return_freed_memory` gives it back between stages, which allocate other sizes. The
    setting lasts until the process ends. A C library without `mallopt` and settings of the user
    are not changed.
    """
    if any(name in os.environ for name in _OWN):
        return
    if os.name != "posix" or not hasattr(library := ctypes.CDLL(None), "mallopt"):
        return
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_MMAP_MAX, _NONE)
    _keeping.append(library)


def return_freed_memory() -> None:
    """Give the memory back that a command kept, by glibc's `malloc_trim`."""
    for library in _keeping:
        library.malloc_trim(0)
