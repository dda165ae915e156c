"""Set glibc's malloc to keep freed memory; for the commands, never for the library."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of settings in glibc's malloc.h."""
_KEPT, _LARGE = 2**28, 2**25
"""Bytes: the most that stays with the process, and from which a block is mapped by itself and given
back at once; glibc's own rule reaches that far too."""
_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables with which a user says so himself."""


def keep_freed_memory() -> None:
    """Let this process keep up to 256 MiB that it frees, since the next step needs them again.

    glibc otherwise gives logits and their gradients back at each step, and the kernel clears every
    page anew. C libraries without `mallopt` are left as they are, and so is what the user has set.
    It holds until the process ends.
    """
    if any(name in os.environ for name in _OWN):
        return
    if os.name != "posix" or not hasattr(library := ctypes.CDLL(None), "mallopt"):
        return
    library.mallopt(_TRIM_THRESHOLD, _KEPT)
    library.mallopt(_MMAP_THRESHOLD, _LARGE)
