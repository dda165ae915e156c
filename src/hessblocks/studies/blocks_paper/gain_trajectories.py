"""Figure 4 of the simplified-blocks paper: trained gains push values and projections to the identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hessblocks.blocks import ReparametrisedLinear
from hessblocks.figures import Panel
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row
from hessblocks.studies import shared
from hessblocks.studies.engine import Check, Rows, Summary

GROUPS = ("value", "projection")
RATIO = "gain_ratio"
"""|β / α| of one matrix."""
NONE = 0.05
"""Ratio below which the trainable part counts as gone: what the paper's figure shows as 0."""


def measure(settings: shared.TrainedSettings) -> list[Row]:
    """Train with trainable gains; their ratios whenever a loss is taken."""
    return shared.train_point(settings, gain_ratios)


def gain_ratios(model: nn.Module, step: int) -> list[Row]:
    """|β / α| of every value and projection matrix."""
    rows: list[Row] = []
    for name, module in model.named_modules():
        group = name.rpartition(".")[2]
        if isinstance(module, ReparametrisedLinear) and group in GROUPS:
            layer = int(name.split("layers.")[1].partition(".")[0])
            ratio = abs(_float(module.update_gain) / _float(module.initial_gain))
            rows.append(shared.measured(RATIO, ratio, layer=layer, group=group))
    return rows


def _float(gain: Tensor | float) -> float:
    return float(gain.detach()) if isinstance(gain, Tensor) else gain


Curves = dict[tuple[str, int], dict[int, list[float]]]
"""(group, layer) → {step: ratio of each seed}."""


def curves(rows: Rows) -> Curves:
    """The ratios of every matrix along training."""
    found: Curves = {}
    ratios = shared.gathered(shared.of_quantity(rows, RATIO), "group", "layer", "step")
    for (group, layer, step), values in ratios.items():
        found.setdefault((group, layer), {})[step] = values
    return found


def summarise(rows: Rows) -> Summary:
    """Ratios along training, and how many have gone to 0."""
    found = curves(rows)
    table = [
        {
            "group": group,
            "layer": layer,
            "first": mean_and_error(steps[min(steps)])[0],
            "last": mean_and_error(steps[max(steps)])[0],
        }
        for (group, layer), steps in found.items()
    ]
    return shared.summary(
        "Training turns down the trainable part of values and projections",
        "W = α I + β ΔW from α = 1, β = 0.2; mean over seeds, bars are its standard errors.",
        [_panel(group, found) for group in GROUPS if found],
        _checks(table),
        ratios=table,
    )


def _panel(group: str, found: Curves) -> Panel:
    return Panel(
        title=f"{group}s",
        x_label="training step",
        y_label="|β / α|",
        series=tuple(
            shared.curve(
                f"layer {layer + 1}",
                shared.mean_places({float(step): steps[step] for step in sorted(steps)}),
            )
            for (own, layer), steps in found.items()
            if own == group
        ),
    )


def _checks(table: Sequence[Mapping[str, Any]]) -> list[Check]:
    others = [row for row in table if (row["group"], row["layer"]) != ("value", 0)]
    if not others:
        return []
    gone = sum(row["last"] < NONE for row in others)
    return [
        Check(
            fact="the ratio goes to 0 in nearly all matrices but the first layer's values",
            expected=f"below {NONE:g} in at least 80 % of them",
            ours=f"{gone} of {len(others)} below {NONE:g}",
            holds=gone >= 0.8 * len(others),
        )
    ]


STUDY = shared.trained_study(
    "gains",
    title="trainable gains of values and projections along training",
    source="Simplified blocks, Figure 4",
    published="From α = 1, β = 0.2 the ratio β/α goes to 0 in nearly all layers, but not in the first layer's values.",
    sweeps=lambda scale: [shared.Sweep(variants=[shared.GAINED], size=shared.SIZES[scale])],
    measure=measure,
    summarise=summarise,
)
