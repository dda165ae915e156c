"""Measure how much of the Gauss-Newton matrix lies between weight matrices, and whether it matters.

The rule: PLAN.md beside this file, section `between`.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pydoc_data.topics import topics

import torch
from torch import nn

from hessblocks.data import Windows, encoded
from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row, Scalar
from hessblocks_studies import shared
from hessblocks_studies.between import diagonal_blocks as blocks
from hessblocks_studies.data import SMOLLM2, load_docstrings, load_packaged
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary

BASE, SIMPLE = "pre-ln, zero queries", "sas-p"
PROSE, CODE = "prose", "docstrings"
"""Texts on which SmolLM2 is measured: Python's language reference, docstrings."""
RATES = {BASE: 1e-2, SIMPLE: 1e-2}
"""Block → peak learning rate at width 64; other widths: scaled by 1 / width."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": replace(shared.SMALLEST, evaluations=1),
    "laptop": replace(
        shared.LAPTOP, steps=1500, evaluations=1, data=f"{shared.PACKAGE}torch{shared.NO_TABLES}"
    ),
    "paper": shared.PAPER,
}
WIDTHS: dict[Scale, tuple[int, ...]] = {"smoke": (), "laptop": (32, 128), "paper": (512,)}
CLASSES: dict[Scale, tuple[int, ...]] = {"smoke": (512,), "laptop": (512, 4096), "paper": (8192,)}
"""Scale → further sizes of the vocabulary."""
WINDOWS: dict[Scale, tuple[int, ...]] = {"smoke": (2,), "laptop": (4, 16, 32), "paper": (16, 64)}
"""Scale → numbers of windows at the usual size; the middle one elsewhere."""
PROBES: dict[Scale, int] = {"smoke": 4, "laptop": 16, "paper": 16}
OTHERS = 1000
"""Added to the seed of the windows that choose and judge steps."""
SAMPLES = 64
"""Sampled gradients for SmolLM2."""
BATCHES = ((PROSE, 4), (CODE, 4), (PROSE, 16))
"""Texts and numbers of windows for SmolLM2."""
SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 3, "paper": 3}
MOST, NEAR = 0.5, 0.1
"""Share above which most of ‖H‖² lies between blocks; tolerance of a ratio of decreases."""


@dataclass(frozen=True, kw_only=True)
class BetweenSettings(shared.TrainedSettings):
    """Settings of a point: one model that is trained here, or SmolLM2 on one text."""

    windows: tuple[int, ...]
    """Numbers of held-out windows of the measured batches."""
    probes: int
    """Random vectors, or sampled gradients for SmolLM2."""
    takes_steps: bool = False
    """Whether Gauss-Newton steps are measured after training."""
    text: str | None = None
    """Text of SmolLM2; None for models that are trained here."""


def settings(scale: Scale, seeds: int | None) -> list[BetweenSettings]:
    """List the usual size, other widths, other vocabularies, then SmolLM2 on `BATCHES`."""
    usual, windows = SIZES[scale], WINDOWS[scale]
    few = windows[len(windows) // 2 :][:1]
    places = [(block, usual, windows, True) for block in (BASE, SIMPLE)]
    places += [(BASE, shared.widened(usual, width), few, False) for width in WIDTHS[scale]]
    places += [(BASE, replace(usual, vocab_size=count), few, False) for count in CLASSES[scale]]
    found = [
        BetweenSettings(
            study="between",
            variant=block,
            seed=seed,
            size=replace(size, learning_rate=RATES[block] * 64 / size.width),
            embedding_std=shared.best_start(block, size.width),
            windows=some,
            probes=PROBES[scale],
            takes_steps=steps,
        )
        for (block, size, some, steps), seed in itertools.product(
            places, range(seeds or SEEDS[scale])
        )
    ]
    if scale == "smoke":
        return found
    real = replace(found[0], variant=SMOLLM2, embedding_std=None, probes=SAMPLES, takes_steps=False)
    return [*found, *(replace(real, windows=(count,), text=text) for text, count in BATCHES)]


def measure(settings: BetweenSettings) -> list[Row]:
    """Train a model and measure its blocks before and after, or measure SmolLM2's."""
    size = settings.size
    if settings.text is not None:
        found = _pretrained(settings, settings.text)
        return [{**settings.owner, "step": 0, "text": settings.text, **row} for row in found]
    corpus = shared.text_of(size)
    held = corpus.windows("validation", size.context)

    def drawn(count: int, seed: int) -> torch.Tensor:
        return held.drawn(count, seed, "windows", f"the held-out text of {corpus.name}")

    def observe(model: nn.Module, step: int) -> list[Row]:
        if step not in (0, size.steps):
            return []
        model.eval()
        rows: list[Row] = []
        for count in settings.windows:
            one = blocks.Blocks(problem=blocks.problem_of(model, drawn(count, settings.seed)))
            found = [*one.share_rows(settings.probes, settings.seed), *one.cosine_rows()]
            if settings.takes_steps and step and count == settings.windows[-1]:
                chosen, judged = drawn(2 * count, settings.seed + OTHERS).split(count)
                others = (blocks.problem_of(model, tokens) for tokens in (chosen, judged))
                found += one.step_rows(*others)
            rows += [{**row, "windows": count} for row in found]
        return rows

    rows = shared.train_point(settings, observe)
    place: Row = {"text": None, "width": size.width, "classes": size.vocab_size}
    return [{**row, **place} for row in [*rows, *_table(settings)]]


