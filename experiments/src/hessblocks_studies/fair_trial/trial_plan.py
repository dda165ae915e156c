"""List the points of the study `trial`: blocks, starts, rates, sizes.

Two tables are filled in by hand as the tuning comes in, `BEST` and `CHOSEN`; `RATES` is made
longer.
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
"""Blocks whose runs come first, since verdicts rest on them."""
WIDE_BLOCKS = ("pre-ln", BASE, "parallel", "sas", "sas-p")
"""Blocks that are trained at the greater width."""
SINUSOIDAL = ", sinusoidal"
"""Behind the name of a block with sinusoidal positions; without it they are rotary."""
POSITIONS = {"": "rotary", SINUSOIDAL: "sinusoidal"}
"""Suffix of a block's name → its positions."""
WIDER = ", embeddings 1/√width"
SMALL = ", embeddings 1/√width, small outputs"
STARTS = {"": "0.02", WIDER: "1/√width", SMALL: "1/√width, small outputs"}
"""Suffix of a block's name in the tuning → standard deviation of its embeddings. "Small" says that
projections and outputs of MLPs have 0.02/√(2 layers); else they have 0.02 as all matrices."""
PLACED = (BASE, "sas-p")
"""The blocks that have both kinds of positions."""
NARROW, WIDE = "", "wide "
"""Begin the names of the phases of either width."""
WIDTHS = (NARROW, WIDE)
TUNING, CLOCK, LONG, PLACES = shared.TUNING, "clock", "long", "positions"
RUNS: dict[str, tuple[str, ...]] = {
    LONG: (*BLOCKS, shared.GPT2),
    PLACES: tuple(name + kind for kind in POSITIONS for name in PLACED),
    WIDE + LONG: (*WIDE_BLOCKS, shared.GPT2),
}
"""Phase → what is run, beside the bigram table."""
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
"""Width → phase in which long runs have the next rate half a decade lower, or higher → of what."""
CHANGED: dict[str, tuple[str, ...]] = {
    **NEIGHBOURS[NARROW],
    PARTS: (NO_VALUES, VALUES),
    EQUAL: ("sas", "sas-p"),
    ONCE: (shared.BIGRAMS, BASE, "sas", "sas-p"),
}
"""Phase in which one thing is changed in the long runs at the smaller width → of what, or to what:
the rate, half a decade lower; pre-ln without values and projections, and sas with them, as I + β
ΔW; the MLP, so wide that there are as many parameters as in pre-ln; the text, of which nothing is
read twice."""
CHANGES = {SLOWER: "lower rate", EQUAL: "wider MLP", ONCE: "text read once"}
"""Phases in which blocks keep their parts → in words, for the figure."""
PARTED = {NO_VALUES: ("pre-ln", "without values"), VALUES: ("sas", "with values")}
"""Block with other parts → the block one change away, and the change in words."""
EQUAL_MLPS: dict[Scale, int] = {"smoke": 143, "laptop": 314, "paper": 3818}
"""Scale → that width of the MLP."""
LONG_TEXTS: dict[Scale, str] = {"laptop": shared.PACKAGE + "torch"}
"""Scale → a text that is longer than what those runs read, where the usual one is not: 15.8 million
tokens against 8.2."""
OTHER_STARTS = {
    NARROW: (*(name + WIDER for name in BLOCKS), BASE + SMALL),
    WIDE: (*(name + WIDER for name in WIDE_BLOCKS), BASE + SMALL),
}
"""Width → what is tuned from other starts than 0.02."""
TUNED: dict[str, tuple[str, ...]] = {
    NARROW: tuple(dict.fromkeys((*RUNS[LONG], *RUNS[PLACES], *OTHER_STARTS[NARROW]))),
    WIDE: (*RUNS[WIDE + LONG], *OTHER_STARTS[WIDE]),
}
"""Width → what is tuned."""
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
"""Width → what is tuned → its rates at laptop scale, the likeliest first; made longer as results
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
"""Width → what is tuned → its rate in the runs at laptop scale: the outcome of the tuning, until it
is done a guess; of parallel at the greater width that of the runs at the next rates, which is
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
"""Width → block → its start in the runs that count, of `STARTS`: the outcome of the tuning, as
above; of what is not tuned, that of the block from which it is one change away."""
OTHER_RATES: dict[Scale, tuple[float, ...]] = {"smoke": (3e-3,), "paper": (1e-3, 3e-4, 3e-3, 1e-2)}
"""Learning rates of all blocks at the other scales; the runs use the first."""

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
"""Steps of each block that are timed, after one that warms up."""
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "paper": 3}


@dataclass(frozen=True, kw_only=True)
class TrialSettings(shared.TunedSettings):
    """Settings of a point: one model, one count of pairs of tokens, or the clocks of all blocks."""

    turns: tuple[str, ...] | None = None
    """Labels of what takes turns where steps are timed."""
    rounds: int | None = None
    """Number of timed steps of each block."""
    start: str | None = None
    """The standard deviations that are drawn with, one of `STARTS`; None for 0.02."""


def point_of(label: str, phase: str, size: shared.TextSize, seed: int) -> TrialSettings:
    """A model or a reference of a phase, at the size's rate."""
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
    """Block and start of a label of the tuning."""
    start = next((start for start in (SMALL, WIDER) if label.endswith(start)), "")
    return label.removesuffix(start), start


def _width(phase: str) -> str:
    """`NARROW` or `WIDE`."""
    return WIDE if phase.startswith(WIDE) else NARROW


def tuning(scale: Scale, width: str) -> list[TrialSettings]:
    """The bigram table, then every block at its rates, the likeliest rates of all blocks first.

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
    """The runs of a phase at the best rates, seed by seed; each seed begins with the bigram table.

    Args:
        scale: scale of the study.
        phase: one of `RUNS`.
        seeds: how many.

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
    """Of the points of a phase."""
    size = SIZES[scale][phase]

    def make(label: str, rate: float | None, seed: int) -> TrialSettings:
        return point_of(label, phase, replace(size, learning_rate=rate or size.learning_rate), seed)

    return make


def changed(scale: Scale, seeds: int) -> list[TrialSettings]:
    """List the long runs with one thing changed.

    With another rate, at both widths, with the first seed of the runs alone.

    Args:
        scale: scale of the study.
        seeds: seeds of the others.

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
    """Look up the rate of a block's long runs, of the base's where it is not tuned; or the next."""
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
    """List the points that time per step of every block, one per repetition.

    Args:
        scale: scale of the study.
        width: `NARROW` or `WIDE`.
        seeds: repetitions.

    Returns:
        The points' settings.
    """
    size, labels, rounds = SIZES[scale][width + LONG], RUNS[width + LONG], ROUNDS[scale]
    return [
        replace(point_of(shared.ALL, width + CLOCK, size, seed), turns=labels, rounds=rounds)
        for seed in shared.run_seeds(seeds)
    ]


def points(scale: Scale, count: int | None) -> list[TrialSettings]:
    """List all tuning, clocks, long runs with one thing changed, then the runs of verdicts first.

    Args:
        scale: scale of the study.
        count: seeds of the runs; None for the scale's own. The tuning has one.

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
