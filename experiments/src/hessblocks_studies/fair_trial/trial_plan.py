"""List the points of the study `trial`: blocks, initial stds, rates, sizes.

`BEST` and `CHOSEN` are filled in manually from the tuning; `RATES` is extended if a best rate is at
an end of its grid.
"""

import math
from dataclasses import dataclass, replace

from hessblocks_studies import shared
from hessblocks_studies.engine import Scale

BASE = "pre-ln, zero queries"
"""Block that the simplified blocks are compared with."""
BLOCKS = (
    "pre-ln", BASE, "parallel", "parallel, zero queries", "v-skipinit", "sas", "sas-p",
    "sas-p-no-norm",
)  # fmt: skip
FIRST = (shared.BIGRAMS, "pre-ln", BASE, "sas", "sas-p")
"""Blocks whose runs come first, since the verdicts depend on them."""
WIDE_BLOCKS = ("pre-ln", BASE, "parallel", "sas", "sas-p")
"""Blocks that are trained at the larger width."""
SINUSOIDAL = ", sinusoidal"
"""Suffix of a block with sinusoidal positions; without it positions are rotary."""
POSITIONS = {"": "rotary", SINUSOIDAL: "sinusoidal"}
"""Suffix of a block's name → its position encoding."""
WIDER = ", embeddings 1/√width"
SMALL = ", embeddings 1/√width, small outputs"
STARTS = {"": "0.02", WIDER: "1/√width", SMALL: "1/√width, small outputs"}
"""Suffix of a block's name in the tuning → initial standard deviation of its embeddings. All
matrices have 0.02, but with "small outputs" projections and MLP outputs have 0.02/√(2 layers)."""
PLACED = (BASE, "sas-p")
"""Blocks that are trained with both position encodings."""
NARROW, WIDE = "", "wide "
"""Prefixes of the phases' names at the two widths."""
WIDTHS = (NARROW, WIDE)
TUNING, CLOCK, LONG, PLACES = shared.TUNING, "clock", "long", "positions"
RUNS: dict[str, tuple[str, ...]] = {
    LONG: (*BLOCKS, shared.GPT2),
    PLACES: tuple(name + kind for kind in POSITIONS for name in PLACED),
    WIDE + LONG: (*WIDE_BLOCKS, shared.GPT2),
}
"""Phase → labels of its runs, in addition to the bigram table."""
SLOWER, FASTER, EQUAL, PARTS, ONCE = (
    "slower long", "faster long", "equal long", "parts long", "once long",
)  # fmt: skip
NO_VALUES, VALUES = "pre-ln, identity values", shared.GAINED
NEIGHBOURS: dict[str, dict[str, tuple[str, ...]]] = {
    NARROW: {SLOWER: (BASE, "sas", "sas-p")},
    WIDE: {
        WIDE + SLOWER: (BASE, "sas", "sas-p", "parallel", shared.GPT2),
        WIDE + FASTER: (BASE, "parallel"),
    },
}
"""Width → phase of long runs at the next rate, half a decade lower or higher → blocks."""
CHANGED: dict[str, tuple[str, ...]] = {
    **NEIGHBOURS[NARROW],
    PARTS: (NO_VALUES, VALUES),
    EQUAL: ("sas", "sas-p"),
    ONCE: (shared.BIGRAMS, BASE, "sas", "sas-p"),
}
"""Phase of long runs with one change at the smaller width → blocks. The changes: the rate is half a
decade lower; pre-ln loses values and projections, or sas gains them as I + β ΔW; the MLP is wider,
so that the block has as many parameters as pre-ln; the text is so long that no part is read
twice."""
CHANGES = {SLOWER: "lower rate", EQUAL: "wider MLP", ONCE: "text read once"}
"""Phase in which blocks keep their parts → its description in the figure."""
PARTED = {NO_VALUES: ("pre-ln", "without values"), VALUES: ("sas", "with values")}
"""Block with other parts → (block before the change, description of the change)."""
EQUAL_MLPS: dict[Scale, int] = {"smoke": 143, "laptop": 314, "paper": 3818}
"""Scale → width of the MLP in phase `EQUAL`."""
LONG_TEXTS: dict[Scale, str] = {"laptop": shared.PACKAGE + "torch"}
"""Scale → text of phase `ONCE`, where the usual text is shorter than the runs read: 15.8 million
tokens instead of 8.2."""
OTHER_STARTS = {
    NARROW: (*(name + WIDER for name in BLOCKS), BASE + SMALL),
    WIDE: (*(name + WIDER for name in WIDE_BLOCKS), BASE + SMALL),
}
"""Width → labels that are tuned with initial stds other than 0.02."""
TUNED: dict[str, tuple[str, ...]] = {
    NARROW: tuple(dict.fromkeys((*RUNS[LONG], *RUNS[PLACES], *OTHER_STARTS[NARROW]))),
    WIDE: (*RUNS[WIDE + LONG], *OTHER_STARTS[WIDE]),
}
"""Width → labels that are tuned."""
RATES: dict[str, dict[str, tuple[float, ...]]] = {
    NARROW: {
        **dict.fromkeys(TUNED[NARROW], (3e-3, 1e-2, 3e-2, 1e-3)),
        **dict.fromkeys(("v-skipinit", BASE + SINUSOIDAL), (3e-3, 1e-2, 1e-3)),
        **dict.fromkeys(OTHER_STARTS[NARROW], (1e-2, 3e-3, 3e-2)),
        "v-skipinit" + WIDER: (1e-2, 3e-3, 1e-3, 3e-2),
    },
    WIDE: {
        **dict.fromkeys(RUNS[WIDE + LONG], (3e-3, 1e-3, 1e-2)),
        shared.GPT2: (3e-3, 1e-3, 1e-2, 3e-4),
        **dict.fromkeys(OTHER_STARTS[WIDE], (1e-3, 3e-3, 3e-4)),
        "parallel" + WIDER: (1e-3, 3e-3, 1e-2, 3e-4),
    },
}
"""Width → label → rates of the tuning at laptop scale, the likeliest first; extended as results
come in."""
BEST: dict[str, dict[str, float]] = {
    NARROW: {
        **dict.fromkeys(TUNED[NARROW], 1e-2),
        **dict.fromkeys(("v-skipinit", BASE + SINUSOIDAL), 3e-3),
    },
    WIDE: {
        **dict.fromkeys(RUNS[WIDE + LONG], 3e-3),
        shared.GPT2: 1e-3,
        **dict.fromkeys(OTHER_STARTS[WIDE], 1e-3),
    },
}
"""Width → label → rate of its runs at laptop scale: the best of the tuning, or a guess until the
tuning is done. For parallel at the larger width the runs at the next rates found another rate.
another."""
CHOSEN: dict[str, dict[str, str]] = {
    NARROW: {
        **dict.fromkeys(BLOCKS, ""),
        **dict.fromkeys(("pre-ln", BASE, "parallel", "parallel, zero queries", NO_VALUES), WIDER),
        VALUES: "",
    },
    WIDE: {
        **dict.fromkeys(("pre-ln", "parallel"), WIDER),
        BASE: SMALL,
        **dict.fromkeys(("sas", "sas-p"), ""),
    },
}
"""Width → block → its key of `STARTS` in the judged runs: the best of the tuning, or a guess; for
untuned blocks that of the block before the change."""
OTHER_RATES: dict[Scale, tuple[float, ...]] = {"smoke": (3e-3,), "paper": (1e-3, 3e-4, 3e-3, 1e-2)}
"""Learning rates of all blocks at other scales; the runs use the first."""

