"""What the training commands share: data, the work itself, the report, what is shown at the end."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from hessblocks.cli.interruption import interruptible
from hessblocks.cli.terminal.bars import make_progress
from hessblocks.cli.terminal.console import (
    WIDE,
    comparison_table,
    console,
    time_line,
    zero_group_lines,
)
from hessblocks.data import Corpus, load_corpus
from hessblocks.errors import RunError
from hessblocks.progress import Progress
from hessblocks.report import ComparisonRow, budget_columns, comparison_rows, summary, write_report
from hessblocks.settings import DataSettings
from hessblocks.storage import FolderResults, load_results
from hessblocks.training import is_first

Work = Callable[[Corpus, Progress, Callable[[Path], None]], None]


def carry_out(work: Work, *, text: DataSettings, out: Path, as_json: bool, hint: str) -> None:
    """Do the work on the data, write the report, and show the results.

    Args:
        work: fills `out`, then calls its last argument to write the report there.
        text: what is trained on.
        out: run folder.
        as_json: print one JSON object instead of the table.
        hint: what the user may type next.

    Raises:
        RunError: every run diverged.
    """
    start = time.perf_counter()
    progress = make_progress()

    def report(folder: Path) -> None:
        with progress.stage("report"):
            write_report(folder)

    with contextlib.redirect_stdout(sys.stderr), interruptible():
        with progress.stage("data"):
            corpus = load_corpus(text.data, text.vocab_size)
        work(corpus, progress, report)
    if not is_first():
        return
    results = load_results(out)
    rows = comparison_rows(results)
    lost = all(row.diverged and row.final_loss is None for row in rows)
    seconds = time.perf_counter() - start
    if as_json:
        print(json.dumps(summary(results, seconds=seconds), allow_nan=False))
    else:
        screen = console(WIDE) if budget_columns(results) else console()
        _show(screen, rows, results)
        screen.print(time_line(progress.seconds, seconds))
        screen.print(f"\nreport  {out / 'report.html'}", soft_wrap=True)
        if not lost:
            screen.print(f"next    {hint}", soft_wrap=True)
    if lost:
        where = dict.fromkeys(
            f"{line.preset}, seed {line.seed}: {line.diverged}"
            for line in results.metrics
            if line.diverged
        )
        raise RunError(f"every run diverged ({'; '.join(where)}). Try a lower --learning-rate.")


def _show(screen: Console, rows: tuple[ComparisonRow, ...], results: FolderResults) -> None:
    screen.print(comparison_table(rows, results))
    screen.print("loss: validation, nats per token")
    if any(row.before for row in rows):
        screen.print(
            "heterogeneity: largest over smallest Frobenius norm among the Hessian's diagonal blocks, "
            "one block a parameter group"
        )
    for line in zero_group_lines(rows):
        screen.print(line)
