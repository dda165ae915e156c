"""Curvature and signal of any saved, fresh or given model: what the commands do, from Python."""

from hessblocks.inspection.measure import measure_curvature, measure_signal

__all__ = ["measure_curvature", "measure_signal"]
