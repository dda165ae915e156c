"""Write the report: figures, and one self-contained HTML file."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hessblocks.conventions import AnyPath
from hessblocks.errors import RunError
from hessblocks.escape import shell_line
from hessblocks.figures import number
from hessblocks.report import templates
from hessblocks.report.captions import ratio_text, with_error
from hessblocks.report.comparison import Comparison, ComparisonRow, compare_results
from hessblocks.report.comparison_figures import all_figures
from hessblocks.report.headline import headline
from hessblocks.statistics import Average
from hessblocks.storage import COMMAND, load_results, read_object

FILES = ("results.csv", "metrics.jsonl", "observations.jsonl", "tuning.json")
"""Files with the numbers of the page, which links them if they exist."""
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
        columns=COLUMNS,
        rows=[*map(comparison_cells, found.rows), *_table_of_pairs(found)],
        rates=found.rate_words,
        zero_groups=found.zero_groups,
        blocks=[templates.inlined(one.read_bytes()) for one in blocks if one.is_file()],
        figures=[templates.shown_figure(figure, folder) for figure in all_figures(found)],
        command=command_line(folder),
        settings=list(templates.setting_rows(shown)),
        environment=list(templates.environment_rows(results.environment)),
        files=[name for name in FILES if (folder / name).exists()],
    )


def _heading(presets: Sequence[str]) -> str:
    if len(presets) == 1:
        return f"the transformer block {presets[0]}"
    return f"{len(presets)} transformer blocks compared"


def comparison_cells(row: ComparisonRow) -> tuple[str, ...]:
    """Format the cells of one row: one for each of COLUMNS."""
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
    )


def _table_of_pairs(found: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield the row of the bigram table, if its loss was computed."""
    if found.results.reference is not None:
        known = {COLUMNS[0]: "bigram table", FINAL: f"{found.results.reference:.3f}"}
        yield tuple(known.get(name, templates.ABSENT) for name in COLUMNS)


def _mean(mean: Average | None, unit: float = 1.0) -> str:
    """Format a mean and its error in another unit."""
    if mean is None:
        return templates.ABSENT
    error = None if mean.standard_error is None else mean.standard_error * unit
    return with_error(replace(mean, value=mean.value * unit, standard_error=error))


def command_line(folder: Path) -> str:
    """Write the command that made a folder.

    Returns:
        The command, quoted for a POSIX shell; empty if none is recorded.

    Raises:
        RunError: command.json is damaged.
    """
    path = folder / COMMAND
    if not path.exists():
        return ""
    words = read_object(path).get("words")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise RunError(f"{path}: damaged (expected a list under 'words'); remove it.")
    return shell_line(["hessblocks", *words])
