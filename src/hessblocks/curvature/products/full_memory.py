"""Running out of memory as one sentence that says what to lower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hessblocks.errors import ArgumentError, HessblocksError, RunError, out_of_memory


def check_memory_limit(limit: object) -> int | None:
    """The limit in bytes.

    Returns:
        The limit as it came.

    Raises:
        ArgumentError: not a whole number above 0.
    """
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ArgumentError(
            f"memory_limit: expected bytes, a whole number above 0 (2 GB is 2_000_000_000), got {limit!r}"
        )
    return limit


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
