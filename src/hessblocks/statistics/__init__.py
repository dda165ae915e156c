"""Statistics of plain numbers: means with standard errors, and heterogeneity of norms."""

from hessblocks.statistics.heterogeneity import Heterogeneity, ends
from hessblocks.statistics.means import Average, average, mean_and_error, variance
