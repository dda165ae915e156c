"""Statistics: means with their errors, and how uneven norms are; plain numbers in and out."""

from hessblocks.statistics.heterogeneity import Heterogeneity, ends
from hessblocks.statistics.means import Average, average, mean_and_error, variance
