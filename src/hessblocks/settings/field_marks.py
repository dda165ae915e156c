"""What a field of settings may be: marks beside its type, and how values are held to them."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from hessblocks.errors import ArgumentError, check_name

T = TypeVar("T")


@dataclass(frozen=True)
class AtLeast:
    """The smallest value that a setting may have."""

    least: int
    """That value."""
    expected: str = ""
    """What an error says was expected; by default a whole number of at least so much."""
    most: int | None = None
    """The largest value."""

    def refusal(self, value: int) -> str:
        """Say what was expected and what came; nothing where the value is in the range."""
        if value < self.least:
            expected = self.expected or f"a whole number of at least {self.least}"
            return f"expected {expected}, got {value}."
        if self.most is not None and value > self.most:
            return f"expected at most {self.most}, got {value}."
        return ""


SEED = AtLeast(0, expected="0 or more", most=2**63 - 1)
"""Of a random seed; torch takes no larger one."""


@dataclass(frozen=True)
class OneOf:
    """The names that a setting may have."""

    names: tuple[str, ...]
    """All of them."""


@dataclass(frozen=True, eq=False)
class ByOptimiser:
    """A setting whose default depends on the optimiser."""

    defaults: Mapping[str, float]
    """By optimiser; one that is missing has no such setting."""

    @property
    def text(self) -> str:
        """The defaults as help shows them."""
        if len(self.defaults) == 1:
            return f"{next(iter(self.defaults.values())):g}"
        return ", ".join(f"{value:g} for {name}" for name, value in self.defaults.items())


@dataclass(frozen=True)
class Repeated:
    """A tuple whose option is given once for each entry, not as words with commas."""

    name: str
    """Of the option, without the dashes; it stands for one entry."""


@dataclass(frozen=True)
class Prefix:
    """What stands before the names of nested settings where they are options of a command."""

    text: str
    """Such as curvature_."""


@dataclass(frozen=True)
class NoOption:
    """Marks a field that is given from Python alone, not as an option of a command."""


@dataclass(frozen=True)
class Kind:
    """The type of a field, and its marks."""

    type: Any
    """Without the marks."""
    marks: tuple[Any, ...]
    """`AtLeast` and the like."""

    @property
    def several(self) -> bool:
        """Whether it is a tuple, which is given as words with commas."""
        return typing.get_origin(self.type) is tuple and not self.mark(Repeated)

    @property
    def prefix(self) -> str:
        """What stands before the names of what is nested in it."""
        found = self.mark(Prefix)
        return found.text if found else ""

    def mark(self, wanted: type[T]) -> T | None:
        """The mark of that sort; None where there is none."""
        return next((one for one in self.marks if isinstance(one, wanted)), None)


def kinds(settings: Any) -> dict[str, Kind]:
    """Type and marks of every field of a dataclass, in order."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {field.name: _kind(hints[field.name]) for field in fields(settings)}


def _kind(hint: Any) -> Kind:
    if typing.get_origin(hint) is typing.Annotated:
        return Kind(type=hint.__origin__, marks=hint.__metadata__)
    return Kind(type=hint, marks=())


def make(settings: type[T], values: Mapping[str, Any]) -> T:
    """Settings from values by name.

    Args:
        settings: a dataclass. Where it has a method `chosen`, that takes the values.
        values: by field; what is left out has its default. A tuple may be words with commas.

    Returns:
        The settings.

    Raises:
        ArgumentError: a name that is no field, or a value outside its range.
    """
    known = kinds(settings)
    for name in values:
        check_name("setting", name, known)
    whole = {name: _listed(value, known[name]) for name, value in values.items()}
    made: T = getattr(settings, "chosen", settings)(**whole)
    return made


def _listed(value: Any, kind: Kind) -> Any:
    """A value as its field holds it: a tuple, where an option gave words with commas or a list."""
    if kind.several and isinstance(value, str):
        return words(value)
    return tuple(value) if isinstance(value, list) else value


def words(text: str) -> tuple[str, ...]:
    """Words that were given with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def check_ranges(settings: Any, prefix: str = "") -> None:
    """Refuse a value outside its range or an unknown name, naming the option.

    Args:
        settings: a dataclass, some of whose fields are marked with `AtLeast` or `OneOf`.
        prefix: of the options' names.

    Raises:
        ArgumentError: names the option and what came.
    """
    for name, kind in kinds(type(settings)).items():
        value, said = getattr(settings, name), option(prefix + name)
        if choices := kind.mark(OneOf):
            check_name(said, value, choices.names)
        mark = kind.mark(AtLeast)
        if mark and value is not None and (refusal := mark.refusal(value)):
            raise ArgumentError(f"{said}: {refusal}")


def option(name: str) -> str:
    """The command-line option of a field."""
    return f"--{name.replace('_', '-')}"
