"""Point: an independent measurement of a study, and its outcome."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, TypeVar

from hessblocks.storage import Row, Scalar, canonical

S = TypeVar("S")
"""Frozen dataclass with the settings of a study's points."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Measurement that does not depend on other points."""

    study: str
    """Name of the study."""
    settings: Any
    """Everything that the results depend on: an instance of the study's dataclass."""
    revision: int = 1
    """Revision of the measurement; increased when equal settings give other results."""
    cpus: float = field(default=1, compare=False)
    """Cores to reserve on a cluster."""
    gpus: float = field(default=0, compare=False)
    """Accelerators to reserve on a cluster."""

    @cached_property
    def key(self) -> str:
        """Text that identifies a point; equal only for equal points."""
        return canonical(
            {"study": self.study, "revision": self.revision, "settings": plain(self.settings)}
        )

    @property
    def label(self) -> str:
        """Short description of the settings."""
        return ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in plain(self.settings).items()
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of measuring a point."""

    point: Point
    """The measured point."""
    rows: tuple[Row, ...] = ()
    """Measurements; empty if the point failed."""
    seconds: float = 0.0
    """Duration of the successful attempt, in seconds."""
    attempts: int = 1
    """Number of attempts; more than 1 if a worker died."""
    error: str | None = None
    """Error message; None if the point succeeded."""


Measure = Callable[[S], list[Row]]
"""Function from a point's settings to its rows, at module level, so that it can be pickled."""


def seed_of(*parts: Scalar) -> int:
    """Derive a seed for a random generator from values; equal on every machine.

    Returns:
        An integer below 2⁵⁶.

    Examples:
        >>> seed_of("fig3a", 0) == seed_of("fig3a", 0) != seed_of("fig3a", 1)
        True
    """
    digest = hashlib.sha256(canonical(list(parts)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def plain(settings: Any) -> dict[str, Scalar]:
    """Map names to settings; groups of settings are flattened, and None is left out."""
    values: dict[str, Scalar] = {}
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        if is_dataclass(value):
            values |= plain(value)
        elif value is not None:
            values[entry.name] = value
    return values
