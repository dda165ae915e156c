"""Draw pictures and write tables of README.md, comparison.md and findings.md from results.

Usage: python docs/make_pages.py [FOLDER]
FOLDER holds pages and results, this one by default; the README stands beside it. A picture is of
the panels that its page is about; a table is written behind each line `<!-- table: NAME -->`, where
the old one stood. Nothing is measured here.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hessblocks.drawing import draw, write_picture
from hessblocks.errors import HessblocksError, RunError
from hessblocks.figures import Figure, read_figure
from hessblocks.storage import read_object, write_text
from hessblocks_studies.gallery import VERDICTS

DOCS = Path(__file__).parent
BASE = "pre-ln, zero queries"
NO_CLOCK = {"against_the_base": None, "error_of_the_ratio": None}
"""Of what takes no steps."""
ALL = "all weight matrices"
"""What unevenness is taken over, as the study names it."""
UNKNOWN = "not finished"
"""Begins what a verdict says of runs that are not there."""
CONTROL = re.compile(r"control|rule of this study|\(ours")
"""In what is expected of a control."""
OPTIMISERS = {
    "adamw": "AdamW",
    "sgd": "SGD",
    "muon": "Muon",
    "blockwise": "rates by curvature",
    "published": "published rates",
    "sgd in layers": "SGD in the layers",
}
"""As the study `optimisers` names them in tables → as its figure does."""
GLANCED = {BASE: "pre-LN, zero queries", "sas": "SAS", "sas-p": "SAS-P"}
"""Blocks of the README's table, and what it calls them."""
Data = Mapping[str, Any]
"""What a study left: checks and tables."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Panels of a study's figure."""

    study: str
    """Whose figure it is."""
    name: str
    """Of the file."""
    title: str
    caption: str
    """Below it."""
    panels: Mapping[str, str]
    """Panel of the study's figure → its title in the picture."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers of a page."""

    page: str
    """Its file, from the folder of pages."""
    name: str
    """Of its place in the page."""
    studies: tuple[str, ...]
    """Whose numbers they are, as `make` takes them."""
    make: Callable[..., str]


def main(docs: Path = DOCS) -> None:
    """Draw all pictures, and put the tables into their pages.

    Raises:
        RunError: a file is missing or damaged, or a page lacks the place of a table.
    """
    results = docs / "results"
    for each in PICTURES:
        with TemporaryDirectory() as folder:
            figure = picture(each, read_figure(results / f"{each.study}-figure.json"))
            drawn = write_picture(draw(figure), Path(folder), each.name)
            shutil.copyfile(drawn, results / drawn.name)
    texts: dict[Path, str] = {}
    for table in TABLES:
        made = table.make(*(read_object(results / f"{name}.json") for name in table.studies))
        file = docs / table.page
        text = texts.get(file) or file.read_text(encoding="utf-8")
        place = re.compile(rf"(<!-- table: {table.name} -->\n)(?:\n(?:\|.*\n)+)?")
        texts[file], found = place.subn(lambda found, made=made: f"{found[1]}\n{made}", text)
        if found != 1:
            raise RunError(f"{file.name}: {found} places for the table {table.name}, not one.")
    for file, text in texts.items():
        write_text(file, text)


def picture(asked: Picture, figure: Figure) -> Figure:
    """The panels that a picture is of, in its order and under its titles.

    Raises:
        RunError: a panel is missing.
    """
    known = {panel.title: panel for panel in figure.panels}
    if lacking := asked.panels.keys() - known.keys():
        raise RunError(f"{asked.study}: its figure has no panel {min(lacking)!r}.")
    panels = tuple(replace(known[old], title=new) for old, new in asked.panels.items())
    return replace(figure, title=asked.title, caption=asked.caption, panels=panels)


def at_a_glance(trial: Data, simplification: Data, optimisers: Data) -> str:
    """What three studies found of the simplified blocks beside their base."""
    rows: list[tuple[str, ...]] = []
    for runs, size in (("narrow", "6 × 64, 8,000 steps"), ("wide", "6 × 256, 1,500 steps")):
        found, times = (
            {line["variant"]: line for line in trial["tables"][name] if line["runs"] == runs}
            for name in ("losses", "times")
        )
        rows += [
            (f"{size}: final loss", *(_loss(found[block]) for block in GLANCED)),
            ("parameters", *(f"{found[block]['parameters']:,}" for block in GLANCED)),
            (
                "time of a step, of the baseline's",
                *(_share_of_time(times[block]) for block in GLANCED),
            ),
        ]
    spreads = {
        (line["share_of_the_steps"], line["variant"]): line
        for line in simplification["tables"]["unevenness"]
        if (line["quantity"], line["groups"]) == ("spread", ALL)
    }
    for share, moment in ((0.0, "before training"), (1.0, "after 1,200 steps")):
        told = [spreads[share, block] for block in GLANCED]
        values = (_with_error(line["value"], line["standard_error"]) for line in told)
        rows.append((f"4 × 64: spread of curvature {moment}", *values))
    losses_of = {line["variant"]: line for line in optimisers["tables"]["losses"]}
    for method in ("adamw", "sgd", "muon"):
        named = f"4 × 64, 1,400 steps: final loss with {OPTIMISERS[method]}"
        rows.append((named, *(_loss(losses_of[f"{block}, {method}"]) for block in GLANCED)))
    return _table(("", *GLANCED.values()), rows)


