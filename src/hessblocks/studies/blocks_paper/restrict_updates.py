"""Figure 3 of the simplified-blocks paper: values and projections kept near their initial value."""

from __future__ import annotations

from hessblocks.figures import Panel
from hessblocks.studies import shared
from hessblocks.studies.engine import Rows, Summary

IDENTITY = shared.restricted("identity", 0)
VARIANTS = (
    "pre-ln",
    IDENTITY,
    *(shared.restricted(init, beta) for init in shared.RESTRICTED_INITS for beta in shared.BETAS),
)


def summarise(rows: Rows) -> Summary:
    """Final loss against the gain β of the trainable part."""
    runs = shared.Runs(rows)
    return runs.summary(
        title="Final loss against the gain of trainable values and projections",
        caption=(
            "W = W_init + β ΔW for values and projections of the skipless block, β = 0: W_init alone. "
            f"{shared.HOW}"
        ),
        panels=[_panel(runs.losses)] if runs.losses else [],
        checks=[
            runs.match(IDENTITY, "pre-ln", "identity values about match pre-ln"),
            runs.slower(
                shared.restricted("identity", 1),
                shared.restricted("identity", shared.BETAS[0]),
                "freer updates of values and projections train slower",
            ),
            *(
                runs.close(
                    shared.restricted("identity", beta),
                    shared.restricted("orthogonal", beta),
                    0.0,
                    f"identity is at least as good as orthogonal at β = {beta:g}",
                )
                for beta in shared.BETAS
            ),
        ],
    )


def _panel(losses: shared.Values) -> Panel:
    """A curve for each initial value; what has no gain as a level line."""
    known = shared.finite(losses)
    variants = {
        init: {beta: shared.restricted(init, beta) for beta in (0, *shared.BETAS)}
        for init in shared.RESTRICTED_INITS
    }
    for level in ("pre-ln", *shared.REFERENCES):
        variants[level] = {0: level, shared.BETAS[-1]: level}
    places = {
        name: [(beta, *known[variant]) for beta, variant in each.items() if variant in known]
        for name, each in variants.items()
    }
    return Panel(
        title="",
        x_label="gain β of the trainable part",
        y_label="final validation loss (nats per token)",
        series=tuple(shared.curve(name, each) for name, each in places.items() if each),
    )


STUDY = shared.trained_study(
    "restrict-updates",
    title="final loss against the gain of trainable values and projections",
    source="Simplified blocks, Figure 3",
    published=(
        "Smaller gains of the trainable part recover the lost speed; identity beats orthogonal at every "
        "gain, and identity alone about matches pre-ln."
    ),
    sweeps=lambda scale: [
        shared.Sweep(variants=(*VARIANTS, *shared.REFERENCES), size=shared.SIZES[scale])
    ],
    summarise=summarise,
)
