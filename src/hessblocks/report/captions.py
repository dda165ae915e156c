"""Format numbers with their errors, names of groups, and common sentences of captions."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from hessblocks.conventions import LAYERS
from hessblocks.figures import LARGE, NEGLIGIBLE, number
from hessblocks.statistics import Average, Heterogeneity

SMALL = -6
"""Power of ten below which errors are written with an exponent."""


def seeds_and_error(seeds: Sequence[int], mark: str, single: str) -> str:
    """Write the number of seeds, and the meaning of error bars.

    Args:
        seeds: seeds that have any value.
        mark: name of the error bar ("the bar").
        single: text for a single seed.

    Returns:
        One sentence.
    """
    names = ", ".join(map(str, seeds))
    if len(seeds) < 2:
        return f"1 seed ({names}); {single}."
    return f"Mean over {len(seeds)} seeds ({names}); {mark} is ± 1 standard error of that mean."


def short_names(groups: Iterable[str]) -> str:
    """Join names of groups, with layers of equal ones merged, as `--groups` takes them."""
    layers: dict[str, list[int]] = defaultdict(list)
    for group in groups:
        match = LAYERS.fullmatch(group)
        layers[match[3] if match else group] += [int(match[1])] if match else []
    names = []
    for rest, numbers in layers.items():
        places = enumerate(sorted(numbers))  # number − place is constant in consecutive numbers
        runs = [[n for _, n in run] for _, run in groupby(places, lambda pair: pair[1] - pair[0])]
        spans = ["-".join(map(str, dict.fromkeys((run[0], run[-1])))) for run in runs]
        names += [f"layers.{span}.{rest}" for span in spans] or [rest]
    return ", ".join(names)


def ratio_text(ratio: Heterogeneity[Average] | None, missing: str = "") -> str:
    """Format largest over smallest norm, with its interval or standard error over seeds."""
    if ratio is None:
        return missing
    if ratio.low is None or ratio.high is None:
        return with_error(ratio.ratio)
    return with_interval(ratio.ratio.value, ratio.low, ratio.high)


def with_interval(value: float, low: float, high: float) -> str:
    """Format an estimate ≥ 1 with its interval: 8.2 [7.1, 9.9] or 15,600 [14,700, 16,600].

    Returns:
        The text; without an interval if the estimate is exact.
    """
    if high - low < NEGLIGIBLE * value:
        return number(value)
    if high >= LARGE:
        return f"{value:.3g} [{low:.3g}, {high:.3g}]"
    places = 1 - math.floor(math.log10(high - low))
    shown = (f"{round(number, places):,.{max(0, places)}f}" for number in (value, low, high))
    return "{} [{}, {}]".format(*shown)


def with_error(mean: Average) -> str:
    """Format a mean with its standard error: 5.07 ± 0.02, 631 ± 71, 10,000 ± 1,100, 1e-8 ± 3e-9."""
    if math.isnan(mean.value) or math.isnan(mean.standard_error or 0.0):
        return "–"  # such as of a change that no sampled gradient reaches
    if not mean.standard_error or mean.standard_error < NEGLIGIBLE * abs(mean.value):
        return number(mean.value)
    if mean.standard_error >= LARGE:
        return f"{mean.value:.2g} ± {mean.standard_error:.1g}"
    exponent = math.floor(math.log10(mean.standard_error))
    if exponent < SMALL:
        digits = max(0, math.floor(math.log10(abs(mean.value) or mean.standard_error)) - exponent)
        return f"{mean.value:.{digits}e} ± {mean.standard_error:.0e}"
    places = -max(0, exponent - 1) if exponent >= 0 else -exponent
    value, error = round(mean.value, places), round(mean.standard_error, places)
    return f"{value:,.{max(0, places)}f} ± {error:,.{max(0, places)}f}"