def _share_of_time(line: Mapping[str, Any]) -> str:
    return _with_error(line["against_the_base"], line["error_of_the_ratio"])


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
            f"{line['seeds']}{_diverged(line)}",
            _share_of_time(clock),
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


def matches(data: Data, kinds: Sequence[str]) -> str:
    """The verdicts of some kinds, the first words of their facts, as far as they are measured."""
    rows = [
        (check["fact"], check["ours"], VERDICTS[check["holds"]])
        for check in data["checks"]
        if " matches " in check["fact"] or " as far " in check["fact"]
        if check["fact"].startswith(tuple(kinds))
        if not check["ours"].startswith(UNKNOWN)
    ]
    return _table(("claim", "difference, ± standard error", "verdict"), rows)


def unevenness(data: Data) -> str:
    """List each block's loss, lowest first, and its spread of norms before and after training."""
    spreads = {
        (line["groups"], line["share_of_the_steps"], line["variant"]): _with_error(
            line["value"], line["standard_error"]
        )
        for line in data["tables"]["unevenness"]
        if line["quantity"] == "spread"
    }
    columns = [(groups, share) for groups in ("common matrices", ALL) for share in (0.0, 1.0)]
    lines = sorted(
        data["tables"]["losses"],
        key=lambda line: (line["diverged"], line["final_loss"] or math.inf),
    )
    rows = [
        (
            line["variant"],
            _loss(line),
            *(spreads.get((*column, line["variant"]), "") for column in columns),
        )
        for line in lines
    ]
    head = (
        "block",
        "final loss (nats per token)",
        "common matrices, before",
        "after",
        "all matrices, before",
        "after",
    )
    return _table(head, rows)


def by_optimiser(data: Data) -> str:
    """Final loss of each block with each optimiser."""
    lines = {tuple(line["variant"].rsplit(", ", 1)): line for line in data["tables"]["losses"]}
    methods = [name for name in OPTIMISERS if any(name == own[-1] for own in lines)]
    blocks = dict.fromkeys(own[0] for own in lines if own[-1] in methods)
    rows = [
        (
            block,
            *(_loss(line) if (line := lines.get((block, method))) else "" for method in methods),
        )
        for block in blocks
    ]
    return _table(("block", *(OPTIMISERS[method] for method in methods)), rows)


def gaps(data: Data) -> str:
    """Tabulate SGD's gap to AdamW, and the unevenness of H and of AdamW's preconditioned H."""
    lines = [
        line
        for line in data["tables"]["gaps"]
        if line["groups"] == "common matrices" and line["moment"].startswith("after")
    ]
    lines.sort(key=lambda line: line["gap"] if line["gap"] is not None else math.inf)
    rows = [
        (
            line["block"],
            _with_error(line["gap"], line["gap_error"]) or "diverged",
            _with_error(line["spread"], line["spread_error"]),
            _with_error(line["spread_that_adamw_meets"], None),
        )
        for line in lines
    ]
    head = (
        "block",
        "SGD above AdamW (nats per token)",
        "spread of H (decades)",
        "of what AdamW's step meets",
    )
    return _table(head, rows)


def speeds(data: Data) -> str:
    """How many times as fast as pre-ln each block trains / decodes, at every width."""
    found: dict[str, dict[int, str]] = {}
    for line in data["tables"]["speeds"]:
        cell = f"{line['training_speed']:.2f} / {line['decoding_speed']:.2f}"
        found.setdefault(line["variant"], {})[line["width"]] = cell
    widths = sorted({width for each in found.values() for width in each})
    rows = [(name, *(each.get(width, "") for width in widths)) for name, each in found.items()]
    return _table(("block", *(f"width {width}" for width in widths)), rows)


def checks(data: Data) -> str:
    """Every answer of a study, and every control that failed."""
    rows = [
        (check["fact"], check["ours"], VERDICTS[check["holds"]])
        for check in data["checks"]
        if check["holds"] is not True or not CONTROL.search(check["expected"])
    ]
    return _table(("claim", "found", "verdict"), rows)


