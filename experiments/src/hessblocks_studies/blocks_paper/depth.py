"""Train at two depths, one four times the other (Figure 6)."""

from __future__ import annotations

from dataclasses import replace

from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Scale, Summary

BLOCKS = (*shared.BASES, "v-skipinit", "sas", "sas-p")
MATCHING = ("sas", "sas-p")
"""Blocks that train like pre-ln."""
OWN_RATES: dict[Scale, dict[str, tuple[float, ...]]] = {
    "laptop": {"v-skipinit": (3e-3, 1e-3, 1e-2, 3e-2), "sas": (1e-2, 3e-3, 3e-2, 1e-1)}
}
"""The last ones lie beyond the grids of other studies, at whose ends one seed ended a little lower: V-SkipInit's at 3 layers, SAS's at 12."""
DEPTHS: dict[Scale, tuple[int, int]] = {"smoke": (2, 8), "laptop": (3, 12), "paper": (18, 72)}


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """MLPs of two widths, at both depths."""
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


def measure(settings: shared.TrainedSettings) -> list[Row]:
    """Train one model; its depth is part of the variant's name."""
    name = f"{settings.variant}, {settings.size.depth} layers"
    name = settings.name.replace(settings.variant, name, 1)
    return [{**row, "variant": name} for row in shared.train_point(settings)]


def summarise(rows: Rows) -> Summary:
    """Loss curves at each depth, and final losses against pre-ln of the same depth."""
    runs = shared.Runs(rows)
    depths = sorted({int(name.split(", ")[-1].split()[0]) for name in runs.losses})
    return runs.summary(
        title="Simplified blocks at two depths, one four times the other",
        caption=f"MLP of two widths. {shared.CURVES}",
        panels=[runs.panel(BLOCKS, f"{depth} layers", f", {depth} layers") for depth in depths],
        checks=[
            *(
                runs.match(
                    f"{name}, {depth} layers",
                    f"{base}, {depth} layers",
                    f"{name} trains like {base} per step at {depth} layers",
                )
                for depth in depths
                for base in shared.BASES
                for name in MATCHING
            ),
            *(
                runs.slower(
                    f"{name}, {depths[0]} layers",
                    f"{name}, {depths[-1]} layers",
                    f"{name} gains from depth",
                    by=shared.CLOSE,
                )
                for name in ("pre-ln", *MATCHING)
                if depths
            ),
            *(
                runs.close(
                    f"v-skipinit, {depths[0]} layers",
                    f"v-skipinit, {depths[-1]} layers",
                    "v-skipinit does not gain from depth",
                )
                for _ in depths[:1]
            ),
        ],
    )


STUDY = shared.trained_study(
    "depth",
    title="simplified blocks at two depths, one four times the other",
    source="Simplified blocks, Figure 6",
    published=(
        "SAS and SAS-P keep the training speed of pre-ln from 18 to 72 layers and gain from depth like it; "
        "V-SkipInit does not."
    ),
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
)
