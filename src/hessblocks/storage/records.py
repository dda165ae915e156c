"""Objects from what a file says of them: JSON values or the texts of a csv file, by the fields' types."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from hessblocks.storage.files import damaged

Record = TypeVar("Record")


def records(
    kind: type[Record], path: Path, lines: Iterator[tuple[int, Mapping[str, Any]]]
) -> Iterator[Record]:
    """An object of each line; what it has besides the fields is left alone.

    Args:
        kind: a dataclass whose fields are str, int or float, or None.
        path: where the lines come from.
        lines: line number and values by name; a csv file's empty text stands for None.

    Raises:
        RunError: a field is missing or of another type; the message names file and line.
    """
    for line, values in lines:
        try:
            yield kind(**{name: read(values[name]) for name, read in _asked(kind, values)})
        except KeyError as error:
            raise damaged(path, line, f"{error.args[0]} is missing") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise damaged(path, line, str(error)) from error


def _asked(kind: Any, values: Mapping[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, read, needed in _readers(kind):
        if needed or name in values:
            yield name, read


@functools.cache
def _readers(kind: type[Any]) -> tuple[tuple[str, Callable[..., Any], bool], ...]:
    """Name, reader, and whether it must be there, of each field."""
    hints = get_type_hints(kind)
    return tuple(
        (one.name, _reader(hints[one.name]), one.default is MISSING) for one in fields(kind)
    )


def _reader(hint: Any) -> Callable[[Any], Any]:
    types = get_args(hint) or (hint,)
    (plain,) = (one for one in types if one is not NoneType)
    read: Callable[[Any], Any] = _number if plain is float else plain
    if NoneType not in types:
        return read
    return lambda value: None if value is None or value == "" else read(value)


def _number(value: object) -> float:
    """A number, whole where it is written so; null stands for a value that is not a number."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"expected a number, got {value!r}")
    return int(value) if isinstance(value, str) and value.isdecimal() else float(value)
