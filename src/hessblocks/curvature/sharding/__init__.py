"""Shard models over devices by rows, and gather one layer's weights at a time."""

from hessblocks.curvature.sharding.exchange import Cut, all_or_none, check_alike
from hessblocks.curvature.sharding.layerwise import Way, parts_of, run_in_parts
from hessblocks.curvature.sharding.local_entries import OwnEntries
from hessblocks.curvature.sharding.sharded import code_of, cuts_of, is_whole, own_rows, sharded