_LAPTOP = replace(shared.LAPTOP, steps=2400, evaluations=8)
_PAPER = replace(shared.PAPER, steps=12_900)


SIZES: dict[Scale, dict[str, shared.TextSize]] = {
    "smoke": {
        TUNING: shared.SMALLEST,
        PLACES: shared.SMALLEST,
        LONG: replace(shared.SMALLEST, steps=20, evaluations=10),
        WIDE + TUNING: shared.widened(shared.SMALLEST, 64),
        WIDE + LONG: shared.widened(replace(shared.SMALLEST, steps=16), 64),
    },
    "laptop": {
        TUNING: _LAPTOP,
        PLACES: _LAPTOP,
        LONG: replace(_LAPTOP, steps=8000, evaluations=40),
        WIDE + TUNING: shared.widened(replace(_LAPTOP, steps=450, evaluations=9), 256),
        WIDE + LONG: shared.widened(replace(_LAPTOP, steps=1500, evaluations=30), 256),
    },
    "paper": {
        TUNING: _PAPER,
        PLACES: _PAPER,
        LONG: shared.PAPER,
        WIDE + TUNING: shared.widened(replace(_PAPER, steps=3000), 1024),
        WIDE + LONG: shared.widened(replace(_PAPER, steps=10_000), 1024),
    },
}
"""Scale → phase → sizes."""
ROUNDS: dict[Scale, int] = {"smoke": 3, "laptop": 40, "paper": 40}
"""Timed steps of each block, after one warm-up step."""
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "paper": 3}


