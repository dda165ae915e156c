"""Train with restricted updates of values and projections (Figures 3, 9 and 15)."""

import itertools
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from hessblocks.figures import Panel
from hessblocks.signal import layers_of
from hessblocks.storage import Row, Scalar
from hessblocks.training import RunTrainer
from hessblocks_studies import shared
from hessblocks_studies.engine import Check, Rows, Scale, Summary

IDENTITY = shared.restricted("identity", 0)
LAST_TIED = "last tied"
INITS = ("identity", "tied", LAST_TIED, "orthogonal")
"""Initial values of values and projections, in the paper's order, the best first."""
SHARES = (0.1,)
"""Learning rates of values and projections relative to the other parameters'; 1 is the gain β = 1.
β = 1."""
OWN_RATES: dict[Scale, dict[str, tuple[float, ...]]] = {
    "laptop": {
        **{shared.restricted(init, 1): (3e-3, 1e-3, 1e-2) for init in shared.RESTRICTED_INITS},
        shared.GAINED: (1e-2, 3e-3, 3e-2, 1e-1),
    }
}
"""Rates of blocks whose best rate is lower than the others', as for the same values in `ablations`,
or was at the end of the grid for one seed."""
VARIANTS = (
    *shared.BASES,
    IDENTITY,
    shared.GAINED,
    *(shared.restricted(init, beta) for init in shared.RESTRICTED_INITS for beta in shared.BETAS),
)


@dataclass(frozen=True, kw_only=True)
class RestrictedSettings(shared.TrainedSettings):
    """Settings of a point: one model."""

    rate_share: float | None = None
    """Learning rate of values and projections, without the first layer's values, relative to that
    of the other parameters; None for 1."""
    last_tied: bool | None = None
    """Whether the last projection initially inverts all values and projections before it."""

    @property
    def name(self) -> str:
        """Name of the variant with its restrictions, and the rate if there are several."""
        init, _, beta = self.variant.partition(", ")
        name = f"{LAST_TIED}, {beta}" if self.last_tied else self.variant
        if self.rate_share is not None:
            name = slowed(init, self.rate_share)
        return super().name.replace(self.variant, name, 1)


def slowed(init: str, share: float) -> str:
    """Name W = W_init + ΔW with a reduced learning rate of values and projections."""
    return f"{init}, rate x{share:g}"


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """List every gain for every initial value, reduced rates, and the tied last projection.

    Returns:
        The sweeps, each at its best rate of the other parameters.
    """
    size, rates = shared.SIZES[scale], shared.RATES[scale]
    usual = rates.with_own(OWN_RATES.get(scale, {}))
    orthogonal = [shared.restricted("orthogonal", beta) for beta in shared.BETAS]
    return [
        shared.Sweep(variants=(*VARIANTS, *shared.REFERENCES), size=size, rates=usual),
        shared.Sweep(variants=orthogonal, size=size, rates=usual, settings={"last_tied": True}),
        *(
            shared.Sweep(
                variants=[shared.restricted(init, 1)],
                size=size,
                rates=rates,
                settings={"rate_share": share},
            )
            for init, shares in (("identity", SHARES), ("orthogonal", (*SHARES, 0.0)))
            for share in shares
        ),
    ]


def measure(settings: RestrictedSettings) -> list[Row]:
    """Train one model."""

    def change(trainer: RunTrainer) -> None:
        if settings.last_tied:
            tie_last(cast(PreTrainedModel, trainer.model))
        if settings.rate_share is not None:
            slow_down(trainer, settings.rate_share)

    return shared.train_point(settings, change=change)


@torch.no_grad()
def tie_last(model: PreTrainedModel) -> None:
    """Set W_P of the last layer so that Π W_V W_P over all layers is the identity (appendix C).

    Args:
        model: freshly initialised; its values and projections are reparametrised and orthogonal.
    """
    layers: Any = layers_of(model)
    first = layers[0].attention.value.initial
    product = torch.eye(len(first)).to(first)
    for layer in layers:
        product = layer.attention.value.initial @ product
        if layer is not layers[-1]:
            product = layer.attention.projection.initial @ product
    layers[-1].attention.projection.initial.copy_(product.T)


def slow_down(trainer: RunTrainer, share: float) -> None:
    """Reduce the learning rate of values and projections, except the first layer's values.

    Args:
        trainer: trainer before training; the trainable parts move to a separate parameter group of
            the optimiser.
        share: rate relative to that of the other parameters.
    """
    optimiser = trainer.create_optimizer()
    layers: Any = layers_of(cast(PreTrainedModel, trainer.model))
    matrices = [layer.attention.projection for layer in layers]
    matrices += [layer.attention.value for layer in layers[1:]]
    slow = {matrix.update for matrix in matrices}
    (group,) = (
        candidate for candidate in optimiser.param_groups if slow & set(candidate["params"])
    )
    rest = [parameter for parameter in group["params"] if parameter not in slow]
    restricted = [parameter for parameter in group["params"] if parameter in slow]
    group["params"] = rest
    optimiser.add_param_group({**group, "params": restricted, "lr": share * group["lr"]})


