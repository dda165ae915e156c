"""Picture and tables of comparison.md from what the study `trial` left in results: python docs/make_comparison.py [FOLDER].

FOLDER holds comparison.md and results, this one by default. The picture is of the panels that the page is about; a table is
written behind each line `<!-- table: NAME -->`, where the old one stood. Nothing is measured here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hessblocks.drawing import draw, write_picture
from hessblocks.errors import HessblocksError
from hessblocks.figures import read_figure
from hessblocks.report import VERDICTS
from hessblocks.storage import write_text

DOCS = Path(__file__).parent
BASE = "pre-ln, zero queries"
JUDGED = "about matches"
"""In the facts that are verdicts."""
PANELS = (
    "narrow: runs",
    f"narrow: runs, above {BASE}",
    "narrow: runs, one thing changed",
    "wide: runs against time",
)
Data = Mapping[str, Any]


def main(docs: Path = DOCS) -> None:
    """Draw the picture and put the tables into the page.

    Raises:
        RunError: a file is missing or damaged.
    """
    figure = read_figure(docs / "results" / "trial-figure.json")
    panels = tuple(panel for panel in figure.panels if panel.title in PANELS)
    write_picture(draw(replace(figure, panels=panels)), docs / "results", "comparison")
    data = json.loads((docs / "results" / "trial.json").read_text(encoding="utf-8"))
    page = (docs / "comparison.md").read_text(encoding="utf-8")
    for name, table in TABLES.items():
        place = re.compile(rf"(<!-- table: {name} -->\n)(?:\n(?:\|.*\n)+)?")
        page = place.sub(lambda found, made=table(data): f"{found[1]}\n{made}", page)
    write_text(docs / "comparison.md", page)


def losses(data: Data, runs: str) -> str:
    """What each block of some runs ends with, and what its steps cost."""
    times = {
        line["variant"]: line["against_the_base"]
        for line in data["tables"]["times"]
        if line["runs"] == runs
    }
    rows = [
        (
            line["variant"],
            f"{line['parameters']:,}" if line["parameters"] else "",
            _with_error(line["final_loss"], line["standard_error"]),
            line["seeds"],
            f"{times[line['variant']]:.2f}" if line["variant"] in times else "",
        )
        for line in sorted(data["tables"]["losses"], key=lambda line: line["final_loss"])
        if line["runs"] == runs
    ]
    head = (
        "block",
        "parameters",
        "final loss (nats per token)",
        "seeds",
        "step time, of the base's",
    )
    return _table(head, rows)  # fmt: skip


def verdicts(data: Data) -> str:
    """Every verdict of the trial."""
    rows = [
        (check["fact"], check["ours"], VERDICTS[check["holds"]])
        for check in data["checks"]
        if JUDGED in check["fact"]
    ]
    return _table(("claim", "difference, ± standard error", "verdict"), rows)


TABLES: Mapping[str, Callable[[Data], str]] = {
    "narrow": lambda data: losses(data, "narrow"),
    "wide": lambda data: losses(data, "wide"),
    "verdicts": verdicts,
}


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    try:
        main(*map(Path, sys.argv[1:]))
    except HessblocksError as error:
        sys.exit(str(error))
