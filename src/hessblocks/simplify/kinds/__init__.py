"""Kinds of removal: functions from a layer to a candidate; None if the layer lacks the part."""

from hessblocks.simplify.kinds.frozen_norm import attention_norm, mlp_norm
from hessblocks.simplify.kinds.heads_and_units import heads, units
from hessblocks.simplify.kinds.identity_value import identity_value
from hessblocks.simplify.kinds.parallel import parallel
from hessblocks.simplify.kinds.read_weights import identity_query, shared_query, shared_value
from hessblocks.simplify.kinds.skips import attention_skip, mlp_skip
from hessblocks.simplify.kinds.sub_blocks import attention, layer, mlp
from hessblocks.simplify.place import Kind

KINDS: dict[str, Kind] = {
    "layer": layer,
    "attention": attention,
    "mlp": mlp,
    "parallel": parallel,
    "attention skip": attention_skip,
    "mlp skip": mlp_skip,
    "attention norm": attention_norm,
    "mlp norm": mlp_norm,
    "query = identity": identity_query,
    "query of the first layer": shared_query,
    "value of the first layer": shared_value,
    "value and projection = identity": identity_value,
    "heads": heads,
    "mlp units": units,
}
"""Name → kind of removal, in the order of the table."""
