"""List the points of the study `optimisers`: blocks, optimisers, grids of rates, sizes.

The table `RATES` is extended manually as the tuning proceeds, with each best rate first.
"""

from dataclasses import dataclass, replace
from functools import partial

from hessblocks_studies import shared
from hessblocks_studies.engine import Scale

FAMILIES: dict[str, tuple[str, ...]] = {
    "pre-ln": ("pre-ln, zero queries", "parallel, zero queries"),
    "sas": ("sas", "sas-p", "sas-p-no-norm"),
    **{block: (block,) for block in ("post-ln", "v-skipinit", "op", "modern")},
}
"""Family → its blocks, which share most of their parts."""
FAMILY_OF = {block: family for family, blocks in FAMILIES.items() for block in blocks}
BLOCKS = (*FAMILIES["pre-ln"], *FAMILIES["sas"])
"""Blocks that are trained with all optimisers."""
WITNESSES = tuple(block for block in FAMILY_OF if block not in BLOCKS)
"""Blocks of further families, trained only with SGD and AdamW."""
POSITION = ("position=rotary",)
SGD, ADAMW, MUON, BLOCKWISE, PUBLISHED = "sgd", "adamw", "muon", "blockwise", "published"
INNER_SGD = "sgd in layers"
METHODS = (SGD, ADAMW, MUON, BLOCKWISE, PUBLISHED, INNER_SGD)
"""Optimisers. blockwise: AdamW with a rate per role from measured curvature; published: from
published multipliers; sgd in layers: SGD for the layers' matrices, AdamW for the rest."""
SHOWN = {
    ADAMW: "AdamW",
    SGD: "SGD",
    MUON: "Muon",
    BLOCKWISE: "rates by curvature",
    PUBLISHED: "published rates",
    INNER_SGD: "SGD in the layers",
}
"""Optimiser → its displayed name; also the order of display."""
GRIDS: dict[Scale, dict[str, tuple[float, ...]]] = {
    "smoke": {
        SGD: (0.3,), ADAMW: (3e-3,), MUON: (3e-3,), BLOCKWISE: (3e-3,), PUBLISHED: (1e-3,),
        INNER_SGD: (0.3,),
    },
    "laptop": {
        SGD: (0.3, 1.0, 0.1),
        ADAMW: (1e-2, 3e-3, 3e-2),
        MUON: (1e-2, 3e-3, 3e-2),
        BLOCKWISE: (1e-2, 3e-3, 3e-2),
        PUBLISHED: (3e-3, 1e-3, 1e-2),
        INNER_SGD: (0.3, 1.0, 0.1),
    },
    "paper": {
        SGD: (0.3, 1.0, 0.1, 3.0),
        ADAMW: (1e-3, 3e-4, 3e-3, 1e-2),
        MUON: (3e-3, 1e-3, 1e-2, 3e-4),
        BLOCKWISE: (1e-3, 3e-4, 3e-3),
        PUBLISHED: (3e-4, 1e-4, 1e-3),
        INNER_SGD: (0.3, 1.0, 0.1, 3.0),
    },
}  # fmt: skip
"""Optimiser → its rates, the likeliest first."""
BESIDE: dict[Scale, float] = {"smoke": 3e-3, "laptop": 1e-2, "paper": 1e-3}
"""AdamW's rate if another rate is tuned: in the pilot, and beside SGD in the layers. At laptop
scale it is the best of `trial` for all five blocks."""


def label_of(block: str, method: str) -> str:
    """Name a block with an optimiser."""
    return f"{block}, {method}"


def methods_of(block: str) -> tuple[str, ...]:
    """List a block's optimisers; the last two only for one block with skips and one without."""
    if block in WITNESSES:
        return (SGD, ADAMW)
    return METHODS if block in {BLOCKS[0], "sas-p"} else METHODS[:-2]


