"""Draw pictures and write tables of comparison.md, findings.md and simplify.md from results.

Usage: python docs/make_pages.py [FOLDER]
FOLDER holds pages and results, this one by default. A picture is of
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
from hessblocks.figures import Figure, Panel, Series
from hessblocks.storage import read_object, write_text
from hessblocks_studies.gallery import VERDICTS, read_figure, with_lines

DOCS = Path(__file__).parent
BASE = "pre-ln, zero queries"
TOKENS = 16 * 64
"""Of a step of `trial`."""
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
"""Blocks that pages name first, and what they call them."""
Data = Mapping[str, Any]
"""What a study left: checks and tables."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What a study left."""

    data: Data
    """Checks and tables."""
    figure: Figure
    """All its panels."""

    def panel(self, title: str) -> Panel:
        """One of its panels.

        Raises:
            RunError: it is missing.
        """
        found = [panel for panel in self.figure.plots if panel.title == title]
        if not found:
            raise RunError(f"{self.data['study']}: its figure has no panel {title!r}.")
        return found[0]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Picture of a page, drawn for wide screens and, its panels in one column, for phones."""

    name: str
    """Of the file."""
    studies: tuple[str, ...]
    """Whose numbers it shows, as `make` takes them."""
    make: Callable[..., Figure]


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
    """Draw all pictures, and put the tables into their pages."""
    write_pictures(docs / "results")
    write_tables(docs)


def write_pictures(results: Path) -> None:
    """Draw all pictures, each also for a phone.

    Raises:
        RunError: a file is missing or damaged, or a figure lacks a panel.
    """
    for each in PICTURES:
        figure = each.make(*(study(results, name) for name in each.studies))
        for shown, name in ((figure, each.name), (figure.for_phone(), f"{each.name}-narrow")):
            with TemporaryDirectory() as folder:
                drawn = write_picture(draw(shown, 0), Path(folder), name)
                shutil.copyfile(drawn, results / drawn.name)


def write_tables(docs: Path) -> None:
    """Put the tables into their pages.

    Raises:
        RunError: a file is missing or damaged, or a page lacks the place of a table.
    """
    results, texts = docs / "results", dict[Path, str]()
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


def study(results: Path, name: str) -> Study:
    """Read what a study left."""
    figure = read_figure(results / f"{name}-figure.json")
    return Study(data=read_object(results / f"{name}.json"), figure=figure)


def points_of(
    lines: Iterable[Mapping[str, Any]], name: str, x: str, y: str, error: str | None = None
) -> tuple[Series, ...]:
    """A point of its own for each line of a table that has both numbers."""
    return tuple(
        Series(
            name=line[name],
            x=(line[x],),
            y=(line[y],),
            error=(line[error] or 0.0,) if error else (),
            line=False,
        )
        for line in lines
        if line[x] is not None and line[y] is not None
    )


def comparison(trial: Study) -> Figure:
    """The gap to the base alone, along training and with one thing changed."""
    gap = trial.panel(f"narrow: runs, above {BASE}")
    (base,) = (
        line["parameters"]
        for line in trial.data["tables"]["losses"]
        if (line["runs"], line["variant"]) == ("narrow", BASE)
    )
    shown = [
        replace(one, x=tuple(step * TOKENS / base for step in one.x))
        for one in gap.shown
        if one.name in GLANCED
    ]
    changed = trial.panel("narrow: runs, one thing changed")
    own = [one for one in changed.shown if one.name in GLANCED]
    kept = 1 + max(int(x) for one in own for x in one.x)
    return Figure(
        title="How far do simplified blocks end above pre-LN?",
        caption="Loss above pre-LN with zero queries, six layers of width 64. Each block at its best learning rate and initial embeddings, "
        "means over seeds, bars are standard errors (none for a single seed). With one thing changed the base has the lower rate and the other text too.",
        panels=(
            with_lines(
                replace(
                    gap,
                    title="The longer they train, the farther behind",
                    x_label="tokens read for each parameter",
                    y_label="above pre-LN (nats per token)",
                    series=tuple(shown),
                ),
                {BASE: 0.0, "counts as equal": 0.05},
            ),
            replace(
                changed,
                title="No single change closes the gap surely",
                y_label="above pre-LN (nats per token)",
                series=tuple(own),
                ticks=changed.ticks[:kept],
            ),
        ),
    )


def findings(simplification: Study) -> Figure:
    """Unevenness along training, and the loss against it, every point with its name."""
    spreads = [
        line for line in simplification.data["tables"]["unevenness"] if line["quantity"] == "spread"
    ]
    along = []
    for block in GLANCED:
        own = [one for one in spreads if (one["groups"], one["variant"]) == (ALL, block)]
        own.sort(key=lambda line: line["share_of_the_steps"])
        along.append(
            Series(
                name=block,
                x=tuple(line["share_of_the_steps"] for line in own),
                y=tuple(line["value"] for line in own),
                error=tuple(line["standard_error"] for line in own),
            )
        )
    ends = {
        line["variant"]: line
        for line in spreads
        if (line["groups"], line["share_of_the_steps"]) == ("common matrices", 1.0)
    }
    ranked = sorted(
        (line for line in simplification.data["tables"]["losses"] if line["variant"] in ends),
        key=lambda line: line["final_loss"] or math.inf,
    )
    ranks = [{**ends[line["variant"]], "rank": place} for place, line in enumerate(ranked, start=1)]
    return Figure(
        title="Does simplifying a block even out its curvature, and does that matter?",
        caption="Spread of the Hessian norms of the weight matrices: 1 means that they typically lie a factor of ten from their middle. "
        "First all matrices of three blocks, along training; then those that every block has, after training, in sixteen blocks. "
        "Each at its best learning rate, means over three seeds, bars are standard errors.",
        panels=(
            Panel(
                title="At the start, yes; after a quarter of training, no",
                x_label="share of the training steps",
                y_label="spread of log10 norm (decades)",
                series=tuple(along),
            ),
            Panel(
                title="Evenness does not order the losses",
                x_label="spread of log10 norm (decades)",
                y_label="blocks by final loss, the lowest on top",
                series=points_of(ranks, "variant", "value", "rank"),
                limits=(len(ranks) + 1.0, 0.0),
            ),
        ),
    )


def runs_of_layers(runs: Study) -> Figure:
    """What runs of layers cost by their length, untrained and healed."""
    return Figure(
        title="How many layers can lose a part at once?",
        caption="KL divergence from SmolLM2-135M on the text by which runs are chosen, against the length of a run that grows from the cheapest layer up to 0.1 nats. The skip around attention becomes αI, "
        "a norm becomes a constant, or the MLP reads what attention reads. Attention sinks keep their skips and norms; bars are standard errors.",
        panels=tuple(
            replace(panel, title=panel.title.removeprefix("Run, "), limits=(5e-4, 0.2))
            for panel in runs.figure.plots
            if panel.title.startswith("Run, ")
        ),
    )


def longest_runs(data: Data) -> str:
    """The longest run of each kind, untrained and healed, and what it costs on two texts."""
    costs: dict[tuple[object, ...], list[str]] = {}
    for line in data["tables"]["runs"]:
        if line["quantity"] != "KL, fixed run":
            run = line["rule"], line["healing"], f"{line['first']} to {line['last']}"
            costs.setdefault(run, []).append(_with_error(line["value"], line["standard_error"]))
    head = ("part", "updates", "layers", "nats, reference", "nats, docstrings")
    return _table(head, [(*run, *told) for run, told in costs.items()])


def edges(edge: Study) -> Figure:
    """Final loss against the rate, and how near the edge training is, the edge drawn."""
    return Figure(
        title="Which learning rates does a block stand?",
        caption="Peak rates, eight of each block, and how near the edge of stability training is at each block's best rate: at 1 a step with AdamW's "
        "preconditioner held fixed would no longer be stable. Means over three seeds, bars are standard errors. Gradients are not clipped.",
        panels=(
            with_lines(
                replace(edge.panel("warm-up"), title="With a warm-up SAS-P stands larger rates")
            ),
            with_lines(
                replace(edge.panel("no warm-up"), title="Without one, pre-LN wants a smaller rate")
            ),
            with_lines(
                replace(
                    edge.panel("warm-up: how near the edge"),
                    title="Both train below the edge, with a warm-up",
                ),
                {"the edge": 1.0},
            ),
            with_lines(
                replace(
                    edge.panel("no warm-up: how near the edge"),
                    title="and, but for the first steps, without",
                ),
                {"the edge": 1.0},
            ),
        ),
    )


def by_need(optimisers: Study) -> Figure:
    """A line a block from optimiser to optimiser, and what SGD costs against unevenness."""
    losses_of = {
        tuple(line["variant"].rsplit(", ", 1)): line for line in optimisers.data["tables"]["losses"]
    }
    ticks = ("sgd", "adamw", "muon")
    slopes = []
    for block in dict.fromkeys(own[0] for own in losses_of if own[-1] in ticks):
        told = [
            (place, losses_of[block, method])
            for place, method in enumerate(ticks)
            if (block, method) in losses_of and losses_of[block, method]["final_loss"] is not None
        ]
        if len(told) > 1:
            slopes.append(
                Series(
                    name=block,
                    x=tuple(float(place) for place, _ in told),
                    y=tuple(line["final_loss"] for _, line in told),
                    error=tuple(line["standard_error"] or 0.0 for _, line in told),
                )
            )
    uneven = [
        line
        for line in optimisers.data["tables"]["gaps"]
        if line["groups"] == "common matrices" and line["moment"].startswith("after")
    ]
    scatter = Panel(
        title="Unevenness does not tell what SGD costs",
        x_label="spread of log10 norm (decades)",
        y_label="SGD above AdamW (nats per token)",
        series=points_of(uneven, "block", "spread", "gap", "gap_error"),
    )
    return Figure(
        title="Which optimiser does each block need?",
        caption="Each block with each optimiser at its best rate. Spread: of the matrices that every block has, after training with AdamW; left is more even. "
        "Means over four seeds, bars are standard errors.",
        panels=(
            Panel(
                title="SGD costs pre-LN more than SAS, Muon gives it more",
                x_label="optimiser",
                y_label="final validation loss (nats per token)",
                series=tuple(slopes),
                ticks=tuple(OPTIMISERS[method] for method in ticks),
            ),
            with_lines(scatter, {"no cost": 0.0}),
        ),
    )


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


def rungs(data: Data, phase: str, place: str) -> str:
    """Gaps to the base at every rung of a phase of the first ladder, and the range of one new seed."""
    lines = [line for line in data["tables"]["gaps"] if line["phase"] == phase]
    if not lines:
        return "(not measured)\n"
    found: dict[float, dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["place"], {})[line["block"]] = line
    blocks = tuple(dict.fromkeys(line["block"] for line in lines))
    rows = [
        (
            f"{at:,.0f}",
            *(_interval(each.get(block), "reach") for block in blocks),
            _interval(each.get(blocks[0]), "reach_of_one_new_seed"),
        )
        for at, each in sorted(found.items())
    ]
    return _table((place, *blocks, f"{blocks[0]}, one new seed"), rows)


def climbed(data: Data) -> str:
    """Gaps to the base at every rung of the ladder, and lags, each with the range of a new seed."""
    lines = data["tables"]["gaps"]
    blocks = tuple(dict.fromkeys(line["block"] for line in lines))
    found: dict[tuple[str, int, str], dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        key = (line["measure"], line["width"], line["tokens"])
        found.setdefault(key, {})[line["block"]] = {**line, "gap": line["value"]}
    rows = [
        (
            *map(str, key),
            *(_interval(each.get(block), "reach") for block in blocks),
            _interval(each.get("sas"), "reach_of_one_new_seed"),
        )
        for key, each in found.items()
    ]
    head = ("measure", "width", "tokens a parameter", *blocks, "sas, one new seed")
    return _table(head, rows)


def starts(data: Data) -> str:
    """Lowest loss of the tuning at each gain of the first rung, a block a line."""
    lines = [line for line in data["tables"]["tuning"] if line["loss"] is not None]
    first = min(((line["width"], line["tokens"]) for line in lines), default=None)
    here = [line for line in lines if (line["width"], line["tokens"]) == first]
    gains = sorted({line["gain"] for line in here})
    rows = []
    for block in dict.fromkeys(line["block"] for line in here):
        losses = [
            [line["loss"] for line in here if (line["block"], line["gain"]) == (block, gain)]
            for gain in gains
        ]
        rows.append((block, *(f"{min(each):.3f}" if each else "" for each in losses)))
    return _table(("block", *(f"gain {gain:g}" for gain in gains)), rows)


def neighbours(data: Data) -> str:
    """Best rate of each block and rung, and how much worse the next rates are."""
    grids: dict[tuple[str, int, float], dict[float, dict[float, float]]] = {}
    for line in data["tables"]["tuning"]:
        loss = math.inf if line["loss"] is None else line["loss"]
        grid = grids.setdefault((line["block"], line["width"], line["tokens"]), {})
        grid.setdefault(line["gain"], {})[line["learning_rate"]] = loss
    rows = []
    for (block, width, tokens), grid in grids.items():
        gain = min(grid, key=lambda gain: min(grid[gain].values()))
        losses = sorted(grid[gain].items())
        best = min(range(len(losses)), key=lambda place: losses[place][1])
        beside = [
            f"{losses[place][1] - losses[best][1]:+.3f}" if 0 <= place < len(losses) else "not run"
            for place in (best - 1, best + 1)
        ]
        rate = f"{losses[best][0]:.2g}"
        rows.append((block, str(width), f"{tokens:g}", f"{gain:g}", rate, *beside))
    head = ("block", "width", "tokens a parameter", "gain", "rate", "next lower", "next higher")
    return _table(head, rows)


def _interval(line: Mapping[str, Any] | None, reach: str) -> str:
    if line is None:
        return ""
    if line["gap"] is None:
        return "diverged"
    if line[reach] is None:
        return f"{line['gap']:+.3f} ({line['seeds']} seed)"
    low, high = (line["gap"] + side * line[reach] for side in (-1, 1))
    return f"{line['gap']:+.3f} [{low:+.3f}, {high:+.3f}]"


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


PICTURES = (
    Picture(name="comparison", studies=("trial",), make=comparison),
    Picture(name="findings", studies=("simplification",), make=findings),
    Picture(name="runs-of-layers", studies=("simplified-runs",), make=runs_of_layers),
    Picture(name="edges", studies=("edge-of-stability",), make=edges),
    Picture(name="optimisers-and-evenness", studies=("optimisers",), make=by_need),
)


def _tables(page: str, study: str, **makers: Callable[[Data], str]) -> tuple[Table, ...]:
    """Tables of one page and one study, by their names."""
    return tuple(
        Table(page=page, name=name, studies=(study,), make=make) for name, make in makers.items()
    )


TABLES = (
    *_tables(
        "comparison.md",
        "trial",
        narrow=partial(losses, runs="narrow"),
        wide=partial(losses, runs="wide"),
        verdicts=partial(matches, kinds=("narrow: ", "wide: ")),
        positions=partial(matches, kinds=("rotary ", "sinusoidal ")),
    ),
    *_tables("comparison.md", "speed", speeds=speeds),
    *_tables(
        "comparison.md",
        "ladder",
        climbed=climbed,
        starts=starts,
        neighbours=neighbours,
    ),
    *_tables(
        "comparison.md",
        "ladder-first",
        sizes=partial(rungs, phase="widths", place="parameters of pre-LN"),
        tokens=partial(rungs, phase="tokens", place="tokens per parameter"),
        depths=partial(rungs, phase="depths", place="layers"),
    ),
    *_tables("simplify.md", "simplified-runs", runs=longest_runs),
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
