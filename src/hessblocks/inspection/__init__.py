"""Python functions of the commands: compare, measure curvature or signal, and read results."""

from hessblocks.inspection.comparing import compare
from hessblocks.inspection.measure import measure_curvature, measure_signal
from hessblocks.inspection.pricing import measure_price
from hessblocks.inspection.quantising import measure_quantise
from hessblocks.inspection.reading import read

__all__ = ["compare", "measure_curvature", "measure_quantise", "measure_signal", "read"]