@dataclass(frozen=True, kw_only=True)
class TrialSettings(shared.TunedSettings):
    """Settings of a point: one model, one bigram table, or the step times of all blocks."""

    turns: tuple[str, ...] | None = None
    """Labels of the blocks that take turns in a measurement of step times."""
    rounds: int | None = None
    """Number of timed steps of each block."""
    start: str | None = None
    """Initial standard deviations: a value of `STARTS`; None for 0.02."""


def point_of(label: str, phase: str, size: shared.TextSize, seed: int) -> TrialSettings:
    """Make the point of a model or reference in a phase, at the rate of the size."""
    block, start = taken_apart(label)
    named = block not in (*shared.REFERENCES, shared.ALL)
    position = POSITIONS[SINUSOIDAL if block.endswith(SINUSOIDAL) else ""]
    tuned = phase.endswith(TUNING) and label != shared.BIGRAMS
    if phase.endswith(LONG):
        start = CHOSEN[_width(phase)].get(block, "")
    small = f"std={0.02 / math.sqrt(2 * size.depth):.6g}"
    outputs = (f"attention.projection.{small}", f"mlp.output.{small}")
    return TrialSettings(
        study="trial",
        variant=block.removesuffix(SINUSOIDAL),
        seed=seed,
        size=size,
        slots=(f"position={position}", *(outputs if start == SMALL else ())) if named else (),
        phase=phase,
        label=label,
        tuned=tuned or None,
        start=STARTS[start] if start else None,
        embedding_std=1 / math.sqrt(size.width) if start else None,
    )


def taken_apart(label: str) -> tuple[str, str]:
    """Split a label of the tuning into block and suffix in `STARTS`."""
    start = next((start for start in (SMALL, WIDER) if label.endswith(start)), "")
    return label.removesuffix(start), start


def _width(phase: str) -> str:
    """Return the width of a phase: `NARROW` or `WIDE`."""
    return WIDE if phase.startswith(WIDE) else NARROW


def tuning(scale: Scale, width: str) -> list[TrialSettings]:
    """List the bigram table, then every block at its rates; the likeliest rates come first.

    Args:
        scale: scale of the study.
        width: `NARROW` or `WIDE`.

    Returns:
        The points' settings.
    """
    grids = RATES[width]
    if scale in OTHER_RATES:
        grids = dict.fromkeys(grids, OTHER_RATES[scale])
    return shared.tuning_points(_maker(scale, width + TUNING), grids)


