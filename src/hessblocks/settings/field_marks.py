"""Mark what a field of settings may be, beside its type, and hold values to it."""

import math
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar

from hessblocks.errors import ArgumentError, check_name

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may have."""

    holds: Callable[[float], bool]
    """Whether a number is one of them."""
    expected: str
    """Expected value, for errors."""

    def refusal(self, value: float) -> str:
        """Say what was expected and what came; nothing if the value is in the range."""
        return "" if self.holds(value) else f"expected {self.expected}, got {value}."


def at_least(least: int) -> Range:
    """Mark a whole number with the smallest value that it may have."""
    return Range(lambda value: value >= least, f"a whole number of at least {least}")


def above_0(what: str) -> Range:
    """Mark a finite number above 0 with what it is, in the words of an error."""
    return Range(lambda value: 0 < value < math.inf, f"{what} above 0")


LARGEST = 2**63 - 1
SEED = (
    Range(lambda value: value >= 0, "0 or more"),
    Range(lambda value: value <= LARGEST, f"at most {LARGEST}"),
)
"""Range of a random seed; torch takes no larger one."""
Seed = Annotated[int, SEED[0], SEED[1]]


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
        """Write the defaults as help shows them."""
        if len(self.defaults) == 1:
            return f"{next(iter(self.defaults.values())):g}"
        return ", ".join(f"{value:g} for {name}" for name, value in self.defaults.items())


@dataclass(frozen=True)
class Repeated:
    """A tuple whose option is given once for each entry, not as words with commas."""

    name: str
    """Name of the option that gives one entry, without the dashes."""


@dataclass(frozen=True)
class NoOption:
    """Marks a field that is given from Python alone, not as an option of a command."""


@dataclass(frozen=True)
class Kind:
    """The type of a field, and its marks."""

    type: Any
    """Without the marks."""
    marks: tuple[Any, ...]
    """`Range` and the like."""

    @property
    def several(self) -> bool:
        """Tell whether the field is a tuple, which is given as words with commas."""
        return typing.get_origin(self.type) is tuple and not self.mark(Repeated)

    def mark(self, wanted: type[T]) -> T | None:
        """Find the mark of that sort; None where there is none."""
        return next((one for one in self.marks if isinstance(one, wanted)), None)


def kinds(settings: Any) -> dict[str, Kind]:
    """List type and marks of every field of a dataclass, in order."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {field.name: _kind(hints[field.name]) for field in fields(settings)}


def _kind(hint: Any) -> Kind:
    if typing.get_origin(hint) is typing.Annotated:
        return Kind(type=hint.__origin__, marks=hint.__metadata__)
    return Kind(type=hint, marks=())


def make(settings: type[T], values: Mapping[str, Any]) -> T:
    """Make settings from values by name.

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
    """Convert a value to what its field holds: a tuple, for words with commas or a list."""
    if kind.several and isinstance(value, str):
        return words(value)
    return tuple(value) if isinstance(value, list) else value


def words(text: str) -> tuple[str, ...]:
    """Split words that were given with commas; those in brackets belong to a word."""
    found = re.split(r",(?![^\[\]]*\])", text)
    return tuple(word.strip() for word in found if word.strip())


def check_ranges(settings: Any) -> None:
    """Refuse a value outside its range or an unknown name, naming the option.

    Args:
        settings: a dataclass, some of whose fields are marked with `Range` or `OneOf`.

    Raises:
        ArgumentError: names the option and what came.
    """
    for name, kind in kinds(type(settings)).items():
        value, said = getattr(settings, name), option(prefix(settings) + name)
        if choices := kind.mark(OneOf):
            check_name(said, value, choices.names)
        for mark in kind.marks:
            if isinstance(mark, Range) and value is not None and (refusal := mark.refusal(value)):
                raise ArgumentError(f"{said}: {refusal}")


def prefix(settings: Any) -> str:
    """Read the prefix of the options' names of settings that are nested in others."""
    return getattr(settings, "option_prefix", "")


def option(name: str) -> str:
    """Spell the command-line option of a field."""
    return f"--{name.replace('_', '-')}"


def said_again(settings: Any, values: Mapping[str, Any]) -> list[str]:
    """Rebuild the options that give a command these settings; defaults are left out.

    Args:
        settings: a dataclass.
        values: by field, nested ones as mappings, as config.json has them too; what is left out is
            not said.

    Returns:
        Options and their values.
    """
    said: list[str] = []
    for name, kind in kinds(settings).items():
        value = values.get(name)
        if value is None or kind.mark(NoOption):
            continue
        if is_dataclass(kind.type):
            said += said_again(kind.type, value if isinstance(value, Mapping) else {})
        elif own := kind.mark(ByOptimiser):
            default = own.defaults.get(str(values.get("optimiser")), value)
            said += _words(prefix(settings) + name, kind, value, default)
        else:
            said += _words(prefix(settings) + name, kind, value, getattr(settings, name))
    return said


def _words(name: str, kind: Kind, value: Any, default: Any) -> list[str]:
    """Write one option with its value; nothing for the default."""
    entries = tuple(value) if isinstance(value, list | tuple) else (value,)
    if default in (value, entries):
        return []
    if repeated := kind.mark(Repeated):
        return [word for one in entries for word in (option(repeated.name), str(one))]
    return [option(name), *([] if value is True else [",".join(map(str, entries))])]