def _loss(line: Mapping[str, Any]) -> str:
    return f"{_with_error(line['final_loss'], line['standard_error'])}{_diverged(line)}"


def _diverged(line: Mapping[str, Any]) -> str:
    return f", {line['diverged']} diverged" if line["diverged"] else ""


def _with_error(value: float | None, error: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" + (f" ± {error:.3f}" if error else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


COMPARISON = Picture(
    study="trial",
    name="comparison",
    title="Simplified blocks against pre-LN",
    caption="Each block at its best learning rate and initial embeddings, means over seeds, bars "
    "are standard errors (none for a single "
    "seed). Curves begin after a fifth of the steps, before which the means of pre-LN with zero "
    "queries, SAS and SAS-P at width 64 are within 0.03 of each other. Thin lines are the bounds "
    "of a match. With one thing "
    "changed, the base has the lower rate and the other text too; pre-LN without values is "
    "compared with pre-LN as it is.",
    panels={
        "narrow: runs": "validation loss, width 64",
        f"narrow: runs, above {BASE}": "loss above pre-LN with zero queries, width 64",
        "narrow: runs, one thing changed": "the same at the end, one thing changed, width 64",
        "wide: runs against time": "loss against time, width 256",
    },
)
FINDINGS = Picture(
    study="simplification",
    name="findings",
    title="Uneven curvature and loss",
    caption="Sixteen blocks, each at its best learning rate, means over three seeds. A mark is a "
    "family of blocks, and the curves are of one block of each; those of losses begin "
    "after a fifth of the steps. Farther left is more "
    "even, lower is better. Common matrices are query and both of the MLP. Bars are standard "
    "errors of the loss; those of the spread, up to 0.04, are not drawn.",
    panels={
        "runs": "validation loss",
        "spread, all weight matrices": "unevenness of all matrices",
        "common matrices, before training": "common matrices, before training",
        "common matrices, after training": "common matrices, after training",
    },
)
EDGES = Picture(
    study="edge-of-stability",
    name="edges",
    title="Learning rates with and without warm-up",
    caption="Final loss at each peak rate, and how near the edge of stability training is at each "
    "block's best rate: 1 is where a step with AdamW's preconditioner held fixed would no "
    "longer be stable. Means over three seeds, bars are standard errors. Gradients are not "
    "clipped.",
    panels={
        "warm-up": "final loss, with warm-up",
        "no warm-up": "final loss, without warm-up",
        "warm-up: how near the edge": "how near the edge, with warm-up",
        "no warm-up: how near the edge": "how near the edge, without warm-up",
    },
)
ADAM = Picture(
    study="optimisers",
    name="optimisers-and-evenness",
    title="Which optimiser does each block need?",
    caption="Final loss with each optimiser at its best rate, and how far SGD ends above AdamW "
    "against how uneven the curvature is; farther left is more even. Rates by curvature "
    "and published rates are AdamW's, one for each role; SGD in the layers leaves all else to "
    "AdamW. Steps are a share of a run's, of what gets there. Means over seeds, bars are standard "
    "errors.",
    panels={
        "runs": "final loss",
        "steps to pre-ln's loss": "steps to pre-LN's loss with AdamW",
        "gap and unevenness before training": "common matrices, before training",
        "gap and unevenness after training with AdamW": "common matrices, after training",
    },
)
PICTURES = (COMPARISON, FINDINGS, EDGES, ADAM)


def _tables(page: str, study: str, **makers: Callable[[Data], str]) -> tuple[Table, ...]:
    """Tables of one page and one study, by their names."""
    return tuple(
        Table(page=page, name=name, studies=(study,), make=make) for name, make in makers.items()
    )


TABLES = (
    Table(
        page="../README.md",
        name="at a glance",
        studies=("trial", "simplification", "optimisers"),
        make=at_a_glance,
    ),
    *_tables(
        "comparison.md",
        "trial",
        narrow=partial(losses, runs="narrow"),
        wide=partial(losses, runs="wide"),
        verdicts=partial(matches, kinds=("narrow: ", "wide: ")),
        positions=partial(matches, kinds=("rotary ", "sinusoidal ")),
    ),
    *_tables("comparison.md", "speed", speeds=speeds),
    *_tables("findings.md", "simplification", blocks=unevenness, verdicts=checks),
    *_tables("findings.md", "edge-of-stability", edges=checks),
    *_tables("findings.md", "optimisers", optimisers=by_optimiser, gaps=gaps, adam=checks),
)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    try:
        main(*map(Path, sys.argv[1:]))
    except HessblocksError as error:
        sys.exit(str(error))
