"""Read dataclasses from JSON values or CSV text with cattrs, strictly: a bool is not a number.

`JSON` reads values of a file that holds all fields, `LINES` JSON lines with null for NaN, `TEXT`
cells of CSV. Nothing in a file is executed.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from cattrs import Converter, ForbiddenExtraKeysError, transform_error
from cattrs.gen import make_dict_structure_fn

T = TypeVar("T")
Structure = Callable[[Any, Any], Any]
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
WORDS |= {NoneType: "nothing"}
"""Names of types in messages."""


def typed(converter: Converter, kind: type[T], values: Any) -> T:
    """Build an instance of a type, such as a dataclass, from plain values.

    Args:
        converter: `JSON`, `LINES` or `TEXT`.
        kind: the type.
        values: field → value for a dataclass.

    Returns:
        The instance.

    Raises:
        ValueError: a value does not fit; the message names the field.
    """
    try:
        return converter.structure(values, kind)
    except RecursionError:
        raise
    except Exception as error:  # a constructor may raise anything
        reason, _, field = transform_error(error, "", _reason)[0].partition(" @ .")
        named = field and not reason.startswith(f"{field} ")
        raise ValueError(f"{field}: {reason}" if named else reason.removesuffix(" @ ")) from error


def _reason(error: BaseException, _: type | None) -> str:
    if isinstance(error, ForbiddenExtraKeysError):
        return f"unknown field {', '.join(sorted(error.extra_fields))}"
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error)


def _exactly(value: Any, kind: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"expected {_words(kind)}, got {value!r:.60}")
    return value


def _words(kind: Any) -> str:
    return WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _number(value: Any, _: Any) -> float:
    """Accept a number, or a text of `Tabular.save` for one that JSON lacks."""
    if type(value) is str and value in ("nan", "inf", "-inf"):
        return float(value)
    if type(value) not in (int, float):
        raise ValueError(f"expected a number, got {value!r:.60}")
    return value  # type: ignore[no-any-return]


def _number_or_null(value: Any, kind: Any) -> float:
    return math.nan if value is None else _number(value, kind)


def _cell(value: str, kind: Any) -> Any:
    """Convert the text of a cell; a number of digits alone is an int."""
    if kind is NoneType and value == "":
        return None
    with contextlib.suppress(ValueError):
        if kind is not NoneType:
            return int(value) if kind is int or value.isdecimal() else float(value)
    raise ValueError(f"expected {_words(kind)}, got {value!r:.60}")


def _union(hint: Any, converter: Converter) -> Structure:
    """Read as None if that fits, else as the first type of the union that fits."""
    kinds = sorted(get_args(hint), key=lambda kind: kind is not NoneType)

    def structure(value: Any, _: Any) -> Any:
        for kind in kinds:
            with contextlib.suppress(Exception):
                return converter.structure(value, kind)
        names = " or ".join(map(_words, get_args(hint)))
        raise ValueError(f"expected {names}, got {value!r:.60}")

    return structure


def _sequence(hint: Any, converter: Converter) -> Structure:
    """Read a list; cattrs would also read the letters of a text."""
    kinds, build = get_args(hint), tuple if get_origin(hint) is tuple else list

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise TypeError(f"expected a list, got {value!r:.60}")
        hints = kinds if build is tuple and ... not in kinds else repeat(kinds[0], len(value))
        return build(
            converter.structure(item, kind) for item, kind in zip(value, hints, strict=True)
        )

    return structure


def _mapping(hint: Any, converter: Converter) -> Structure:
    """Read an object, or a list of pairs, whose keys need not be texts."""
    key_kind, value_kind = get_args(hint)

    def structure(value: Any, _: Any) -> Any:
        pairs = value.items() if isinstance(value, dict) else value
        return {
            converter.structure(key, key_kind): converter.structure(item, value_kind)
            for key, item in pairs
        }

    return structure


def _dataclass(kind: Any, converter: Converter) -> Structure:
    """Read a dataclass from an object."""
    read = make_dict_structure_fn(kind, converter)

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"expected a JSON object, got {value!r:.60}")
        return read(value, kind)

    return structure


FACTORIES: tuple[tuple[tuple[Any, ...], Any], ...] = (
    ((Union, UnionType), _union),
    ((tuple, Sequence, list), _sequence),
    ((Mapping, dict), _mapping),
)
"""Generic types → factory of their hooks."""


def _is_of(origins: tuple[Any, ...], hint: Any) -> bool:
    return get_origin(hint) in origins


def _converter(hooks: Mapping[type, Structure], *, strict: bool = False) -> Converter:
    converter = Converter(forbid_extra_keys=strict)
    for kind in (*WORDS, Path):
        converter.register_structure_hook(kind, hooks.get(kind, _exactly))
    for origins, factory in FACTORIES:
        converter.register_structure_hook_factory(partial(_is_of, origins))(factory)
    converter.register_structure_hook_factory(is_dataclass)(_dataclass)
    return converter


JSON = _converter({float: _number, Path: lambda value, _: Path(value)}, strict=True)
LINES = _converter({float: _number_or_null})
TEXT = _converter({int: _cell, float: _cell, NoneType: _cell})
