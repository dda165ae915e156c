"""Picture and tables of comparison.md from what the study `trial` left in results: python docs/make_comparison.py [FOLDER].

FOLDER holds comparison.md and results, this one by default. The picture is of the panels that the page is about; a table is
written behind each line `<!-- table: NAME -->`, where the old one stood. Nothing is measured here.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hessblocks.drawing import draw, write_picture
from hessblocks.errors import HessblocksError, RunError
from hessblocks.figures import read_figure
from hessblocks.report import VERDICTS
from hessblocks.storage import read_study_file, write_text

DOCS = Path(__file__).parent
BASE = "pre-ln, zero queries"
TITLES = {
    "narrow: runs": "validation loss, width 64",
    f"narrow: runs, above {BASE}": "loss above pre-LN with zero queries, width 64",
    "narrow: runs, one thing changed": "the same at the end, one thing changed, width 64",
    "wide: runs against time": "loss against time, width 256",
}
"""Panel of the study → its title on the page."""
CAPTION = """Each block at its best learning rate and initial embeddings (parallel at width 256 is not, see below), means over seeds, bars are standard errors (none for a single \
seed). Curves begin after a fifth of the steps, before which the means of pre-LN, SAS and SAS-P at width 64 are within 0.03 of each other. Thin lines are the bounds of a match. With one thing \
changed, the base has the lower rate and the other text too; pre-LN without values is compared with pre-LN as it is."""
NO_CLOCK = {"against_the_base": None, "error_of_the_ratio": None}
"""Of what takes no steps."""
UNKNOWN = "not finished"
"""Begins what a verdict says of runs that are not there."""
Data = Mapping[str, Any]


def main(docs: Path = DOCS) -> None:
    """Draw the picture and put the tables into the page.

    Raises:
        RunError: a file is missing or damaged, or the page lacks the place of a table.
    """
    figure = read_figure(docs / "results" / "trial-figure.json")
    panels = tuple(
        replace(panel, title=TITLES[panel.title])
        for panel in figure.panels
        if panel.title in TITLES
    )
    figure = replace(
        figure, title="Simplified blocks against pre-LN", caption=CAPTION, panels=panels
    )
    with TemporaryDirectory() as folder:
        drawn = write_picture(draw(figure), Path(folder), "comparison")
        shutil.copyfile(drawn, docs / "results" / drawn.name)
    data = read_study_file(docs / "results" / "trial.json")
    page = (docs / "comparison.md").read_text(encoding="utf-8")
    for name, table in TABLES.items():
        place = re.compile(rf"(<!-- table: {name} -->\n)(?:\n(?:\|.*\n)+)?")
        page, found = place.subn(lambda found, made=table(data): f"{found[1]}\n{made}", page)
        if found != 1:
            raise RunError(f"comparison.md: {found} places for the table {name}, not one.")
    write_text(docs / "comparison.md", page)


def losses(data: Data, runs: str) -> str:
    """What each block of some runs ends with, and what its steps cost."""
    times = {line["variant"]: line for line in data["tables"]["times"] if line["runs"] == runs}
    lines = [line for line in data["tables"]["losses"] if line["runs"] == runs]
    lines.sort(key=lambda line: (line["diverged"], line["final_loss"] or math.inf))
    rows = [
        (
            line["variant"],
            f"{line['parameters']:,}" if line["parameters"] else "",
            _with_error(line["final_loss"], line["standard_error"]),
            f"{line['seeds']}{f', {lost} diverged' if (lost := line['diverged']) else ''}",
            _with_error(clock["against_the_base"], clock["error_of_the_ratio"]),
        )
        for line in lines
        for clock in [times.get(line["variant"], NO_CLOCK)]
    ]
    head = (
        "block",
        "parameters",
        "final loss (nats per token)",
        "seeds",
        "step time, of the base's",
    )
    return _table(head, rows)


def verdicts(data: Data, kinds: Sequence[str]) -> str:
    """The verdicts of some kinds, the first words of their facts, as far as they are measured."""
    rows = [
        (check["fact"], check["ours"], VERDICTS[check["holds"]])
        for check in data["checks"]
        if " matches " in check["fact"] or " as far " in check["fact"]
        if check["fact"].startswith(tuple(kinds))
        if not check["ours"].startswith(UNKNOWN)
    ]
    return _table(("claim", "difference, ± standard error", "verdict"), rows)


TABLES: Mapping[str, Callable[[Data], str]] = {
    "narrow": lambda data: losses(data, "narrow"),
    "wide": lambda data: losses(data, "wide"),
    "verdicts": lambda data: verdicts(data, ("narrow: ", "wide: ")),
    "positions": lambda data: verdicts(data, ("rotary ", "sinusoidal ")),
}


def _with_error(value: float | None, error: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" + (f" ± {error:.3f}" if error else "")


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
