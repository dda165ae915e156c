"""List the points of the study `ladder`: at every rung a tuning of each block, then its runs.

Later points follow from the losses of the tuning, so no rate is filled in by hand.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Scale

BASE = "pre-ln, zero queries"
"""Block whose loss is subtracted in gaps."""
JUDGED = ("sas", "sas-p")
"""Blocks with verdicts."""
BLOCKS = ("pre-ln", BASE, *JUDGED)
TUNING, RUNS = shared.TUNING, "runs"
TABLE = shared.BIGRAMS
UNIT = 64
"""Width at which 10^(quarter / 4) is the rate; other widths: in proportion to 1 / width."""
FIRST = -8
"""Quarter of the rate that every block tries first, 1e-2."""
FIXED = 0.0
"""Gain that stands for a standard deviation of 0.02 in all matrices, as the authors have it."""
LAST = 8192
"""Number of held-out windows of the last loss, spread evenly."""
Rung = tuple[int, float]
"""Width, and training tokens per parameter of pre-ln."""
Grid = Mapping[float, Mapping[int, float]]
"""Gain → quarter → last loss of the tuning run; infinite if it diverged."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """What a scale measures."""

    size: shared.TextSize
    """Sizes; width, steps and rate are those of a point."""
    rungs: tuple[Rung, ...]
    """Rungs, in the order of measurement."""
    gains: tuple[float, ...]
    """Initial standard deviations that each block tries, in units of 1 / √inputs."""
    quarters: range = range(-16, 1)
    """Quarters that a tuning may try."""
    seeds: int = 5
    """Seeds of the runs."""
    share: float = 1.0
    """Share of the tokens that is used."""
    tuned: float = 1.0
    """Length of a tuning run, as a share of that of a run."""


EXTENTS: dict[Scale, Extent] = {
    "smoke": Extent(
        size=replace(shared.SMALLEST, evaluations=2),
        rungs=((16, 4), (16, 12)),
        gains=(0.32,),
        quarters=range(-9, -6),
        seeds=1,
        share=0.01,
    ),
    "laptop": Extent(
        size=replace(
            shared.LAPTOP, evaluations=10, data=f"{shared.PACKAGE}torch+sympy{shared.NO_TABLES}"
        ),
        rungs=tuple((width, tokens) for width in (64, 96, 128) for tokens in (4, 12)),
        gains=(0.32, 0.56, 1.0),
    ),
    "paper": Extent(size=shared.PAPER, rungs=((768, 4.25),), gains=(FIXED,), seeds=3, tuned=0.2),
}


@dataclass(frozen=True, kw_only=True)
class LadderSettings(shared.TunedSettings):
    """Settings of a point: one model, or the bigram table."""

    scale: Scale
    """Scale of the study."""
    tokens_a_parameter: float
    """Training tokens per parameter of pre-ln, of a run of full length."""
    gain: float | None = None
    """Initial standard deviation of random matrices in units of 1 / √inputs; None: no model."""
    quarter: int | None = None
    """Quarter of the learning rate; None: no model."""

    @property
    def rung(self) -> Rung:
        """Width and tokens per parameter."""
        return self.size.width, self.tokens_a_parameter


def parameters(size: shared.TextSize) -> int:
    """Count pre-ln's parameters: 4 w² + 2 w m and two norms per layer, embeddings, last norm."""
    layer = 4 * size.width**2 + 2 * size.width * size.mlp_width + 2 * size.width
    return size.depth * layer + (size.vocab_size + 1) * size.width


def at(block: str, rung: Rung) -> str:
    """Name a block at a rung."""
    return f"{block} (width {rung[0]}, {rung[1]:g} tokens)"


def size_of(extent: Extent, rung: Rung, share: float = 1.0) -> shared.TextSize:
    """Compute the size of a run, or of a share of it; steps are a multiple of the evaluations."""
    size = shared.widened(extent.size, rung[0])
    tokens = share * extent.share * rung[1] * parameters(size)
    between = round(tokens / (size.batch_size * size.context * size.evaluations))
    return replace(size, steps=max(1, between) * size.evaluations)


