"""Settings of a point read back with their types."""

from __future__ import annotations

from collections.abc import Mapping

from hessblocks.studies.point import Scalar


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