def summarise(rows: Rows) -> Summary:
    """Plot final loss against the gain β of the trainable part, and against the learning rate."""
    runs = shared.Runs(rows)
    return runs.summary(
        title=(
            "Final loss against the gain of trainable values and projections, and against their "
            "learning rate"
        ),
        caption=(
            "W = W_init + β ΔW for values and projections of the skipless block, β = 0: W_init "
            f"alone. {shared.HOW}"
        ),
        panels=_panels(runs.losses) if runs.losses else [],
        checks=[
            *(
                _beside(
                    runs.match(IDENTITY, base, f"identity values about match {base}"),
                    "1.178 against 1.155",
                )
                for base in shared.BASES
            ),
            _beside(
                runs.slower(
                    shared.GAINED,
                    IDENTITY,
                    "identity values are better than those with trained gains",
                ),
                "1.194 against 1.178",
            ),
            *(
                runs.slower(
                    shared.restricted(init, 1),
                    shared.restricted(init, shared.BETAS[0]),
                    f"freer updates of values and projections train slower ({init})",
                )
                for init in ("identity", "orthogonal")
            ),
            *(
                runs.slower(
                    shared.restricted("orthogonal", beta),
                    shared.restricted("identity", beta),
                    f"identity beats orthogonal at β = {beta:g}",
                )
                for beta in shared.BETAS
            ),
            *_rate_checks(runs),
            *_tied_checks(runs),
        ],
    )


def _beside(check: Check, published: str) -> Check:
    """Add the published losses to a check."""
    return replace(check, expected=f"{check.expected}; {published} at 18 layers, width 768")


def _rate_checks(runs: shared.Runs) -> list[Check]:
    """Judge Figure 9: with AdamW a gain of β is equivalent to a learning rate times β."""
    return [
        runs.match(
            slowed(init, share),
            shared.restricted(init, share),
            f"a learning rate times {share:g} is as good as a gain of {share:g} ({init}, Figure 9)",
        )
        for init in ("identity", "orthogonal")
        for share in SHARES
    ] + [
        runs.slower(
            shared.restricted(init, 1),
            slowed(init, SHARES[0]),
            f"a smaller learning rate of values and projections trains faster ({init}, Figure 9)",
        )
        for init in ("identity", "orthogonal")
    ]


def _tied_checks(runs: shared.Runs) -> list[Check]:
    """Judge Figure 15: tying reduces the gap between orthogonal and identity values."""
    means = {init: _over_gains(runs.losses, init) for init in INITS}
    checks = []
    for fast, slow in itertools.pairwise(INITS):
        check = shared.difference(means, slow, fast).judged(
            f"{fast} values are better than {slow} ones (Figure 15)",
            f"mean final loss over the gains of {slow} above that of {fast}",
        )
        for beta in shared.BETAS:
            check = runs.where_learnt(check, shared.restricted(fast, beta))
        tried = (shared.restricted(init, beta) for init in (slow, fast) for beta in shared.BETAS)
        checks.append(runs.if_it_counts(check, *tried))
    return checks


def _over_gains(losses: shared.Values, init: str) -> dict[Scalar, float]:
    """Average the final loss over β for each seed that has every β."""
    by_gain = [losses.get(shared.restricted(init, beta), {}) for beta in shared.BETAS]
    seeds = [seed for seed in by_gain[0] if all(seed in runs for runs in by_gain)]
    return {seed: statistics.mean(runs[seed] for runs in by_gain) for seed in seeds}


def _panels(losses: shared.Values) -> list[Panel]:
    """Plot losses against gain and rate, one curve per initial value; other blocks are level."""
    gains = {init: {b: shared.restricted(init, b) for b in shared.BETAS} for init in INITS}
    gains["identity"][0] = IDENTITY
    rates = {
        init: {share: slowed(init, share) for share in (0, *SHARES)}
        | {1: shared.restricted(init, 1)}
        for init in ("identity", "orthogonal")
    }
    rates["identity"][0] = IDENTITY
    gains["orthogonal"][0] = rates["orthogonal"][0]
    return [
        _panel(losses, gains, "gain β of the trainable part"),
        _panel(losses, rates, "learning rate of values and projections, as a share of the others'"),
    ]


def _panel(
    losses: shared.Values, variants: Mapping[str, Mapping[float, str]], x_label: str
) -> Panel:
    finite = shared.finite(losses)
    levels = {name: {0.0: name, 1.0: name} for name in (*shared.BASES, *shared.REFERENCES)}
    places = {
        name: [(x, *finite[names[x]]) for x in sorted(names) if names[x] in finite]
        for name, names in {**variants, **levels}.items()
    }
    return shared.panel("", x_label, "final validation loss (nats per token)", places)


STUDY = shared.trained_study(
    "restrict-updates",
    title="final loss against gain and learning rate of values and projections",
    source="Simplified blocks, Figures 3, 9 and 15",
    published=(
        "Smaller gains of the trainable part, or smaller learning rates, recover the lost speed; "
        "identity beats orthogonal at every gain, tied orthogonal values come between, and "
        "identity alone (1.178 nats; 1.194 with trained gains) about matches pre-ln (1.155)."
    ),
    kind=RestrictedSettings,
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
)
