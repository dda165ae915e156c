"""Models larger than one device: rows of their parameters on each process, a part whole at a time."""

from hessblocks.curvature.sharding.cuts import code_of, cuts_of, is_whole, own_rows
from hessblocks.curvature.sharding.exchange import Cut, all_or_none
from hessblocks.curvature.sharding.layerwise import Way, parts_of, run_in_parts
from hessblocks.curvature.sharding.local_entries import OwnEntries
from hessblocks.curvature.sharding.sharded import sharded
