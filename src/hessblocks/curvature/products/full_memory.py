"""Running out of memory as one sentence that says what to lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hessblocks.errors import HessblocksError, RunError, out_of_memory


@contextmanager
def said_when_full() -> Iterator[None]:
    """Turn an allocation that failed into a `RunError`.

    Raises:
        RunError: there was not enough memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, HessblocksError) or not out_of_memory(error):
            raise
        raise RunError(
            "curvature: out of memory; lower memory_limit, take shorter sequences or fewer probes, "
            "or leave out the map; what is finished is kept"
        ) from error
