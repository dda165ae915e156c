"""What torch cannot do, memory or derivatives, as one sentence that says what to change."""

from __future__ import annotations

import re
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


MISSING = (
    "derivative for .* not implemented|not support backward|double backward|once_differentiable"
)
"""What torch says of operations without a second derivative."""


@contextmanager
def said_in_a_sentence() -> Iterator[None]:
    """Turn an allocation that failed, or a derivative that is missing, into a `RunError`.

    Raises:
        RunError: there was not enough memory, or torch cannot differentiate the model twice.
    """
    try:
        yield
    except HessblocksError:
        raise
    except (RuntimeError, MemoryError) as error:
        if out_of_memory(error):
            raise RunError(
                "curvature: out of memory; lower memory_limit, take shorter sequences or fewer probes, "
                "or leave out the map; what is finished is kept"
            ) from error
        if re.search(MISSING, str(error)):
            raise RunError(
                f"curvature: torch cannot differentiate a part of the model twice "
                f"({str(error).splitlines()[0]}); use another form of it, such as "
                "model.set_attn_implementation('sdpa') for flex attention"
            ) from error
        raise
