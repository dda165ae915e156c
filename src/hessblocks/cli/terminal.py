"""Tables and closing lines on standard output, progress on standard error."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import rich.progress
from rich import box
from rich.console import Console
from rich.table import Table

from hessblocks import report, storage
from hessblocks.escape import printable, printable_lines
from hessblocks.progress import Progress
from hessblocks.statistics import Average

EVERY = 60.0
"""Seconds between two lines about a stage, off a terminal."""
NARROWEST = 120
"""Width of a line, in characters, if the output is not a terminal."""
WIDE = 140
"""The same for tables of comparisons, which several seeds make wider."""


def show(
    described: Mapping[str, Any],
    lines: Iterable[Table | report.Table | str],
    end: list[str] | None = None,
    *,
    as_json: bool,
    width: int = NARROWEST,
) -> None:
    """Print the results of a command on standard output.

    Args:
        described: results as JSON values.
        lines: tables, headings with rows, and text that is wrapped at the width.
        end: lines that are not wrapped, such as paths.
        as_json: print `described` as one JSON object, and nothing else.
        width: width of a line, in characters, if the output is a file or a pipe.
    """
    if as_json:
        print(json.dumps(storage.finite(described), allow_nan=False))
        return
    screen = Console(highlight=False, markup=False, emoji=False)
    if not screen.is_terminal:
        screen.width = width
    for line in lines:
        if isinstance(line, str):
            screen.print(printable(line))
        else:
            screen.print(plain_table(*line) if isinstance(line, tuple) else line)
    for line in end or []:
        print(printable(line))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """Make a table; the first `left` columns are aligned left, the others right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(
            printable_lines(column), justify="left" if index < left else "right", no_wrap=index == 0
        )
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def _text(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _mean(average: Average | None, form: str) -> str:
    if average is None:
        return ""
    error = f" ± {average.standard_error:{form}}" if average.seeds > 1 else ""
    return f"{average.value:{form}}{error}"


COLUMNS: dict[str, Callable[[report.ComparisonRow], str]] = {
    "block": lambda row: row.preset,
    "parameters": lambda row: _text(row.parameters, ","),
    "tokens/s": lambda row: _mean(row.tokens_per_second, ",.0f"),
    "loss\nat start": lambda row: _mean(row.initial_loss, ".3f"),
    "loss\nat end": lambda row: "diverged" if row.diverged else _mean(row.final_loss, ".3f"),
    "learning\nrate": lambda row: _text(row.rate, "g"),
    "tokens a\nparameter": lambda row: _text(row.tokens_a_parameter, ".3g"),
    "heterogeneity\nbefore training": lambda row: report.ratio_text(row.before),
    "heterogeneity\nafter training": lambda row: report.ratio_text(row.after),
}
"""Heading → its cell in the row of a block."""


def comparison_table(comparison: report.Comparison) -> report.Table:
    """Make the table of a comparison, one block per row."""
    columns, rows = report.table(COLUMNS, comparison.rows)
    if (reference := comparison.results.reference) is not None:
        bigrams = {"block": "bigram table", "loss\nat end": f"{reference:.3f}"}
        rows.append(tuple(bigrams.get(name, "") for name in columns))
    return columns, rows


def task_bars(
    *columns: rich.progress.ProgressColumn, field: str, **options: Any
) -> rich.progress.Progress:
    """Make progress bars on standard error: description, bar, `columns`, a field of the task."""
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        *columns,
        rich.progress.TextColumn(f"{{task.fields[{field}]}}", markup=False),
        console=Console(stderr=True),
        **options,
    )


def _print(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


class ScreenProgress(Progress):
    """Progress with a bar for the current stage, or one line per finished stage off a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.begun = 0.0  # what the process spent on imports counts

    def note(self, text: str) -> None:
        """Print the line on standard error, and keep it in `notes`."""
        self.notes.append(text)
        _print(text)

    @contextlib.contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        """Show a bar while the stage runs, or one line at its end: time and last loss."""
        label, start, self._loss = printable(f"{name} {detail}".strip()), time.perf_counter(), ""
        hidden, ended = not sys.stderr.isatty(), threading.Event()

        def tell() -> None:
            while not ended.wait(EVERY):
                _print(f"{label}: {time.perf_counter() - start:.0f} s so far {self._loss}".strip())

        teller = threading.Thread(target=tell, daemon=True)
        if hidden:
            teller.start()
        columns = rich.progress.TimeElapsedColumn(), rich.progress.TimeRemainingColumn()
        self._bars = task_bars(*columns, field="loss", transient=True, disable=hidden)
        try:
            with super().stage(name, detail, total), self._bars:
                self._task = self._bars.add_task(label, total=total, loss="")
                yield
        finally:
            ended.set()
            if hidden:
                teller.join()  # or its line might come after the last one
                loss = f", training {self._loss}" if self._loss else ""
                _print(f"{label}: {time.perf_counter() - start:.1f} s{loss}")

    def step(self, done: int, loss: float | None) -> None:
        """Advance the bar, and store the last loss."""
        self._loss = "" if loss is None else f"loss {loss:.3f}"
        self._bars.update(self._task, completed=done, loss=self._loss)
