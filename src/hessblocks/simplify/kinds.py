"""Kinds of removal: functions from a layer to its change; None if the layer lacks the part."""

from __future__ import annotations

from collections.abc import Callable

from hessblocks.simplify.change import LayerChange
from hessblocks.simplify.place import OUTPUT, PROJECTION, READ, Place

SHARE = 0.25
"""Share of the units that the table of removals prices."""
STEPS = (64, 32, 1)
"""Numbers of units whose multiples remain: the first of which the layer has four or more."""


def unit_step(units: int) -> int:
    """Return the number whose multiples remain of so many units: 64, in narrow layers 32 or 1."""
    return next(step for step in STEPS if units >= 4 * step or step == 1)


def layer(at: Place) -> LayerChange | None:
    """Remove the layer."""
    return (
        LayerChange(layer=True) if at.model.config.depth > 1 and _attention_elsewhere(at) else None
    )


def attention(at: Place) -> LayerChange | None:
    """Remove the attention of the layer."""
    return (
        LayerChange(attention="gone") if _has_attention(at) and _attention_elsewhere(at) else None
    )


def linear_map(at: Place) -> LayerChange | None:
    """Replace the attention of the layer by its best linear map, without mixing of tokens."""
    if not (_has_attention(at) and _attention_elsewhere(at) and at.dense(PROJECTION)):
        return None
    return LayerChange(attention="linear")


def heads(at: Place) -> LayerChange | None:
    """Remove a group of heads with shared keys and values."""
    block, part = at.block, at.block.attention
    if not _has_attention(at) or block.resolved_key_value_heads == 1 or block.position.biased:
        return None  # ALiBi has a slope per head
    dense = at.dense(*(f"attention.{name}" for name in READ), PROJECTION)
    plain = part.shaping is None and part.gate is None and part.query_key != "one-matrix"
    return LayerChange(groups=1) if dense and plain else None


def units(at: Place) -> LayerChange | None:
    """Remove a quarter of the MLP's units."""
    if at.block.sub_blocks == "attention" or not at.dense(*at.unit_readers, OUTPUT):
        return None
    width = at.block.resolved_mlp_width
    step = unit_step(width)
    gone = width - int((1 - SHARE) * width) // step * step
    return LayerChange(units=gone) if 0 < gone < width else None


Kind = Callable[[Place], LayerChange | None]
KINDS: dict[str, Kind] = {
    "layer": layer,
    "attention": attention,
    "linear map": linear_map,
    "heads": heads,
    "mlp units": units,
}
"""Name → kind of removal, in the order of the table."""


def _has_attention(at: Place) -> bool:
    return at.block.sub_blocks == "both" and at.block.attends


def _attention_elsewhere(at: Place) -> bool:
    others = [block for n, block in enumerate(at.model.config.blocks) if n != at.index]
    return any(one.attends for one in others)