def rate_of(quarter: int, width: int) -> float:
    """Compute the learning rate of a quarter at a width."""
    return float(f"{10 ** (quarter / 4) * UNIT / width:.4g}")


def std_slots(block: str, gain: float, size: shared.TextSize) -> tuple[str, ...]:
    """Set the initial std of a block's random matrices to gain / √inputs; positions are rotary."""
    if gain == FIXED:
        return ()  # the preset's own, with the authors' positions
    names = ["attention.key", "mlp.input"]
    names += ["attention.query"] if block == "pre-ln" else []
    names += [] if block in JUDGED else ["attention.value", "attention.projection"]
    return (
        "position=rotary",
        *(f"{name}.std={gain / math.sqrt(size.width):.6g}" for name in names),
        f"mlp.output.std={gain / math.sqrt(size.mlp_width):.6g}",
    )


def _table(scale: Scale, seed: int) -> LadderSettings:
    """Make the point of the bigram table, whose loss is that of all rungs."""
    extent = EXTENTS[scale]
    size = size_of(extent, extent.rungs[0])
    if scale != "smoke":
        size = replace(size, evaluation_sequences=LAST)
    return LadderSettings(
        study="ladder",
        variant=TABLE,
        seed=seed,
        size=size,
        phase=RUNS,
        label=TABLE,
        scale=scale,
        tokens_a_parameter=extent.rungs[0][1],
    )


def _model(
    scale: Scale, rung: Rung, block: str, gain: float, quarter: int, seed: int | None = None
) -> LadderSettings:
    """Make the point of a model: a run with a seed, or without one a tuning run."""
    extent, tuning = EXTENTS[scale], seed is None
    size = size_of(extent, rung, extent.tuned if tuning else 1.0)
    return LadderSettings(
        study="ladder",
        variant=block,
        seed=shared.TUNING_SEED if seed is None else seed,
        size=replace(size, learning_rate=rate_of(quarter, rung[0])),
        phase=TUNING if tuning else RUNS,
        label=at(f"{block}, gain {gain:g}" if tuning else block, rung),
        tuned=True if tuning else None,
        slots=std_slots(block, gain, size),
        embedding_std=None if gain == FIXED else shared.best_start(block, rung[0]),
        scale=scale,
        tokens_a_parameter=rung[1],
        gain=gain,
        quarter=quarter,
    )


def grids_of(rows: Rows) -> dict[tuple[str, int, float], Grid]:
    """Collect the losses of the tuning: block, width and tokens → gain → quarter → last loss."""
    tuning = [r for r in rows if r["phase"] == TUNING and r["quantity"] == shared.LOSS]
    losses = [{**r, "value": math.inf if r["value"] is None else r["value"]} for r in tuning]
    grids: dict[tuple[str, int, float], Grid] = shared.nested(
        losses, ("block", "width", "tokens_a_parameter"), "gain", "quarter"
    )
    return grids


def best_quarter(losses: Mapping[int, float]) -> int:
    """Find the quarter of the lowest loss; the lowest quarter if all runs diverged."""
    return min(losses, key=lambda quarter: (losses[quarter], quarter))


def best_of(grid: Grid) -> tuple[float, int]:
    """Find the gain and the quarter of the lowest loss."""
    gain = min(grid, key=lambda gain: min(grid[gain].values()))
    return gain, best_quarter(grid[gain])


def wanted(losses: Mapping[int, float], first: int) -> list[int]:
    """List the quarters that a best rate with both neighbours still needs.

    Args:
        losses: quarter → loss, of what is measured.
        first: quarter to begin with.

    Returns:
        The quarters; none if the lowest loss has a measured neighbour on both sides.
    """
    middle = best_quarter(losses) if losses else first
    return [q for q in (middle, middle - 1, middle + 1) if q not in losses]


