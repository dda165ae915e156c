"""Write the first sentences of a comparison: losses, and heterogeneity of curvature."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hessblocks.report.captions import ratio_text, with_error
from hessblocks.report.comparison import Comparison, ComparisonRow, compare_results
from hessblocks.statistics import Average, Heterogeneity
from hessblocks.storage import FolderResults

BASELINE = "pre-ln"
SURE = 2.0
"""Two values differ if they are more joint standard errors apart than this."""
LEAST = 0.0005
"""Smallest difference reported without an error, in nats per token: half of the third decimal."""
SEVERAL = 4
"""Most blocks with all ratios listed; of more blocks, baseline, smallest and largest are listed."""


def headline(results: FolderResults | Comparison) -> tuple[str, ...]:
    """Write which loss each block reached, and whose curvature is more even, before and after.

    The baseline is pre-ln, or the first measured block if pre-ln has no results. Two values differ
    if they are more than two joint standard errors apart. These are errors over seeds; with one
    seed, errors of the curvature estimates. Speed is not compared: blocks are timed one after
    another, while the load of the machine varies.

    Args:
        results: results of a run folder, or their comparison.

    Returns:
        Sentences; a single sentence if nothing is measured yet.
    """
    found = compare_results(results)
    rows = found.rows
    measured = [row for row in rows if row.final_loss or row.ratios] or list(rows)
    base = next((row for row in measured if row.preset == BASELINE), measured[0])
    sentences = (
        *_losses(rows, base),
        *_above_bigrams(rows, found.results.reference),
        *_evenness("before", rows, base),
        *_evenness("after", rows, base),
        *_diverged(rows),
    )
    return sentences or ("Nothing is measured yet.",)


def difference(first: Average, second: Average) -> int:
    """Compute the sign of first − second; 0 if they are within two joint standard errors."""
    gap = first.value - second.value
    if abs(gap) <= SURE * _joint(first, second):
        return 0
    return (gap > 0) - (gap < 0)


def _joint(first: Average, second: Average) -> float:
    return math.hypot(first.standard_error or 0.0, second.standard_error or 0.0)


def _losses(rows: Sequence[ComparisonRow], base: ComparisonRow) -> Iterator[str]:
    losses = {row.preset: row.final_loss for row in rows if row.final_loss and not row.diverged}
    if not losses:
        return
    first = base if base.preset in losses else next(row for row in rows if row.preset in losses)
    own = losses.pop(first.preset)
    after = f"After {first.steps:,} steps" if first.steps is not None else "At the end"
    gaps = [f"{name} {_gap(each, own)}" for name, each in losses.items()]
    alone = gaps and all(each.standard_error is None for each in (own, *losses.values()))
    others = f"; {', '.join(gaps)}{' (one seed)' if alone else ''}" if gaps else ""
    loss = f"the held-out loss of {first.preset} is {with_error(own)} nats per token"
    yield f"{after} {loss}{others}."


def _above_bigrams(rows: Sequence[ComparisonRow], table: float | None) -> Iterator[str]:
    """List the blocks whose final loss is above `table`, the loss of a bigram table."""
    lost = [
        row.preset
        for row in rows
        if table is not None and row.final_loss is not None and row.final_loss.value > table
    ]
    if lost:
        yield (
            f"{_listed(lost)} {'ends' if len(lost) == 1 else 'end'} above the bigram table "
            f"({table:.3f}), which knows pairs of tokens alone: no more was learnt than that."
        )


def _gap(loss: Average, base: Average) -> str:
    gap = loss.value - base.value
    error = _joint(loss, base)
    if not error and abs(gap) < LEAST:
        return "ends there too"
    side = "above" if gap > 0 else "below"
    if not error:
        return f"ends {abs(gap):.3f} {side}"
    apart = with_error(replace(loss, value=abs(gap), standard_error=error))
    return f"ends {apart} {side}{'' if difference(loss, base) else ' (not told apart)'}"


def _evenness(moment: str, rows: Sequence[ComparisonRow], base: ComparisonRow) -> Iterator[str]:
    ratios = {row.preset: row.ratios[moment] for row in rows if moment in row.ratios}
    if base.preset not in ratios:
        return
    when, measure = moment.capitalize(), "largest over smallest group norm of the Hessian"
    clauses = _clauses(base.preset, ratios)
    if len(ratios) == 1:
        yield f"{when} training, the {measure} is {clauses}."
    else:
        yield f"{when} training, {_compared(base.preset, ratios)} ({measure}: {clauses})."


def _compared(base: str, ratios: Mapping[str, Heterogeneity[Average]]) -> str:
    signs = {
        name: difference(found.ratio, ratios[base].ratio)
        for name, found in ratios.items()
        if name != base
    }
    verdicts = (
        (-1, f"more even than that of {base}"),
        (1, f"less even than that of {base}"),
        (0, f"not told apart from that of {base}"),
    )
    found = [(words, [name for name in signs if signs[name] == sign]) for sign, words in verdicts]
    shown = [f"of {_listed(names)} is {words}" for words, names in found if names]
    return f"the curvature {'; that '.join(shown)}"


def _clauses(base: str, ratios: Mapping[str, Heterogeneity[Average]]) -> str:
    names = list(ratios)
    if len(names) > SEVERAL:
        ends = (find(names, key=lambda name: ratios[name].ratio.value) for find in (min, max))
        names = list(dict.fromkeys((base, *ends)))
    return ", ".join(f"{ratio_text(ratios[name])} in {name}" for name in names)


def _diverged(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    for row in rows:
        if row.diverged:
            count = len(row.seeds)
            of = f"{len(row.diverged)} of {count} seeds of " if count > 1 else ""
            yield f"{of}{row.preset} diverged."


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
