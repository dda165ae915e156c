"""Parts of a block: small frozen dataclasses that build modules and are stored as JSON.

A block gets its parts as arguments (`norm=RMSNorm(eps=1e-8)`), not by switches.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

from hessblocks.errors import ArgumentError, check_name, unknown_name

Self = TypeVar("Self", bound="BlockPart")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockPart:
    """Base class of all parts; subclasses are frozen dataclasses with a `kind`."""

    kind: ClassVar[str] = ""
    _by_kind: ClassVar[dict[str, type[BlockPart]]] = {}

    def __init_subclass__(cls, *, kind: str = "", **keywords: Any) -> None:
        """Register the subclass under `kind`, its name in JSON."""
        super().__init_subclass__(**keywords)
        if kind:
            cls.kind = kind
            BlockPart._by_kind[kind] = cls

    def __post_init__(self) -> None:
        """Check that parts fit their slots and values satisfy `finite`, `above_zero`, `one_of`."""
        cls: Any = type(self)
        for field in dataclasses.fields(self):
            value, name = getattr(self, field.name), f"{self.kind}: {field.name}"
            hint = _hints(cls)[field.name]
            fitting = typing.get_args(hint) or (hint,)
            for slot in fitting:
                is_part = isinstance(slot, type) and issubclass(slot, BlockPart)
                if is_part and not isinstance(value, fitting):
                    parts = sorted(part.__name__ for part in BlockPart.kinds(slot).values())
                    raise ArgumentError(
                        f"{name}: expected one of hessblocks.blocks' {', '.join(parts)}, got "
                        f"{value!r}"
                    )
            choices, above = field.metadata.get("choices"), field.metadata.get("above")
            if hint is bool and type(value) is not bool:
                raise ArgumentError(f"{name}: expected true or false, got {value!r}")
            if choices and value not in choices:
                raise unknown_name(name, str(value), choices)
            if above is None or (value is None and field.metadata["optional"]):
                continue
            words = field.metadata["words"]
            if not (value in words or (_is_finite(value) and value > above)):
                expected = "a number above 0" if above == 0 else "a finite number"
                raise ArgumentError(
                    f"{name}: expected {' or '.join([*words, expected])}, got {value!r}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Convert the part to JSON values: its kind and its fields."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"kind": self.kind} | {
            name: value.to_dict() if isinstance(value, BlockPart) else value
            for name, value in values.items()
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> BlockPart:
        """Build a part from the output of `to_dict`.

        Returns:
            A part of the given kind.

        Raises:
            ArgumentError: unknown kind or field.
        """
        kind = str(values.get("kind"))
        check_name("kind of part", kind, BlockPart._by_kind)
        fields = {
            name: BlockPart.from_dict(value) if isinstance(value, dict) else value
            for name, value in values.items()
            if name != "kind"
        }
        part = BlockPart._by_kind[kind]
        _check_fields(part, fields)
        return part(**fields)

    @staticmethod
    def kinds(base: type[BlockPart]) -> dict[str, type[BlockPart]]:
        """List the kinds of parts that fit a slot.

        Args:
            base: base class of the slot's parts.

        Returns:
            Subclasses of `base` by kind, including users' subclasses.
        """
        return {kind: part for kind, part in BlockPart._by_kind.items() if issubclass(part, base)}

    def replace(self: Self, **fields: Any) -> Self:
        """Copy the part and change fields of the copy.

        Returns:
            The copy, checked like any new part.

        Raises:
            ArgumentError: unknown field; the message lists the known fields.
        """
        _check_fields(type(self), fields)
        return dataclasses.replace(self, **fields)


def _check_fields(part: type[BlockPart], names: Iterable[str]) -> None:
    expected = [field.name for field in dataclasses.fields(part)]
    for name in names:
        check_name(f"field of {part.kind}", name, expected)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def finite(default: float, *, optional: bool = False) -> Any:
    """Declare a field for a finite number, or None if `optional`."""
    metadata = {"above": -math.inf, "optional": optional, "words": ()}
    return dataclasses.field(default=default, metadata=metadata)


def above_zero(default: float | str | None, *others: str) -> Any:
    """Declare a field for a finite number above zero, one of the words `others`, or the default.

    Returns:
        The field.
    """
    words = ((default,) if isinstance(default, str) else ()) + others
    metadata = {"above": 0, "optional": default is None, "words": words}
    return dataclasses.field(default=default, metadata=metadata)


def one_of(*choices: str, default: str = "") -> Any:
    """Declare a field for one of `choices`; the first is the default unless `default` is given."""
    return dataclasses.field(default=default or choices[0], metadata={"choices": choices})


def _is_finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)