def _table(settings: BetweenSettings) -> list[Row]:
    """Compute the loss of the bigram table on the same held-out windows."""
    rows = shared.train_point(replace(settings, variant=shared.BIGRAMS))
    return [{**row, "variant": settings.variant, "group": shared.BIGRAMS} for row in rows[-1:]]


def _pretrained(settings: BetweenSettings, text: str) -> Iterator[Row]:
    model, tokenizer = load_packaged(SMOLLM2, "between")
    code = (one.text for one in load_docstrings() if one.kind != "prose")
    parts = topics.values() if text == PROSE else code
    ids = encoded(tokenizer, ["\n\n".join(parts)])
    (count,) = settings.windows
    batch = Windows(ids, settings.size.context).drawn(count, settings.seed)
    problem = blocks.problem_of(model, batch)
    for row in blocks.sampled_rows(problem, settings.probes, settings.seed):
        yield {**row, "windows": count}


def summarise(rows: Rows) -> Summary:
    """Plot the shares against size and classes, and the decreases; judge each."""
    found = _Found(rows)
    return shared.summary(
        "What a block-diagonal Gauss-Newton matrix leaves out",
        "Share of the squared Frobenius norm of H_o outside its diagonal blocks, for blocks of "
        "weight matrices and of layers, before and after training (mean over seeds); and what one "
        "damped Gauss-Newton step gains on other windows with all of H_o or with blocks alone.",
        [one for one in (*found.share_panels(), found.step_panel()) if one.shown],
        found.checks(),
        shares=found.table(blocks.SHARE, blocks.DEFLATED, blocks.COSINE),
        decreases=found.table(blocks.DECREASE, blocks.DAMPING, blocks.SCALE, blocks.UNSOLVED),
    )


COLUMNS = (
    *("study", "variant", "text", "seed", "step", "tokens", "width", "classes", "windows"),
    *("quantity", "group", "value", "standard_error", "method"),
)
"""Columns of results.csv."""
PLACE = ("variant", "text", "width", "classes", "windows", "moment")
"""Columns of a model at a moment, measured on one batch."""
BEFORE, AFTER = "before training", "after training"
Seeds = Mapping[Scalar, float]


