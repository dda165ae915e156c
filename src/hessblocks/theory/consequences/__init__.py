"""Consequences of the closed form: growth, the split at the scores, rank bounds, limits."""

from hessblocks.theory.consequences.growth import GROWTH, Growth
from hessblocks.theory.consequences.limits import LIMITS, Limit, at_limit
from hessblocks.theory.consequences.rank_bounds import rank_bound
from hessblocks.theory.consequences.score_split import ScoreSplit
