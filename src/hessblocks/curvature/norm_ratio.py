"""Heterogeneity of norms: largest over smallest, as an estimate with its interval."""

from __future__ import annotations

from collections.abc import Mapping

from hessblocks.linalg import Estimate
from hessblocks.statistics import Heterogeneity, ends


def heterogeneity(norms: Mapping[str, Estimate]) -> Heterogeneity[Estimate]:
    """Divide the largest norm by the smallest; norms of exactly 0 are left out and named.

    Args:
        norms: of the groups' own blocks.

    Returns:
        The ratio, its 95 % interval, and the groups at both ends; the ratio's standard error is a
        fourth of the interval's width.
    """
    found = ends({name: (norm.value, norm.standard_error) for name, norm in norms.items()})
    zero_groups = tuple(name for name, norm in norms.items() if norm.value <= 0)
    if found is None:
        nothing = Estimate(value=0.0, method="exact")
        return Heterogeneity(ratio=nothing, largest="", smallest="", zero_groups=zero_groups)
    both = norms[found.largest], norms[found.smallest]
    exact = not found.standard_error and all(end.method == "exact" for end in both)
    ratio = Estimate(
        value=found.ratio,
        standard_error=found.standard_error or 0.0,
        probes=max(end.probes for end in both),
        method="exact" if exact else "estimate",
    )
    return Heterogeneity(
        ratio=ratio,
        low=found.low,
        high=found.high,
        largest=found.largest,
        smallest=found.smallest,
        zero_groups=zero_groups,
    )