class _Found:
    """Values of a study's rows, by place and seed."""

    def __init__(self, rows: Rows) -> None:
        rows = [{**dict.fromkeys(COLUMNS), **row} for row in rows]
        self.rows = [
            {**row, "moment": AFTER if row["step"] or row["text"] else BEFORE}
            for row in rows
            if row["windows"]
        ]
        self.values = shared.nested(self.rows, ("quantity", "group"), PLACE, "seed")
        losses = [row for row in shared.of_quantity(rows, shared.LOSS) if row["step"]]
        self.losses = shared.nested(losses, ("variant", "width", "classes"), "group", "seed")
        usual = [row for row in self.rows if row["variant"] == SIMPLE]
        self.width: Scalar = usual[0]["width"] if usual else None
        self.classes: Scalar = usual[0]["classes"] if usual else None
        counts = sorted({row["windows"] for row in usual})
        self.windows = counts[len(counts) // 2] if counts else None

    def at(self, quantity: str, group: str, block: str, moment: str, **place: Scalar) -> Seeds:
        """Find the values of a block, at the usual size unless `place` says otherwise."""
        usual = {"width": self.width, "classes": self.classes, "windows": self.windows}
        key = {"variant": block, "text": None, "moment": moment, **usual, **place}
        every = self.values.get((quantity, group), {})
        chosen: Seeds = every.get(tuple(key[name] for name in PLACE), {})
        return chosen

    def share_panels(self) -> Iterator[Panel]:
        """Plot the shares of the base block against width and classes."""
        labels = {"width": "width of the model", "classes": "entries of the vocabulary"}
        for axis, label in labels.items():
            places = sorted({row[axis] for row in self.rows if row[axis] is not None})
            curves = {
                f"{division}, {moment.removesuffix(' training')}": [
                    (float(one), *mean_and_error(list(each.values())))
                    for one in places
                    if (each := self.at(blocks.SHARE, division, BASE, moment, **{axis: one}))
                ]
                for division in blocks.DIVISIONS
                for moment in (BEFORE, AFTER)
            }
            yield shared.panel(
                f"against the {axis}", label, "share of ‖H_o‖² between blocks", curves, log="x"
            )

    def step_panel(self) -> Panel:
        """Plot the decrease of the loss by each kind of step."""
        return replace(
            shared.places_panel(
                {
                    block: {
                        kind: mean_and_error(list(each.values()))
                        for kind in KINDS
                        if (each := self._of_steps(blocks.DECREASE, block, kind))
                    }
                    for block in (BASE, SIMPLE)
                },
                "decrease of the loss (nats per token)",
                bars=True,
            ),
            title="one step after training",
        )

    def _of_steps(self, quantity: str, block: str, kind: str) -> Seeds:
        counts = {row["windows"] for row in self.rows if row["quantity"] == blocks.DECREASE}
        if not counts:
            return {}
        return self.at(quantity, kind, block, AFTER, windows=max(counts))

    def checks(self) -> list[Check]:
        """Judge the shares, their change with the classes, and the steps."""
        batches = itertools.product(BATCHES, blocks.DIVISIONS)
        return [
            *self._share_checks(),
            *(self._pretrained_check(*batch, division) for batch, division in batches),
            *self._class_checks(),
            *self._step_checks(),
        ]

    def _share_checks(self) -> Iterator[Check]:
        quantities = {blocks.SHARE: "", blocks.DEFLATED: " without outliers"}
        for block, division in itertools.product((BASE, SIMPLE), blocks.DIVISIONS):
            for quantity, words in quantities.items():
                each = shared.over_seeds(self.at(quantity, division, block, AFTER))
                check = each.judged(
                    f"most of ‖H_o‖²{words} lies between {division} of {block} after training",
                    f"open question: above {MOST}",
                    limit=MOST,
                    unit="of ‖H_o‖²",
                    signed=False,
                )
                yield self._if_it_learnt(block, check, self.classes)

    def _class_checks(self) -> Iterator[Check]:
        counts = sorted({row["classes"] for row in self.rows if row["classes"]})
        ends = (counts[0], counts[-1]) if len(counts) > 2 else ()
        for division, moment in itertools.product(blocks.DIVISIONS, (BEFORE, AFTER)):
            few, many = (
                (self.at(blocks.SHARE, division, BASE, moment, classes=one) for one in ends)
                if ends
                else ({}, {})
            )
            check = shared.over_seeds(shared.gaps(few, many)).judged(
                f"the share between {division} falls as classes are more, {moment}",
                "arXiv 2505.02809: off-diagonal blocks fall with the number of classes",
                unit="of ‖H_o‖²",
            )
            for one in ends if moment == AFTER else ():
                check = self._if_it_learnt(BASE, check, one)
            yield check

    def _step_checks(self) -> Iterator[Check]:
        for block, division in itertools.product((BASE, SIMPLE), blocks.DIVISIONS):
            whole, own = (
                self._of_steps(blocks.DECREASE, block, kind) for kind in (blocks.WHOLE, division)
            )
            lost = [seed for seed, decrease in whole.items() if decrease <= 0]
            ratios = {} if lost else {seed: own[seed] / whole[seed] for seed in own}
            check = shared.over_seeds(ratios).matches(
                f"a step of {block} by blocks of {division} gains as much as one by all of H_o",
                f"arXiv 2510.09378 for layers: a ratio within {NEAR} of 1",
                limit=NEAR,
                around=1.0,
                unit="of the decrease",
                signed=False,
            )
            if lost:
                check = check.void(f"the step by all of H_o raised the loss in seed {lost[0]}")
            for kind in (blocks.WHOLE, division):
                stopped = self._of_steps(blocks.UNSOLVED, block, kind)
                if some := [seed for seed in own if stopped.get(seed, 1)]:
                    check = check.void(f"a system of {kind} did not converge in seed {some[0]}")
            yield self._if_it_learnt(block, check, self.classes)

    def _if_it_learnt(self, block: str, check: Check, classes: Scalar) -> Check:
        """Void a check if the block did not end below the bigram table in every seed."""
        found = self.losses.get((block, self.width, classes), {})
        own, table = found.get(None, {}), found.get(shared.BIGRAMS, {})
        if all(loss < table.get(seed, loss) for seed, loss in own.items()):
            return check
        return check.void(f"{block} is not below the bigram table")

    def _pretrained_check(self, text: str, windows: int, division: str) -> Check:
        batch = f"{windows} windows of {text}"
        fact = f"most of ‖H_o‖² lies between {division} of SmolLM2-135M on {batch}"
        for row in shared.of_quantity(self.rows, blocks.SHARE):
            if (row["text"], row["windows"], row["group"]) == (text, windows, division):
                value, error = row["value"], row["standard_error"]
                decided = abs(value - MOST) > 2 * error
                return Check(
                    fact=fact,
                    expected=f"open question: above {MOST}",
                    ours=f"{value:.3f} ± {error:.3f} of ‖H_o‖² (of this batch)",
                    holds=value > MOST if decided else None,
                )
        return Check(fact=fact, expected=f"open question: above {MOST}", ours="", holds=None)

    def table(self, *quantities: str) -> list[dict[str, object]]:
        """Make the table of some quantities: mean and error over seeds, or over samples."""
        table: list[dict[str, object]] = []
        for place, own in shared.grouped(
            shared.of_quantity(self.rows, *quantities), *PLACE, "quantity", "group"
        ).items():
            value, error = mean_and_error([row["value"] for row in own])
            if len(own) == 1:
                error = own[0]["standard_error"]
            names = zip((*PLACE, "quantity", "group"), place, strict=True)
            table.append({**dict(names), "value": value, "error": error, "seeds": len(own)})
        return table


KINDS = (blocks.GRADIENT, blocks.MATRICES, blocks.LAYERS, blocks.WHOLE)
"""Kinds of steps, in the order of the figure."""


STUDY = Study(
    name="between",
    title="what lies between the diagonal blocks of the Gauss-Newton matrix, and what it is for",
    source="ours, on a dispute about block-diagonal curvature",
    published=(
        "Block-diagonal curvature fails (arXiv 2602.00816), layer-wise Gauss-Newton steps are "
        "nearly as good as full ones (2510.09378), off-diagonal blocks fall with the number of "
        "classes (2505.02809)."
    ),
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=COLUMNS,
    gpus=1,
)
