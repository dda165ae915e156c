"""Report a comparison: first sentences, one JSON object, and a self-contained HTML page."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hessblocks.conventions import AnyPath
from hessblocks.errors import RunError
from hessblocks.escape import shell_line
from hessblocks.figures import number
from hessblocks.report import templates
from hessblocks.report.captions import ratio_text, short_names, with_error
from hessblocks.report.comparison import (
    MOMENTS,
    Comparison,
    ComparisonRow,
    baseline,
    compare_results,
)
from hessblocks.report.comparison_figures import all_figures
from hessblocks.statistics import Average, Heterogeneity, average
from hessblocks.storage import COMMAND, FolderResults, ResultRow, load_results, read_object

T = TypeVar("T")
FILES = ("results.csv", "metrics.jsonl", "observations.jsonl", "tuning.json")
"""Files with the numbers of the page, which links them if they exist."""
SETTINGS = ("Learning rate", "Tokens a parameter")
"""Columns that are left out where all blocks have the same."""


def write_report(folder: AnyPath) -> Path:
    """Write figures/*.png, figures/*.svg and report.html of a run folder, from its files alone.

    Args:
        folder: folder of one run or of a comparison, finished or not.

    Returns:
        The path of report.html.

    Raises:
        ArgumentError: `folder` is not a run folder.
        RunError: a file is damaged or cannot be written.
    """
    folder = Path(folder)
    results = load_results(folder)
    comparison = compare_results(results)
    presets, rows = comparison.presets, list(map(comparison_cells, comparison.rows))
    if results.reference is not None:
        reference = f"{results.reference:.3f}"
        bigrams = {"Preset": "bigram table", "Final loss (nats per token)": reference}
        rows.append(tuple(bigrams.get(name, templates.ABSENT) for name in COLUMNS))
    columns = {
        name: column
        for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True)
        if len({*column} - {templates.ABSENT}) > (name in SETTINGS)
    }
    blocks = [folder / "blocks.svg", folder / "blocks-narrow.svg"]
    several = f"{len(presets)} transformer blocks compared"
    subject = several if len(presets) > 1 else f"the transformer block {presets[0]}"
    return templates.write_page(
        folder,
        "comparison.html",
        title=f"hessblocks {results.settings.command}: {', '.join(presets)}",
        heading=f"hessblocks: {subject}",
        headline=headline(comparison),
        found=comparison,
        columns=list(columns),
        rows=list(zip(*columns.values(), strict=True)),
        blocks=[templates.inlined(path.read_bytes()) for path in blocks if path.is_file()],
        figures=[templates.shown_figure(figure, folder) for figure in all_figures(comparison)],
        command=command_line(folder),
        settings={n: v for n, v in results.settings.values.items() if n != "blocks"},
        environment=results.environment,
        files=FILES,
    )


def _final_loss(row: ComparisonRow) -> str:
    final, seeds = _mean(row.final_loss), ", ".join(map(str, row.diverged))
    if not seeds:
        return final
    return f"{final}; seed {seeds} diverged" if row.final_loss else f"diverged (seed {seeds})"


def _mean(mean: Average | None, unit: float = 1.0) -> str:
    """Format a mean and its error in another unit."""
    if mean is None:
        return templates.ABSENT
    error = None if mean.standard_error is None else mean.standard_error * unit
    return with_error(replace(mean, value=mean.value * unit, standard_error=error))


def _or_absent(value: T | None, text: Callable[[T], str]) -> str:
    return templates.ABSENT if value is None else text(value)


COLUMNS: dict[str, Callable[[ComparisonRow], str]] = {
    "Preset": lambda row: row.preset,
    "Parameters": lambda row: _or_absent(row.parameters, "{:,}".format),
    "Tokens per second": lambda row: _mean(row.tokens_per_second),
    "Peak memory (MB)": lambda row: _mean(row.peak_memory, 1e-6),
    "Initial loss (nats per token)": lambda row: _mean(row.initial_loss),
    "Final loss (nats per token)": _final_loss,
    "Learning rate": lambda row: _or_absent(row.rate, "{:g}".format),
    "Tokens a parameter": lambda row: _or_absent(row.tokens_a_parameter, number),
    "Heterogeneity before": lambda row: ratio_text(row.before, templates.ABSENT),
    "Heterogeneity after": lambda row: ratio_text(row.after, templates.ABSENT),
}
"""Heading → its cell in the row of a block."""


def comparison_cells(row: ComparisonRow) -> tuple[str, ...]:
    """Format the cells of one row: one for each of COLUMNS."""
    return tuple(cell(row) for cell in COLUMNS.values())


def command_line(folder: Path) -> str:
    """Write the command that made a folder.

    Returns:
        The command, quoted for a POSIX shell; empty if none is recorded.

    Raises:
        RunError: command.json is damaged.
    """
    if not (path := folder / COMMAND).exists():
        return ""
    words = read_object(path).get("words")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise RunError(f"{path}: damaged (expected a list under 'words'); remove it.")
    return shell_line(["hessblocks", *words])


SURE = 2.0
"""Two values differ if they are more joint standard errors apart than this."""
SAME_SIZE = 0.05
"""Largest difference of numbers of parameters that goes without saying."""
LEAST = 0.0005
"""Smallest difference reported without an error, in nats per token: half of the third decimal."""
VERDICTS = {-1: "more even than", 1: "less even than", 0: "not told apart from"}
"""Sign of a difference of heterogeneities → its name."""


def headline(results: FolderResults | Comparison) -> tuple[str, ...]:
    """Write which loss each block reached, and whose curvature is more even, before and after.

    The baseline is pre-ln, or the first measured block if pre-ln has no results. Losses are
    compared seed by seed, where both blocks have the seeds. Two values differ if they are more than
    two joint standard errors apart. These are errors over seeds; with one
    seed, errors of the curvature estimates. Speed is not compared: blocks are timed one after
    another, while the load of the machine varies.

    Args:
        results: results of a run folder, or their comparison.

    Returns:
        Sentences; a single sentence if nothing is measured yet.
    """
    comparison = compare_results(results)
    rows = comparison.rows
    base = baseline(rows)
    sentences = (
        *_losses(comparison, base),
        *_sizes(rows, base),
        *_above_bigrams(rows, comparison.results.reference),
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


def _losses(comparison: Comparison, base: ComparisonRow) -> Iterator[str]:
    rows = comparison.rows
    losses = {row.preset: row.final_loss for row in rows if row.final_loss and not row.diverged}
    if not losses:
        return
    first = base if base.preset in losses else next(row for row in rows if row.preset in losses)
    base_loss = losses.pop(first.preset)
    after = f"After {first.steps:,} steps" if first.steps is not None else "At the end"
    finals = comparison.results.select("loss", stage="final")
    by_seed = {name: {r.seed: r.value for r in finals if r.preset == name} for name in losses}
    base_by_seed = {row.seed: row.value for row in finals if row.preset == first.preset}
    gaps = []
    for name, loss in losses.items():
        seeds = by_seed[name].keys() & base_by_seed.keys()
        gap = average(by_seed[name][seed] - base_by_seed[seed] for seed in sorted(seeds))
        if gap is None or gap.seeds == 1:
            error = _joint(loss, base_loss)
            gap = Average(value=loss.value - base_loss.value, standard_error=error, seeds=1)
        gaps.append(f"{name} {_gap(gap)}")
    alone = gaps and all(loss.standard_error is None for loss in (base_loss, *losses.values()))
    said = " (one seed, so no ranking)" if alone else ""
    others = f"; {', '.join(gaps)}{said}" if gaps else ""
    ends = f"the held-out loss of {first.preset} is {with_error(base_loss)} nats per token"
    yield f"{after} {ends}{others}."


def _sizes(rows: Sequence[ComparisonRow], base: ComparisonRow) -> Iterator[str]:
    """Say how the numbers of parameters differ, since losses are compared at equal steps."""
    shares = [(r.preset, (r.parameters or 0) / (base.parameters or math.inf) - 1) for r in rows]
    if words := [
        f"{name} has {abs(share):.0%} {'more' if share > 0 else 'fewer'}"
        for name, share in shares
        if abs(share) > SAME_SIZE and share > -1
    ]:
        yield f"Steps are equal, parameters are not: {_listed(words)} than {base.preset}."


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


def _gap(gap: Average) -> str:
    size, error = abs(gap.value), gap.standard_error
    if not error and size < LEAST:
        return "ends there too"
    side = "above" if gap.value > 0 else "below"
    if not error:
        return f"ends {size:.3f} {side}"
    apart = with_error(replace(gap, value=size))
    return f"ends {apart} {side}{'' if size > SURE * error else ' (not told apart)'}"


def _evenness(moment: str, rows: Sequence[ComparisonRow], base: ComparisonRow) -> Iterator[str]:
    ratios = {row.preset: row.ratios[moment] for row in rows if moment in row.ratios}
    if base.preset not in ratios:
        return
    when, measure = moment.capitalize(), "largest over smallest norm of a group, embeddings too"
    clauses = _clauses(ratios)
    if len(ratios) == 1:
        yield f"{when} training, the {measure} is {clauses}."
    else:
        yield f"{when} training, {_compared(base.preset, ratios)} ({measure}: {clauses})."


def _compared(base: str, ratios: Mapping[str, Heterogeneity[Average]]) -> str:
    signs = {
        name: difference(ratio.ratio, ratios[base].ratio)
        for name, ratio in ratios.items()
        if name != base
    }
    names = {sign: [name for name in signs if signs[name] == sign] for sign in VERDICTS}
    shown = [f"of {_listed(names[n])} is {VERDICTS[n]} that of {base}" for n in names if names[n]]
    return f"the curvature {'; that '.join(shown)}"


def _clauses(ratios: Mapping[str, Heterogeneity[Average]]) -> str:
    left = {name: short_names(ratio.zero_groups) for name, ratio in ratios.items()}
    left = {n: f" without {zero}, exactly zero there" if zero else "" for n, zero in left.items()}
    return ", ".join(f"{ratio_text(r).split()[0]} in {n}{left[n]}" for n, r in ratios.items())


def _diverged(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    for row in rows:
        if row.diverged:
            count = len(row.seeds)
            share = f"{len(row.diverged)} of {count} seeds of " if count > 1 else ""
            yield f"{share}{row.preset} diverged."


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


AVERAGES = ("tokens_per_second", "initial_loss", "final_loss", "peak_memory")


def summary(results: FolderResults | Comparison, *, seconds: float | None = None) -> dict[str, Any]:
    """Summarise a comparison as one JSON object; numbers that are not finite are null.

    Args:
        results: results of a run folder, or their comparison.
        seconds: duration of the whole command; None: training time of all runs.

    Returns:
        `command`, `out`, `seconds`, `bigram_loss`, `tuned`, `missing` and `presets`: for
        each block its parameters, steps, rate, tokens per parameter, speed, memory, losses,
        `standard_errors` of those, heterogeneity and
        curvature (before and after training: group → part → value, standard_error).
    """
    comparison = compare_results(results)
    times = [row.value for row in comparison.results.select("training_time")]
    return {
        "command": comparison.results.settings.command,
        "out": str(comparison.results.folder),
        "seconds": math.fsum(filter(math.isfinite, times)) if seconds is None else seconds,
        "bigram_loss": comparison.results.reference,
        "tuned": bool(comparison.results.tried),
        "missing": list(comparison.results.missing),
        "presets": {row.preset: _preset(row, comparison.norms) for row in comparison.rows},
    }


def _preset(row: ComparisonRow, norms: Iterable[ResultRow]) -> dict[str, Any]:
    averages = {name: _estimate(getattr(row, name)) for name in AVERAGES}
    curvature: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(dict))
    for norm in norms:
        if norm.preset == row.preset:
            curvature[norm.stage][norm.group][norm.part] = _estimate(norm)
    return {
        "seeds": list(row.seeds),
        "diverged": list(row.diverged),
        "parameters": row.parameters,
        "steps": row.steps,
        "learning_rate": row.rate,
        "tokens_a_parameter": row.tokens_a_parameter,
        **{name: mean["value"] for name, mean in averages.items()},
        "standard_errors": {name: mean["standard_error"] for name, mean in averages.items()},
        "heterogeneity": {moment: _ratio(getattr(row, moment)) for moment in MOMENTS},
        "curvature": {moment: curvature[stage] for moment, stage in MOMENTS.items()},
    }


def _estimate(estimate: Average | ResultRow | None) -> dict[str, float | None]:
    if estimate is None or math.isnan(estimate.value):
        return {"value": None, "standard_error": None}
    return {"value": estimate.value, "standard_error": estimate.standard_error}


def _ratio(ratio: Heterogeneity[Average] | None) -> dict[str, Any] | None:
    if ratio is None:
        return None
    ends = {name: getattr(ratio, name) for name in ("low", "high", "largest", "smallest")}
    return {**_estimate(ratio.ratio), **ends, "zero_groups": list(ratio.zero_groups)}
