"""Fit the growth of the same layer under Pre-LN (Figure 3b).

The published slopes require a width of at least 32, which the smoke scale therefore uses. At width
16 the slopes of H_f and H of queries are 0.2 steeper.
"""

from dataclasses import replace
from functools import partial

from hessblocks.conventions import PARTS, Part
from hessblocks_studies.growth import Expected, growth_study, growth_summary, logspace, one_layer

_SIGMAS = logspace(-2, 1, 20)
_SIZES = one_layer(_SIGMAS, seeds=5)
FLAT = 0.25
"""Largest absolute slope that counts as flat."""
WHOLE = "slopes over the whole range"
PRINTED: dict[str, dict[Part, float]] = {
    "value": {"outer": -1.2, "functional": -1.3, "full": -1.2},
    "query": {"outer": -1.2, "functional": -0.7, "full": -0.6},
}
"""The paper's slopes, fitted over all σ although the curves bend."""
ROUNDED = 0.1
"""Allowed distance from a published slope: half for its one digit, half for its seeds."""
EXPECTED = (
    *(
        Expected(group=group, part=part, slope=0, tolerance=FLAT, source="paper: flat")
        for group in ("query", "value")
        for part in PARTS
    ),
    *(
        Expected(
            group=group,
            part=part,
            slope=slope,
            tolerance=ROUNDED,
            table=WHOLE,
            source="paper, over all σ",
        )
        for group, slopes in PRINTED.items()
        for part, slope in slopes.items()
    ),
)
STUDY = growth_study(
    "fig3b",
    title="the same layer with Pre-LN",
    source="Hessian paper, Figure 3b",
    published=(
        "With Pre-LN the blocks hardly depend on the size of the data while it is small; over all "
        "of σ the slopes of H_o, H_f and H are -1.2, -1.3 and -1.2 for values, -1.2, -0.7 and "
        "-0.6 for queries."
    ),
    block="softmax-pre-ln",
    loss="cross-entropy",
    sizes={**_SIZES, "smoke": replace(_SIZES["smoke"], width=32)},
    summarise=partial(
        growth_summary,
        title="Layer norm before each sub-block stops the growth",
        caption=(
            "Layer norms stand before attention, before the MLP and at the end. The printed "
            "slopes hold from width 32 on; at 16 the query slopes of H_f and H are 0.2 steeper."
        ),
        expected=EXPECTED,
        ranges={"slopes": (0.0, 0.1), WHOLE: (min(_SIGMAS), max(_SIGMAS))},
    ),
)
