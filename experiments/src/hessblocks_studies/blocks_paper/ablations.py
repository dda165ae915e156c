"""Train with one change: decay, attention, MLP gain, initial values, or skip (appendix)."""

from dataclasses import replace

from hessblocks.storage import Row
from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Scale, Summary

NO_SKIP = "sas, no MLP skip"
NO_MLP_SKIP = (NO_SKIP, *(f"{NO_SKIP}, LeakyReLU {slope:g}" for slope in shared.SLOPES))
SLOW = 0.1
"""Factor of the rates of blocks without an MLP skip: the paper needed 1e-4 instead of 1e-3."""
INITIALS = ("normal values", "orthogonal values", "tied values", "identity values")
OWN_RATES: dict[Scale, dict[str, tuple[float, ...]]] = {
    "laptop": {
        **dict.fromkeys(INITIALS[1:], (3e-3, 1e-3, 1e-2, 3e-2)),
        "sas, no first values": (1e-2, 3e-3, 3e-2, 1e-1),
        f"sas-p, {shared.VALUE_SKIPINIT}": (1e-2, 3e-2, 1e-1, 3e-3),
        **dict.fromkeys(NO_MLP_SKIP[:2], (3e-3, 1e-3, 3e-3 * SLOW, 1e-2)),
    }
}
"""Rates of blocks whose best rate differs from the others', or was at the end of the grid for one
seed."""
VARIANTS = (
    "pre-ln",
    "pre-ln, identity values",
    "sas",
    "sas-p",
    *(f"{name}, {shared.VALUE_SKIPINIT}" for name in ("sas", "sas-p")),
    "sas, no first values",
    "sas-p, no first values",
    *(f"sas, MLP gain x{factor:g}" for factor in shared.MLP_GAINS),
    *INITIALS,
)
COSINE = ("pre-ln", "sas", "sas-p")
"""Variants that are also trained with a cosine decay."""
PANELS = {
    "decay, Figure 12": [
        *(f"{n}{d}" for n in COSINE for d in ("", ", cosine")),
        *shared.REFERENCES,
    ],
    "attention, Figure 13": [
        f"{n}{a}" for n in ("sas", "sas-p") for a in ("", f", {shared.VALUE_SKIPINIT}")
    ],
    "MLP gain, Figure 14": ["sas", *(f"sas, MLP gain x{factor:g}" for factor in shared.MLP_GAINS)],
    "initial values": INITIALS,
    "identity values beside a skip, Figure 23": ["pre-ln", "pre-ln, identity values"],
    "first values, Figure 24": [
        f"{n}{f}" for n in ("sas", "sas-p") for f in ("", ", no first values")
    ],
    "no MLP skip, Figure 25": ["sas", *NO_MLP_SKIP],
}
"""Title of each panel → its variants."""
BEATS = "linear decay beats cosine (Figure 12)"
HURTS = {
    f", {shared.VALUE_SKIPINIT}": "shaped attention helps {} (Figure 13)",
    ", no first values": "the first layer's values are worth keeping in {} (Figure 24)",
}
"""Suffix of sas and sas-p → the appendix's fact about it."""
LEAKY = "LeakyReLU of slope {:g} does not make up for the MLP skip, it hurts (Figure 25)"
SLOWER = (
    (VARIANTS[1], "pre-ln", "identity values beside an attention skip hurt (Figure 23)"),
    *((n + change, n, HURTS[change].format(n)) for change in HURTS for n in COSINE[1:]),
    (NO_SKIP, "sas", "removing the MLP skip of the sequential block slows training (Figure 25)"),
    *((f"{NO_SKIP}, LeakyReLU {slope:g}", NO_SKIP, LEAKY.format(slope)) for slope in shared.SLOPES),
)
"""(slower variant, faster variant, fact of the appendix)."""


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """List all variants with a linear decay, and some also with a cosine decay."""
    rates, rates_of = shared.RATES[scale], OWN_RATES.get(scale, {})
    return [
        shared.Sweep(
            variants=variants, size=shared.SIZES[scale], settings={"decay": decay}, rates=tried
        )
        for decay, variants, tried in (
            ("linear", (*VARIANTS, *shared.REFERENCES), rates.with_own(rates_of)),
            ("linear", NO_MLP_SKIP, rates.times(SLOW).with_own(rates_of)),
            ("cosine", COSINE, rates),
        )
    ]


def measure(settings: shared.TrainedSettings) -> list[Row]:
    """Train one model; add a cosine decay to the variant's name."""
    name = settings.name
    if settings.decay == "cosine":
        name = name.replace(settings.variant, f"{settings.variant}, cosine", 1)
    return [{**row, "variant": name} for row in shared.train_point(settings)]


def summarise(rows: Rows) -> Summary:
    """Compare final losses with the appendix's facts."""
    runs = shared.Runs(rows)
    label = "final validation loss (nats per token)"
    finite = shared.finite(runs.losses)
    shown = {title: [name for name in names if name in finite] for title, names in PANELS.items()}
    return runs.summary(
        title="What the details are worth",
        caption=(
            "The rows of values are skipless blocks with freely trainable values and projections "
            f"from that initial value; they and the MLP gains are drawn, not judged. {shared.HOW}"
        ),
        panels=[
            replace(
                shared.places_panel(
                    {"final loss": {name: finite[name] for name in names}}, label, bars=False
                ),
                title=title,
            )
            for title, names in shown.items()
            if names
        ],
        checks=[
            *(runs.slower(f"{name}, cosine", name, f"{BEATS} ({name})") for name in COSINE),
            *(runs.slower(slow, fast, fact) for slow, fast, fact in SLOWER),
        ],
    )


STUDY = shared.trained_study(
    "ablations",
    title="decay, MLP gain, initial values, first values, MLP skip",
    source="Simplified blocks, Figures 12 to 14 and 23 to 25",
    published=(
        "Linear decay beats cosine; shaped attention is a little better than that of V-SkipInit; "
        "identity values next to an attention skip hurt; the sequential block without MLP skip "
        "trains far slower, with LeakyReLU more so."
    ),
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
)