BLOCK_OF = {
    label_of(block, method): block
    for method in METHODS
    for block in FAMILY_OF
    if method in methods_of(block)
}
METHOD_OF = {
    label_of(block, method): method for block in FAMILY_OF for method in methods_of(block)
} | {shared.GPT2: ADAMW}
"""Label of a run → its optimiser."""
BASE = label_of(BLOCKS[0], ADAMW)
"""Label whose final loss defines the counted steps; it must have learnt more than bigrams."""
RATES: dict[str, tuple[float, ...]] = {
    **{label: GRIDS["laptop"][METHOD_OF[label]] for label in BLOCK_OF},
    **dict.fromkeys([f"{b}, {ADAMW}" for b in ("v-skipinit", "post-ln", "op")], (3e-3, 1e-3, 1e-2)),
    **dict.fromkeys(
        [f"{b}, {SGD}" for b in (*FAMILIES["pre-ln"], "sas", "post-ln")], (1.0, 0.3, 3.0, 0.1)
    ),
    f"sas-p, {ADAMW}": (1e-2, 3e-3, 3e-2, 1e-1),
    f"{BLOCKS[0]}, {INNER_SGD}": (0.1, 0.3, 0.03, 1.0, 3.0),
    f"sas-p, {INNER_SGD}": (1.0, 0.3, 3.0, 0.1),
    **dict.fromkeys([f"{b}, {MUON}" for b in BLOCKS], (3e-2, 1e-2, 3e-3, 1e-1)),
    f"{BLOCKS[0]}, {PUBLISHED}": (1e-3, 3e-3, 3e-4, 1e-2),
}
"""Tuned block with optimiser → its rates at laptop scale, the best first; extended as results came
in."""
BEST: dict[str, float] = {
    **{label: rates[0] for label, rates in RATES.items()},
    shared.GPT2: 1e-2,
}
"""Rates of the judged runs at laptop scale: results of the tuning; for GPT-2, which has no verdict,
the rate of `trial`."""
SIZES: dict[Scale, shared.TextSize] = {
    "smoke": shared.SMALLEST,
    "laptop": replace(shared.LAPTOP, depth=4, steps=1400, evaluations=14),
    "paper": shared.PAPER,
}
PILOT: dict[Scale, int] = {"smoke": 2, "laptop": 300, "paper": 4000}
"""Steps of plain AdamW before the curvature of roles is measured."""
_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 4, "paper": 4}


@dataclass(frozen=True, kw_only=True)
class OptimiserSettings(shared.TunedSettings):
    """Settings of a point: one model with one optimiser, or one reference."""

    method: str | None = None
    """Name in `METHODS`; None for the bigram table."""
    probe: shared.Probe | None = None
    """Curvature measurement of judged AdamW runs and for the rates of roles; otherwise None."""
    pilot: int | None = None
    """Steps of the pilot before the rates of roles are set."""
    adamw_rate: float | None = None
    """AdamW's rate in the pilot, or beside SGD in the layers."""


def points(scale: Scale, count: int | None) -> list[OptimiserSettings]:
    """List all tuning points, then the judged runs seed by seed.

    Args:
        scale: scale of the study.
        count: seeds of the runs; None for the scale's default.

    Returns:
        The points' settings.
    """
    grids, best = RATES, BEST
    if scale != "laptop":
        grids = {label: GRIDS[scale][METHOD_OF[label]] for label in RATES}
        best = {label: GRIDS[scale][METHOD_OF[label]][0] for label in BEST}
    return [
        *shared.tuning_points(partial(_point, scale, shared.TUNING), grids),
        *shared.run_points(partial(_point, scale, shared.COUNTED), best, count or _SEEDS[scale]),
    ]


def _point(
    scale: Scale, phase: str, label: str, rate: float | None, seed: int
) -> OptimiserSettings:
    size, method = SIZES[scale], METHOD_OF.get(label)
    block = BLOCK_OF.get(label)
    followed = bool(block) and method == ADAMW and phase == shared.COUNTED
    return OptimiserSettings(
        study="optimisers",
        variant=block or label,
        seed=seed,
        size=replace(size, learning_rate=rate or size.learning_rate),
        slots=POSITION if block else (),
        embedding_std=shared.best_start(block, size.width) if block else None,
        optimiser=SGD if method == SGD else None,
        phase=phase,
        label=label,
        tuned=True if rate and phase == shared.TUNING else None,
        method=method,
        probe=shared.PROBES[scale] if followed or method == BLOCKWISE else None,
        pilot=PILOT[scale] if method == BLOCKWISE else None,
        adamw_rate=BESIDE[scale] if method in (BLOCKWISE, INNER_SGD) else None,
    )
