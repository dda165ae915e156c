"""One independent piece of a study: what is measured, and what came out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hessblocks.storage import Row, Scalar


@dataclass(frozen=True, kw_only=True)
class Point:
    """A piece of work that needs no other piece."""

    study: str
    """Name of the study."""
    settings: Mapping[str, Scalar]
    """All that the numbers depend on."""
    revision: int = 1
    """Raised when the study computes something else for equal settings."""
    cpus: float = field(default=1, compare=False)
    """Cores to reserve on a cluster."""
    gpus: float = field(default=0, compare=False)
    """Accelerators to reserve on a cluster."""

    @property
    def key(self) -> str:
        """A text that two points share only if they are the same."""
        return canonical(
            {"study": self.study, "revision": self.revision, "settings": dict(self.settings)}
        )

    @property
    def label(self) -> str:
        """The settings, short, for people."""
        return ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.settings.items()
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a point."""

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


Measure = Callable[[Mapping[str, Scalar]], list[Row]]
"""From a point's settings to its rows; a function at the top of a module, so that it can travel."""


def canonical(value: Any) -> str:
    """`value` as JSON of one spelling: sorted names, no spaces, only finite numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def seed_of(*parts: Scalar) -> int:
    """A seed for a random generator that differs whenever a part differs; equal on every machine.

    >>> seed_of("fig3a", 0) == seed_of("fig3a", 0) != seed_of("fig3a", 1)
    True
    """
    digest = hashlib.sha256(canonical(list(parts)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def whole(values: Mapping[str, Scalar], name: str) -> int:
    """The whole number of that name."""
    value = values[name]
    assert isinstance(value, int), f"{name} is {value!r}"
    return value


def number(values: Mapping[str, Scalar], name: str) -> float:
    """The number of that name."""
    value = values[name]
    assert isinstance(value, int | float), f"{name} is {value!r}"
    return float(value)


def word(values: Mapping[str, Scalar], name: str) -> str:
    """The text of that name."""
    value = values[name]
    assert isinstance(value, str), f"{name} is {value!r}"
    return value
