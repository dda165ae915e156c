"""One independent piece of a study: what is measured, and what came out."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, TypeVar

from hessblocks.storage import Row, Scalar, canonical

S = TypeVar("S")
"""The frozen dataclass that holds the settings of a study's points, a field each."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A piece of work that needs no other piece."""

    study: str
    """Name of the study."""
    settings: Any
    """All that the numbers depend on, an instance of the study's dataclass."""
    revision: int = 1
    """Raised when the study computes something else for equal settings."""
    cpus: float = field(default=1, compare=False)
    """Cores to reserve on a cluster."""
    gpus: float = field(default=0, compare=False)
    """Accelerators to reserve on a cluster."""

    @cached_property
    def key(self) -> str:
        """A text that two points share only if they are the same."""
        return canonical(
            {"study": self.study, "revision": self.revision, "settings": plain(self.settings)}
        )

    @property
    def label(self) -> str:
        """The settings, short, for people."""
        return ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in plain(self.settings).items()
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of measuring a point."""

    point: Point
    """The point."""
    rows: tuple[Row, ...] = ()
    """Its measurements; empty where it failed."""
    seconds: float = 0.0
    """Time of the successful attempt."""
    attempts: int = 1
    """Times it was started; more than 1 after a worker died."""
    error: str | None = None
    """Why it failed, or None."""


Measure = Callable[[S], list[Row]]
"""From a point's settings to its rows; a function at the top of a module, so that it can travel."""


def seed_of(*parts: Scalar) -> int:
    """A seed for a random generator that differs whenever a part differs; equal on every machine.

    Returns:
        A whole number below 2⁵⁶.

    Examples:
        >>> seed_of("fig3a", 0) == seed_of("fig3a", 0) != seed_of("fig3a", 1)
        True
    """
    digest = hashlib.sha256(canonical(list(parts)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def plain(settings: Any) -> dict[str, Scalar]:
    """Settings by name: a group of settings is laid flat, and what is None is left out."""
    found: dict[str, Scalar] = {}
    for one in fields(settings):
        value = getattr(settings, one.name)
        if is_dataclass(value):
            found |= plain(value)
        elif value is not None:
            found[one.name] = value
    return found