def runs(scale: Scale, phase: str, seeds: int) -> list[TrialSettings]:
    """List the runs of a phase at the best rates, seed by seed, each with a bigram table first.

    Args:
        scale: scale of the study.
        phase: one of `RUNS`.
        seeds: number of seeds.

    Returns:
        The points' settings.
    """
    width = _width(phase)
    chosen = CHOSEN[width] if phase.endswith(LONG) else {}
    rates = {
        label: OTHER_RATES[scale][0]
        if scale in OTHER_RATES
        else BEST[width][label + chosen.get(label, "")]
        for label in RUNS[phase]
    }
    return shared.run_points(_maker(scale, phase), rates, seeds)


def _maker(scale: Scale, phase: str) -> shared.Make[TrialSettings]:
    """Return the function that makes points of a phase."""
    size = SIZES[scale][phase]

    def make(label: str, rate: float | None, seed: int) -> TrialSettings:
        return point_of(label, phase, replace(size, learning_rate=rate or size.learning_rate), seed)

    return make


def changed(scale: Scale, seeds: int) -> list[TrialSettings]:
    """List the long runs with one change.

    Runs at other rates, for both widths, use only the first seed.

    Args:
        scale: scale of the study.
        seeds: number of seeds of the other runs.

    Returns:
        The points' settings.
    """
    size = SIZES[scale][LONG]
    sizes = dict.fromkeys(CHANGED, size) | dict.fromkeys(
        NEIGHBOURS[WIDE], SIZES[scale][WIDE + LONG]
    )
    sizes[EQUAL] = replace(size, mlp_width=EQUAL_MLPS[scale])
    sizes[ONCE] = replace(size, data=LONG_TEXTS.get(scale))
    first, *_ = shared.run_seeds(1)
    return [
        point_of(label, phase, replace(sizes[phase], learning_rate=rate), seed)
        for seed in shared.run_seeds(seeds)
        for phase, labels in {**CHANGED, **NEIGHBOURS[WIDE]}.items()
        for label in labels
        for rate in [_long_rate(scale, label, phase)]
        if not phase.endswith((SLOWER, FASTER)) or seed == first
        if phase != ONCE or scale in LONG_TEXTS
    ]


def _long_rate(scale: Scale, label: str, phase: str) -> float:
    """Look up the rate of a block's long runs (untuned: the base's), or the next rate."""
    width = _width(phase)
    label, _ = PARTED.get(label, (label, ""))
    label = label if label in RUNS[width + LONG] else BASE
    label += CHOSEN[width].get(label, "")
    grid, best = RATES[width][label], BEST[width][label]
    if scale in OTHER_RATES:
        grid = OTHER_RATES[scale]
        best = grid[0]
    if phase.endswith(SLOWER):
        return max((rate for rate in grid if rate < best), default=best / 10**0.5)
    if phase.endswith(FASTER):
        return min((rate for rate in grid if rate > best), default=best * 10**0.5)
    return best


def clocks(scale: Scale, width: str, seeds: int) -> list[TrialSettings]:
    """List the points that time the steps of every block, one per repetition.

    Args:
        scale: scale of the study.
        width: `NARROW` or `WIDE`.
        seeds: number of repetitions.

    Returns:
        The points' settings.
    """
    size, labels, rounds = SIZES[scale][width + LONG], RUNS[width + LONG], ROUNDS[scale]
    return [
        replace(point_of(shared.ALL, width + CLOCK, size, seed), turns=labels, rounds=rounds)
        for seed in shared.run_seeds(seeds)
    ]


def points(scale: Scale, count: int | None) -> list[TrialSettings]:
    """List tuning, step times, long runs with one change, then judged runs; verdicts' blocks first.

    Args:
        scale: scale of the study.
        count: seeds of the runs; None for the scale's default. The tuning has one seed.

    Returns:
        The points' settings.
    """
    seeds = count or _SEEDS[scale]
    return [
        *(point for width in WIDTHS for point in tuning(scale, width)),
        *(point for width in WIDTHS for point in clocks(scale, width, seeds)),
        *changed(scale, seeds),
        *sorted(
            (point for phase in RUNS for point in runs(scale, phase, seeds)),
            key=lambda point: point.label not in FIRST,
        ),
    ]