def _tuning(
    scale: Scale, grids: Mapping[tuple[str, int, float], Grid]
) -> Iterator[tuple[Rung, list[LadderSettings]]]:
    """Yield each rung with the tuning runs that it still needs; without any, the next follows."""
    extent = EXTENTS[scale]
    for number, rung in enumerate(extent.rungs):
        before = [r for r in extent.rungs[:number] if r[1] == rung[1]]
        before += [r for r in extent.rungs[:number] if r[0] == rung[0]]
        points = []
        for block in BLOCKS:
            gains, first = extent.gains, FIRST
            if before:
                gain, first = best_of(grids[block, *before[-1]])
                gains = (gain,)
            grid = grids.get((block, *rung), {})
            points += [
                _model(scale, rung, block, gain, quarter)
                for gain in gains
                for quarter in wanted(grid.get(gain, {}), first)
                if quarter in extent.quarters
            ]
        yield rung, points


def more(rows: Rows, settings: Sequence[LadderSettings]) -> list[LadderSettings]:
    """List the points that follow from what is measured.

    Args:
        rows: rows of all points so far.
        settings: settings of these points.

    Returns:
        The tuning runs that the first untuned rung needs, or the runs of the first tuned rung that
        lacks them; none if all is measured.
    """
    scale, there = settings[0].scale, {*settings}
    seeds = [point.seed for point in settings if point.variant == TABLE]
    grids = grids_of(rows)
    for rung, tuning in _tuning(scale, grids):
        if tuning:
            return tuning
        runs = [
            _model(scale, rung, block, *best_of(grids[block, *rung]), seed)
            for seed in seeds
            for block in BLOCKS
        ]
        missing = [point for point in runs if point not in there]
        if missing:
            return missing
    return []


def points(scale: Scale, count: int | None) -> list[LadderSettings]:
    """List the points that follow from nothing: the bigram table and the first tuning runs.

    Args:
        scale: scale of the study.
        count: seeds of the runs; None for the scale's default.

    Returns:
        The points' settings; `more` lists those that follow.
    """
    tables = [_table(scale, seed) for seed in shared.run_seeds(count or EXTENTS[scale].seeds)]
    return [*tables, *more((), tables)]


def off_the_rule(
    grids: Mapping[tuple[str, int, float], Grid],
    rung: Rung,
    runs_at: Mapping[str, Collection[tuple[float, int]]],
) -> list[str]:
    """List how the tuning of a rung breaks the rule.

    Args:
        grids: losses of the tuning at all rungs.
        rung: rung of the runs.
        runs_at: block → gains and quarters of its runs at the rung.

    Returns:
        The faults, each with its block.
    """
    first = min(key[1:] for key in grids)
    off = []
    for block in BLOCKS:
        grid = grids.get((block, *rung), {})
        off += [
            f"{block} has no lower and higher rate beside its best at gain {gain:g}"
            for gain, losses in grid.items()
            if wanted(losses, FIRST) or not math.isfinite(min(losses.values()))
        ]
        if tried(grids, block, rung) != tried(grids, BASE, rung):
            off.append(f"{block} was tuned over other gains or rates than {BASE}")
        elif grid:
            gain, _ = best_of(grids[block, *first])
            best = {(gain, best_quarter(grid[gain]))} if gain in grid else set()
            if set(runs_at.get(block, best)) != best:
                off.append(f"{block} runs at another start or rate than its best")
    return off


def tried(grids: Mapping[tuple[str, int, float], Grid], block: str, rung: Rung) -> str:
    """Describe what a block was tuned over: gains at the first rung, rates at its own."""
    first: Rung = min((key[1:] for key in grids), default=rung)
    gains = ", ".join(f"{gain:g}" for gain in sorted(grids.get((block, *first), {})))
    apart = [
        later - earlier
        for losses in grids.get((block, *rung), {}).values()
        for earlier, later in itertools.pairwise(sorted(losses))
    ]
    return f"best of gains {gains}; rates {max(apart, default=0) / 4:g} decades apart"
