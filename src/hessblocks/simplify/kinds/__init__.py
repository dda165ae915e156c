"""Kinds of removal: functions from a layer to a candidate; None if the layer lacks the part."""

from hessblocks.simplify.kinds.heads_and_units import heads, units
from hessblocks.simplify.kinds.sub_blocks import attention, layer, mlp
from hessblocks.simplify.place import Kind

KINDS: dict[str, Kind] = {
    "layer": layer,
    "attention": attention,
    "mlp": mlp,
    "heads": heads,
    "mlp units": units,
}
"""Name → kind of removal, in the order of the table."""
