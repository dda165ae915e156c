"""Write the report: figures, and one self-contained HTML file."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hessblocks import settings
from hessblocks.conventions import AnyPath
from hessblocks.escape import shell_line
from hessblocks.figures import number
from hessblocks.report import templates
from hessblocks.report.captions import ratio_text, with_error
from hessblocks.report.comparison import Comparison, ComparisonRow, compare_results
from hessblocks.report.comparison_figures import all_figures
from hessblocks.report.headline import headline
from hessblocks.statistics import Average
from hessblocks.storage import Settings, load_results

FILES = ("results.csv", "metrics.jsonl", "observations.jsonl", "budget.json", "tuning.json")
"""Files with the numbers of the page, which links them if they exist."""
OWN_DATA = "PATH"
"""Placeholder for the user's data in a command: config.json does not store its path."""
STANDARD_DATA = "python-code"
FINAL = "Final loss (nats per token)"
COLUMNS = (
    "Preset",
    "Parameters",
    "Tokens per second",
    "Peak memory (MB)",
    "Initial loss (nats per token)",
    FINAL,
    "Learning rate",
    "Tokens a parameter",
    "Heterogeneity before",
    "Heterogeneity after",
)


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
    found = compare_results(results)
    blocks = [folder / "blocks.svg", folder / "blocks-narrow.svg"]
    shown = {name: one for name, one in results.settings.values.items() if name != "blocks"}
    return templates.write_page(
        folder,
        "comparison.html",
        title=f"hessblocks {results.settings.command}: {', '.join(found.presets)}",
        heading=f"hessblocks: {_heading(found.presets)}",
        headline=headline(found),
        missing=results.missing,
        columns=(*COLUMNS, *map(str.capitalize, found.budget_columns)),
        rows=[*map(comparison_cells, found.rows), *_table_of_pairs(found)],
        rates=found.rate_words,
        zero_groups=found.zero_groups,
        blocks=[templates.inlined(one.read_bytes()) for one in blocks if one.is_file()],
        figures=[templates.shown_figure(figure, folder) for figure in all_figures(found)],
        command=command_line(results.settings),
        settings=list(templates.setting_rows(shown)),
        environment=list(templates.environment_rows(results.environment)),
        files=[name for name in FILES if (folder / name).exists()],
    )


def _heading(presets: Sequence[str]) -> str:
    if len(presets) == 1:
        return f"the transformer block {presets[0]}"
    return f"{len(presets)} transformer blocks compared"


def comparison_cells(row: ComparisonRow) -> tuple[str, ...]:
    """Format the cells of one row: one for each of COLUMNS, and the columns of the budget."""
    final = _mean(row.final_loss)
    if row.diverged:
        seeds = ", ".join(map(str, row.diverged))
        final = (
            f"diverged (seed {seeds})"
            if final == templates.ABSENT
            else f"{final}; seed {seeds} diverged"
        )
    return (
        row.preset,
        f"{row.parameters:,}" if row.parameters is not None else templates.ABSENT,
        _mean(row.tokens_per_second),
        _mean(row.peak_memory, 1e-6),
        _mean(row.initial_loss),
        final,
        templates.ABSENT if row.rate is None else f"{row.rate:g}",
        templates.ABSENT if row.tokens_a_parameter is None else number(row.tokens_a_parameter),
        ratio_text(row.before) if row.before else templates.ABSENT,
        ratio_text(row.after) if row.after else templates.ABSENT,
        *row.budget,
    )


def _table_of_pairs(found: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield the row of the bigram table, if its loss was computed."""
    if found.results.reference is not None:
        known = {COLUMNS[0]: "bigram table", FINAL: f"{found.results.reference:.3f}"}
        columns = (*COLUMNS, *found.budget_columns)
        yield tuple(known.get(name, templates.ABSENT) for name in columns)


def _mean(mean: Average | None, unit: float = 1.0) -> str:
    """Format a mean and its error in another unit."""
    if mean is None:
        return templates.ABSENT
    error = None if mean.standard_error is None else mean.standard_error * unit
    return with_error(replace(mean, value=mean.value * unit, standard_error=error))


def command_line(config: Settings) -> str:
    """Write the command with all options that differ from defaults, quoted for a POSIX shell."""
    names = list(_words(config) if config.command == "train" else ())
    options = [*_options(config), "--out", "DIR"]
    if any(name.startswith("-") for name in names):  # only a foreign config.json has such names
        options, names = [], [*options, "--", *names]
    return shell_line(["hessblocks", config.command, *names, *options])


def _words(config: Settings) -> list[str]:
    """Write the names of blocks as a user types them; a block of the user is NAME.json."""
    own = {str(name) for name in config.values.get("own", [])}
    parts = (re.split(r"(\+(?![^\[\]]*\]))", name) for name in config.presets)
    return ["".join(_word(part, own) for part in one) for one in parts]


def _word(part: str, own: set[str]) -> str:
    name, bracket, rest = part.partition("[")
    return f"{name}{'.json' if name in own else ''}{bracket}{rest}"


def _options(config: Settings) -> Iterator[str]:
    if config.command not in ("train", "demo"):
        yield from ("--presets", ",".join(_words(config)), "--seeds", str(len(config.seeds)))
        chosen = {name: config.values.get(name) for name in ("match", "tune")}
        yield from settings.option_words(settings.ComparisonSettings, chosen)
    if config.command != "demo":
        yield from _chosen(config)
    if config.seeds:
        yield from ("--seed", str(min(config.seeds)))
    if "device" in config.values:
        yield from ("--device", str(config.values["device"]))


def _chosen(config: Settings) -> Iterator[str]:
    """Write the options of data, sizes, training and observation."""
    model, observation = config.section("model"), config.section("observation")
    own = config.section("data").get("name", STANDARD_DATA) != STANDARD_DATA
    data = {**model, "data": OWN_DATA if own else None}
    sample = config.section("curvature") or observation.get("sample")
    for one, values in (
        (settings.DataSettings, data),
        (settings.ModelSettings, model),
        (settings.TrainingSettings, config.section("training")),
        (settings.ObservationSettings, {**observation, "sample": sample}),
    ):
        yield from settings.option_words(one, values)
