"""Carry out a command: load data, do the work, write the report, print the results."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hessblocks.cli import terminal
from hessblocks.cli.interruption import interruptible
from hessblocks.cli.options import WORDS
from hessblocks.data import load_corpus
from hessblocks.errors import RunError
from hessblocks.report import (
    Comparison,
    RunPage,
    Table,
    compare_results,
    headline,
    summary,
    write_report,
)
from hessblocks.settings import DataSettings, SharedSettings
from hessblocks.storage import COMMAND, load_results, write_json


def carry_out(
    work: Callable[..., None],
    settings: SharedSettings,
    out: Path,
    text: DataSettings,
    following: str,
    *,
    as_json: bool,
) -> None:
    """Load the data, train, write the report, and print the results.

    Args:
        work: `training.compare` or `training.train`.
        settings: settings of the training.
        out: run folder.
        text: settings of the training text.
        following: command that is suggested next.
        as_json: print one JSON object instead of the table.

    Raises:
        RunError: every run diverged.
    """
    start, progress = time.perf_counter(), terminal.ScreenProgress()

    def finish(folder: Path) -> None:
        write_json(folder / COMMAND, {"words": list(WORDS.get())})
        with progress.stage("report"):
            write_report(folder)

    with interruptible():
        with progress.stage("data"):
            corpus = load_corpus(text.data, text.vocab_size)
        work(settings, corpus, out, progress, finish=finish)
    comparison = compare_results(load_results(out))
    lost = all(row.diverged and row.final_loss is None for row in comparison.rows)
    seconds = time.perf_counter() - start
    shares = (f"{name} {100 * spent / seconds:.0f} %" for name, spent in progress.seconds.items())
    terminal.show(
        summary(comparison, seconds=seconds),
        [*_lines(comparison), f"{seconds:.0f} s: {', '.join(shares)}"],
        ["", f"report  {out / 'report.html'}", *([] if lost else [f"next    {following}"])],
        as_json=as_json,
        width=terminal.WIDE,
    )
    if lost:
        where = (
            f"{row.preset}, seed {seed}: {row.causes[seed]}"
            for seed in comparison.seeds
            for row in comparison.rows
            if seed in row.causes
        )
        raise RunError(f"every run diverged ({'; '.join(where)}). Try a lower --learning-rate.")


def measure_in_folder(measure: Callable[..., Any], page: RunPage, *, as_json: bool) -> None:
    """Measure in a folder, write its page, and print the results.

    Args:
        measure: does the work; it takes `progress`, and `finish` to call at the end.
        page: page of the folder, and what the terminal shows of it.
        as_json: print one JSON object instead of tables.
    """
    start, progress = time.perf_counter(), terminal.ScreenProgress()
    with interruptible():
        results = measure(progress=progress, finish=progress.stage("report")(page.write))
    seconds, summarised = time.perf_counter() - start, page.summary(results)
    terminal.show(
        {**summarised, "seconds": round(seconds, 3)},
        page.lines(results),
        [f"{seconds:.0f} s", "", f"report  {Path(summarised['out'], 'report.html')}"],
        as_json=as_json,
    )


def _lines(comparison: Comparison) -> Iterator[Table | str]:
    yield from headline(comparison)
    yield terminal.comparison_table(comparison)
    several = f"; ±: standard error over {len(comparison.seeds)} seeds"
    yield (
        "loss: validation, nats per token; tokens/s: per second of processor time on a CPU, summed "
        f"over threads{several if len(comparison.seeds) > 1 else ''}"
    )
    if comparison.rate_words:
        yield comparison.rate_words
    if any(row.before for row in comparison.rows):
        yield (
            "heterogeneity: Frobenius norm of the largest Hessian block over that of the smallest, "
            "one Hessian block a parameter group; of one seed with its 95 % interval"
        )
    if zeros := comparison.zero_groups:
        yield zeros
