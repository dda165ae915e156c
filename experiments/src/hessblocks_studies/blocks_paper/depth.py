"""Train at two depths that differ by a factor of four (Figure 6)."""

from collections.abc import Sequence
from dataclasses import replace

from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows, Scale, Summary

BLOCKS = (*shared.BASES, "v-skipinit", "sas", "sas-p")
MATCHING = ("sas", "sas-p")
"""Blocks that train like pre-ln."""
OWN_RATES: dict[Scale, dict[str, tuple[float, ...]]] = {
    "laptop": {"v-skipinit": (3e-3, 1e-3, 1e-2, 3e-2), "sas": (1e-2, 3e-3, 3e-2, 1e-1)}
}
"""Rates of blocks. The last rates extend the grids of other studies, where one seed was slightly
better at the end: for V-SkipInit at 3 layers, for SAS at 12."""
DEPTHS: dict[Scale, tuple[int, int]] = {"smoke": (2, 8), "laptop": (3, 12), "paper": (18, 72)}


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """List the blocks with MLPs of two widths, at both depths."""
    size = replace(shared.SIZES[scale], mlp_width=2 * shared.SIZES[scale].width)
    rates = shared.RATES[scale].with_own(OWN_RATES.get(scale, {}))
    return [
        shared.Sweep(
            variants=(*BLOCKS, *shared.REFERENCES),
            size=replace(size, depth=depth),
            rates=rates,
        )
        for depth in DEPTHS[scale]
    ]


def at(name: str, depth: int) -> str:
    """Name a block at a depth."""
    return f"{name}, {depth} layers"


def measure(settings: shared.TrainedSettings) -> list[Row]:
    """Train one model; add the depth to the variant's name."""
    variant = at(settings.variant, settings.size.depth)
    name = settings.name.replace(settings.variant, variant, 1)
    return [{**row, "variant": name} for row in shared.train_point(settings)]


def summarise(rows: Rows) -> Summary:
    """Plot losses at each depth, and compare final losses with pre-ln of the same depth."""
    runs = shared.Runs(rows)
    depths = sorted({int(name.split(", ")[-1].split()[0]) for name in runs.losses})
    return runs.summary(
        title="Simplified blocks at two depths, one four times the other",
        caption=f"MLP of two widths. {shared.CURVES}",
        panels=[runs.panel(BLOCKS, f"{depth} layers", at("", depth)) for depth in depths],
        checks=_checks(runs, depths) if depths else [],
    )


def _checks(runs: shared.Runs, depths: Sequence[int]) -> list[Check]:
    low, high = depths[0], depths[-1]
    flat, flat_fact = "v-skipinit", "v-skipinit does not gain from depth"
    return [
        *(
            runs.match(
                at(name, depth), at(base, depth), f"{name} trains like {base} per step {where}"
            )
            for depth in depths
            for where in [f"at {depth} layers"]
            for base in shared.BASES
            for name in MATCHING
        ),
        *(
            runs.slower(at(n, low), at(n, high), f"{n} gains from depth", by=shared.CLOSE)
            for n in ("pre-ln", *MATCHING)
        ),
        runs.close(at(flat, low), at(flat, high), flat_fact),
    ]


STUDY = shared.trained_study(
    "depth",
    title="simplified blocks at two depths, one four times the other",
    source="Simplified blocks, Figure 6",
    published=(
        "SAS and SAS-P keep the training speed of pre-ln from 18 to 72 layers and gain from depth "
        "like it; V-SkipInit does not."
    ),
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
)
