"""Block configuration: the parts of all layers, and functions that set slots by path."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hessblocks.blocks.block_fields import BlockFields
from hessblocks.blocks.parts import BlockPart
from hessblocks.blocks.rules import first_refusal
from hessblocks.errors import ArgumentError, check_name
from hessblocks.storage import parse_json

Slots = Mapping[str, Any] | Iterable[str | tuple[str, Any]] | None
"""Values by path: a mapping (`{"attention.query.init": "zeros"}`), pairs or texts `path=value`."""
SIZES = ("width", "heads", "mlp_width")
"""Sizes of a block; the edits of presets may depend on them."""
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
_ITSELF = object()
"""Key of a field's value in the tree of paths; the other keys are names of nested fields."""


@dataclass(frozen=True, kw_only=True)
class BlockConfig(BlockFields, kind="block"):
    """Configuration of a transformer block: its parts and sizes.

    sequential, pre:  x̂ = attention_branch(attention(norm(x)), x)
                      out = mlp_branch(mlp(norm(x̂)), x̂)
    sequential, post: x̂ = norm(attention_branch(attention(x), x))
                      out = norm(mlp_branch(mlp(x̂), x̂))
    parallel:         out = attention_branch(attention(n), x) + mlp_branch(mlp(n)), n = norm(x)
    with an embedding_skip, gain · x + skip · x₀ replaces x everywhere; x₀ is the embedding
    branch(f, x) = skip · x + gain · norm(f), where norm is the branch's (none by default)

    A layer without attention or without an MLP omits the line of that sub-block.

    Source: He & Hofmann (2024), equations 1 and 3, section 4.

    Examples:
        >>> import hessblocks as hb
        >>> from hessblocks.blocks import Branch
        >>> block = hb.BlockConfig(width=16, heads=2)  # pre-LN
        >>> skipless = block.replace(attention_branch=Branch(skip=0.0))
        >>> parallel = block.replace(layout="parallel", mlp_branch=Branch(skip=0.0))
        >>> hb.build(parallel, depth=2, vocab_size=20, context=8).num_parameters()
        6512
    """

    def __post_init__(self) -> None:
        """Check sizes, parts and combinations."""
        super().__post_init__()
        for name in ("width", "heads", "key_value_heads", "head_width", "mlp_width"):
            if (value := getattr(self, name)) is not None:
                check_positive(name, value)
        if self.attention.window is not None:
            check_positive("attention.window", self.attention.window)
        if (reason := first_refusal(self)) is not None:
            raise UnfitPartsError(reason)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> BlockConfig:
        """Build a configuration from the output of `to_dict`."""
        config = BlockPart.from_dict(values)
        if not isinstance(config, BlockConfig):
            raise ArgumentError(
                f"block: expected a description of kind 'block', got {values.get('kind')!r}"
            )
        return config


class UnfitPartsError(ArgumentError):
    """Error for incompatible parts of a block."""


def check_positive(name: str, value: Any) -> None:
    """Check that a value is an integer of at least 1.

    Raises:
        ArgumentError: it is not; the message names the argument and the value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{name}: expected a whole number of at least 1, got {value!r}")


def with_slots(block: BlockConfig, slots: Slots) -> BlockConfig:
    """Set several slots of a block by path in one step.

    Args:
        block: block to start from; it is not changed.
        slots: values by path. A path joins the names of nested fields by dots, such as
            attention.query.init. A slot accepts a part, its JSON values or its kind
            (rotary-position, or rotary for short). Other fields accept a number, a word, true,
            false or none. A kind means a part with defaults, which longer paths change.

    Returns:
        The new block, checked like any other block.

    Raises:
        ArgumentError: an unknown path, a path that is given twice, a value that does not fit, or
            incompatible parts.

    Examples:
        >>> from hessblocks.blocks import preset
        >>> block = with_slots(preset("pre-ln"), ["position=rotary", "attention.query.init=zeros"])
        >>> block.position.kind, block.attention.query.init
        ('rotary-position', 'zeros')
    """
    tree: dict[Any, Any] = {}
    for path, value in slot_pairs(slots):
        node = tree
        for name in path.split("."):
            node = node.setdefault(name, {})
        if _ITSELF in node:
            raise ArgumentError(f"{path}: given twice; choose one.")
        node[_ITSELF] = value
    new: BlockConfig = _with_values(block, tree, "")
    return new


def placed(block: BlockConfig, slots: Slots, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add the position that slots set to fields, so that sizes are checked with that one alone."""
    pairs = [pair for pair in slot_pairs(slots) if pair[0].partition(".")[0] == "position"]
    if not pairs:
        return dict(fields)
    position = {name: value for name, value in fields.items() if name == "position"}
    return {**fields, "position": with_slots(block.replace(**position), pairs).position}


