"""Cutting a range into pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator


def chunks(length: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover range(length)."""
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
