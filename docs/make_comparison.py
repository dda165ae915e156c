"""Curves, pictures and the table of comparison.md from the folder of a `hessblocks compare`.

Run `python docs/make_comparison.py RUN`: writes results/comparison.csv and results/comparison-*.png, prints
the table, which is pasted into the page.
"""

from __future__ import annotations

import csv
import itertools
import shutil
import statistics
import sys
from pathlib import Path

from hessblocks.errors import HessblocksError
from hessblocks.report import comparison_rows, write_report
from hessblocks.report.comparison import COLUMNS, comparison_cells
from hessblocks.storage import FolderResults, atomic_path, load_results

TARGET = Path(__file__).parent / "results"
PICTURES = ("loss-steps", "loss-seconds")


def main(run: Path, target: Path = TARGET) -> None:
    """Write the curves, copy the pictures, print the table.

    Raises:
        RunError: the folder is damaged or cannot be read.
    """
    write_report(run)
    results = load_results(run)
    write_curves(results, target / "comparison.csv")
    for name in PICTURES:
        shutil.copyfile(run / "figures" / f"{name}.png", target / f"comparison-{name}.png")
    print(losses(results))


def write_curves(results: FolderResults, path: Path) -> None:
    """The validation losses along training."""
    with atomic_path(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("preset", "seed", "step", "tokens", "seconds", "validation_loss"))
        for row in results.metrics:
            if row.split == "validation":
                seconds, loss = f"{row.seconds:.1f}", f"{row.loss:.5f}"
                writer.writerow((row.preset, row.seed, row.step, row.tokens, seconds, loss))


def losses(results: FolderResults) -> str:
    """A row a block: that of the report, and the time to the first block's final loss."""
    rows = comparison_rows(results)
    first = rows[0].preset
    target = mean_curve(results, first)[-1][1]
    head = (*COLUMNS, f"Time to the final loss of {first} (s)")
    cells = [(*comparison_cells(row), reached(results, row.preset, target)) for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *cells))


def reached(results: FolderResults, preset: str, loss: float) -> str:
    """Seconds until the mean curve is down at `loss`, between evaluations on a straight line."""
    curve = mean_curve(results, preset)
    for (seconds, before), (later, after) in itertools.pairwise(curve):
        if after <= loss:
            share = (before - loss) / (before - after)
            return f"{seconds + share * (later - seconds):.0f}"
    return "not reached"


def mean_curve(results: FolderResults, preset: str) -> list[tuple[float, float]]:
    """(training time, validation loss), both averaged over seeds."""
    at: dict[int, list[tuple[float, float]]] = {}
    for row in results.metrics:
        if row.preset == preset and row.split == "validation":
            at.setdefault(row.step, []).append((row.seconds, row.loss))
    return [
        (statistics.mean(s for s, _ in each), statistics.mean(loss for _, loss in each))
        for _, each in sorted(at.items())
    ]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]))
    except HessblocksError as error:
        sys.exit(str(error))
