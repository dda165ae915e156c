"""Annotate fields of settings with ranges and choices, and check values against them."""

import math
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

from hessblocks.errors import ArgumentError, check_name

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """Range of a numeric setting."""

    holds: Callable[[float], bool]
    """Tells whether a number is in the range."""
    expected: str
    """Description of the range, for errors."""

    def refusal(self, value: float) -> str:
        """Describe the expected and the given value; empty if the value is in the range."""
        return "" if self.holds(value) else f"expected {self.expected}, got {value}."


def at_least(least: int) -> Range:
    """Make the range of whole numbers from `least` on."""
    return Range(lambda value: value >= least, f"a whole number of at least {least}")


def above_0(quantity: str) -> Range:
    """Make the range of finite numbers above 0; `what` names the quantity in errors."""
    return Range(lambda value: 0 < value < math.inf, f"{quantity} above 0")


LARGEST = 2**63 - 1
SEED = (
    Range(lambda value: value >= 0, "0 or more"),
    Range(lambda value: value <= LARGEST, f"at most {LARGEST}"),
)
"""Ranges of a random seed; torch accepts no larger one."""
Seed = Annotated[int, SEED[0], SEED[1]]


@dataclass(frozen=True)
class OneOf:
    """Choices of a setting."""

    names: tuple[str, ...]
    """All allowed names."""


@dataclass(frozen=True, eq=False)
class ByOptimiser:
    """Default of a setting that depends on the optimiser."""

    defaults: Mapping[str, float]
    """Optimiser → default; a missing optimiser does not have the setting."""

    @property
    def text(self) -> str:
        """Defaults as text for the help."""
        return ", ".join(f"{value:g} for {name}" for name, value in self.defaults.items())


@dataclass(frozen=True)
class Repeated:
    """Mark of a tuple whose option is repeated for each entry, without commas."""

    name: str
    """Name of the option for one entry, without dashes."""


@dataclass(frozen=True)
class NoOption:
    """Mark of a field that can be set only from Python, not by an option."""


@dataclass(frozen=True)
class FieldKind:
    """Type and marks of a field."""

    type: Any
    """Type without the marks."""
    marks: tuple[Any, ...]
    """Marks, such as `Range` and `OneOf`."""

    @property
    def several(self) -> bool:
        """True if the field is a tuple whose option takes words with commas."""
        return typing.get_origin(self.type) is tuple and not self.mark(Repeated)

    def mark(self, wanted: type[T]) -> T | None:
        """Find the mark of a class; None if there is none."""
        return next((mark for mark in self.marks if isinstance(mark, wanted)), None)


def kinds(settings: Any) -> dict[str, FieldKind]:
    """Map each field of a dataclass, in order, to its type and marks."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {field.name: _kind(hints[field.name]) for field in fields(settings)}


def _kind(hint: Any) -> FieldKind:
    if typing.get_origin(hint) is typing.Annotated:
        return FieldKind(type=hint.__origin__, marks=hint.__metadata__)
    return FieldKind(type=hint, marks=())


def make(settings: type[T], values: Mapping[str, Any]) -> T:
    """Make settings from values by field name.

    Args:
        settings: dataclass. If it has a class method `chosen`, this is called with the values.
        values: field → value; missing fields have their defaults. A tuple may be a text with
            commas.

    Returns:
        The settings.

    Raises:
        ArgumentError: a name is not a field, a number is of another type, or a value is outside
            its range.
    """
    fields_of = kinds(settings)
    for name in values:
        check_name("setting", name, fields_of)
    read = {
        name: _read(option(prefix(settings) + name), value, fields_of[name])
        for name, value in values.items()
    }
    built: T = getattr(settings, "chosen", settings)(**read)
    return built


def _read(flag: str, value: Any, kind: FieldKind) -> Any:
    """Convert a text with commas, or a list, to a tuple; read a number strictly."""
    if kind.several and isinstance(value, str):
        return words(value)
    if isinstance(value, list):
        return tuple(value)
    hints = {kind.type} if isinstance(kind.type, type) else {*typing.get_args(kind.type)}
    if isinstance(value, tuple) or not {int, float, bool} & hints:
        return value
    from hessblocks.typed import JSON, typed  # the settings alone need no library

    value = value.item() if hasattr(value, "item") else value  # a number of numpy or torch
    try:
        return typed(JSON, kind.type, value)
    except ValueError as error:
        raise ArgumentError(f"{flag}: {error}.") from error


def words(text: str) -> tuple[str, ...]:
    """Split a text at its commas, except at commas inside brackets."""
    return tuple(word.strip() for word in re.split(r",(?![^\[\]]*\])", text) if word.strip())


def check_ranges(settings: Any) -> None:
    """Refuse a value outside its range, or a name that is no choice.

    Args:
        settings: instance of a dataclass with fields that are marked with `Range` or `OneOf`.

    Raises:
        ArgumentError: a value is refused; the message has the option and the value.
    """
    for name, kind in kinds(type(settings)).items():
        value, flag = getattr(settings, name), option(prefix(settings) + name)
        if choices := kind.mark(OneOf):
            for word in value if kind.several else (value,):
                check_name(flag, word, choices.names)
        for mark in kind.marks:
            if isinstance(mark, Range) and value is not None and (refusal := mark.refusal(value)):
                raise ArgumentError(f"{flag}: {refusal}")


def prefix(settings: Any) -> str:
    """Return the prefix of option names, which nested settings may have."""
    return getattr(settings, "option_prefix", "")


def option(name: str) -> str:
    """Return the command-line option of a field: `batch_size` is --batch-size."""
    return f"--{name.replace('_', '-')}"