def slot_pairs(slots: Slots) -> list[tuple[str, Any]]:
    """Convert slots of any form to pairs of path and value.

    Returns:
        The pairs in order; values from texts `path=value` remain strings.

    Raises:
        ArgumentError: a text without a path or a value.
    """
    if isinstance(slots, str) or not isinstance(slots, Iterable | None):
        raise ArgumentError(f"slots: expected several texts or a mapping, got {slots!r}.")
    entries = slots.items() if isinstance(slots, Mapping) else slots or ()
    pairs: list[Any] = [_pair(pair) if isinstance(pair, str) else pair for pair in entries]
    for pair in pairs:
        paired = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
        if not (paired and all(pair[0].split("."))):
            raise ArgumentError(
                "--set: expected SLOT=VALUE, such as position=rotary, with a name on each side of "
                f"each dot, got {pair!r}."
            )
    return pairs


def _pair(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    if not (path.strip() and equals and value.strip()):
        raise ArgumentError(f"--set: expected SLOT=VALUE, such as position=rotary, got {text!r}.")
    return path.strip(), value.strip()


def _with_values(part: Any, tree: Mapping[str, Any], path: str) -> Any:
    """Replace fields of a part and of its nested parts by the values in a tree of paths."""
    if not isinstance(part, BlockPart):
        raise ArgumentError(f"{path}: holds {part!r}, which has no fields; give it a part first.")
    names = [field.name for field in dataclasses.fields(part)]
    hints, fields = typing.get_type_hints(type(part)), {}
    for name, node in tree.items():
        check_name(f"field of {path or 'block'}", name, names)
        slot = f"{path}.{name}".lstrip(".")
        if slot in SIZES:
            raise ArgumentError(
                f"{slot}: is a size, which presets depend on, not a slot; give it as {slot}=."
            )
        value = getattr(part, name)
        if _ITSELF in node:
            value = _value(node[_ITSELF], hints[name], slot)
        inner = {field: inner_node for field, inner_node in node.items() if field != _ITSELF}
        fields[name] = _with_values(value, inner, slot) if inner else value
    return part.replace(**fields)


def _value(raw: Any, hint: Any, slot: str) -> Any:
    """Convert a value to the type of the field's annotation."""
    united = typing.get_origin(hint) in (types.UnionType, typing.Union)
    choices = typing.get_args(hint) if united else (hint,)
    wanted = [kind for kind in choices if kind is not types.NoneType]
    optional = types.NoneType in choices
    if optional and (raw is None or raw == "none"):
        return None
    kind = wanted[0] if len(wanted) == 1 and isinstance(wanted[0], type) else object
    if issubclass(kind, BlockPart):
        return part_of(raw, kind, slot)
    if not set(wanted) <= set(_WORDS):
        raise ArgumentError(f"{slot}: can only be given inside a part, not by path.")
    value = _read(raw) if isinstance(raw, str) and kind is not str else raw
    if not any(_fits(value, allowed) for allowed in wanted):
        expected = " or ".join(
            [*(_WORDS[allowed] for allowed in wanted), *(["none"] if optional else [])]
        )
        raise ArgumentError(f"{slot}: expected {expected}, got {raw!r}.")
    return value


def _fits(value: Any, kind: type) -> bool:
    """Tell whether a value has a type; integers count as floats, booleans as neither."""
    fits = isinstance(value, int | float if kind is float else kind)
    return fits and isinstance(value, bool) == (kind is bool)


def _read(word: str) -> Any:
    try:
        return parse_json(word)
    except ValueError:
        return word


def part_of(raw: Any, base: type[BlockPart], slot: str) -> BlockPart:
    """Build a part from its JSON values or its kind; return a part unchanged.

    Args:
        raw: part, its JSON values or its kind.
        base: base class of the slot's parts.
        slot: path of the slot, for error messages.

    Returns:
        The part.

    Raises:
        ArgumentError: an unknown kind, or one without defaults.
    """
    if isinstance(raw, Mapping):
        return BlockPart.from_dict(dict(raw))
    if isinstance(raw, BlockPart):
        return raw
    kinds = BlockPart.kinds(base)
    short = {kind.removesuffix(f"-{base.__name__.lower()}"): kind for kind in kinds}
    word = short.get(str(raw), str(raw))
    check_name(slot, word, kinds)
    try:
        return kinds[word]()
    except TypeError as error:  # only users' parts can lack defaults
        raise ArgumentError(f"{slot}: {word} has no defaults ({error}); give a part.") from error
