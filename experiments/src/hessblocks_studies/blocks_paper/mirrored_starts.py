"""Train with starts that did not help: Looks-Linear MLPs, and smaller attention gains (Figure 23).

Letters: D width, M half of the hidden width.
"""

import functools
import math
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.storage import Row
from hessblocks.training import RunTrainer
from hessblocks_studies import shared
from hessblocks_studies.engine import Rows, Scale, Summary

NO_SKIP = "sas, no MLP skip"
STARTS = ("gaussian", "orthogonal", "identity")
"""Linear map that the MLP computes at the start."""
BESIDE_A_SKIP = tuple(shared.with_attention_gain(gain) for gain in shared.ATTENTION_GAINS)
RATES: dict[Scale, tuple[float, ...]] = {"laptop": (3e-3, 1e-3, 1e-2)}
"""Rates of blocks without an MLP skip."""


@dataclass(frozen=True, kw_only=True)
class MirroredSettings(shared.TrainedSettings):
    """Settings of a point: one model, and the start of its MLPs."""

    start: str | None = None
    """Name in `STARTS`; None for the block's own."""

    @property
    def name(self) -> str:
        """Name of the block with its start, and with its rate if there are several."""
        named = named_start(self.variant, self.start) if self.start else self.variant
        return super().name.replace(self.variant, named, 1)


def named_start(variant: str, start: str) -> str:
    """Name a block whose MLPs begin as a linear map."""
    return f"{variant}, looks-linear {start}"


def maps(start: str, width: int, half: int) -> tuple[Float[Tensor, "M D"], Float[Tensor, "D M"]]:
    """Draw A and B, whose product BA is the linear map of the start.

    Source: Balduzzi et al. (2017), arXiv 1702.08591.

    Args:
        start: gaussian, orthogonal (BA is orthogonal) or identity (BA is the identity).
        width: width D.
        half: half of the hidden width M, at least D.

    Returns:
        A and B.
    """
    if start == "gaussian":
        return torch.randn(half, width) / math.sqrt(width), torch.randn(width, half) / math.sqrt(
            half
        )
    first = nn.init.orthogonal_(torch.empty(half, width))
    turned = nn.init.orthogonal_(torch.empty(width, width))
    return first, (turned if start == "orthogonal" else torch.eye(width)) @ first.T


@torch.no_grad()
def mirror(start: str, trainer: RunTrainer) -> None:
    """Set every MLP to [B, -B] ReLU([A; -A] x) = BA x, which looks linear."""
    torch.manual_seed(trainer.args.seed)
    for name, module in cast(nn.Module, trainer.model).named_modules():
        if name.endswith("mlp"):
            inner, outer = module.input.weight, module.output.weight
            first, second = maps(start, inner.shape[1], inner.shape[0] // 2)
            inner.copy_(torch.cat([first, -first]))
            outer.copy_(torch.cat([second, -second], dim=1))


def sweeps(scale: Scale) -> list[shared.Sweep]:
    """List the blocks beside which the starts are judged, and the starts."""
    size, rates = shared.SIZES[scale], shared.RATES[scale]
    slow = shared.Grid(rates=RATES.get(scale, rates.rates))
    return [
        shared.Sweep(
            variants=("pre-ln", "sas", *BESIDE_A_SKIP, shared.BIGRAMS), size=size, rates=rates
        ),
        shared.Sweep(variants=(NO_SKIP,), size=size, rates=slow),
        *(
            shared.Sweep(variants=(NO_SKIP,), size=size, rates=slow, settings={"start": start})
            for start in STARTS
        ),
    ]


def measure(settings: MirroredSettings) -> list[Row]:
    """Train one model."""
    change = functools.partial(mirror, settings.start) if settings.start else None
    return shared.train_point(settings, change=change)


def summarise(rows: Rows) -> Summary:
    """Plot loss curves and compare final losses."""
    runs = shared.Runs(rows)
    linear = [named_start(NO_SKIP, start) for start in STARTS]
    return runs.summary(
        title="Starts that do not make up for what was removed",
        panels=[
            runs.panel(["sas", NO_SKIP, *linear], "looks-linear starts"),
            runs.panel(["pre-ln", *BESIDE_A_SKIP], "smaller gains of attention"),
        ],
        checks=[
            *(
                runs.slower(
                    name, "sas", f"the {start} looks-linear start does not make up for the MLP skip"
                )
                for name, start in zip(linear, STARTS, strict=True)
            ),
            *(
                runs.slower(
                    name,
                    "pre-ln",
                    f"an attention gain of {gain:g} does not mend identity "
                    "values beside a skip (Figure 23)",
                )
                for name, gain in zip(BESIDE_A_SKIP, shared.ATTENTION_GAINS, strict=True)
            ),
        ],
    )


STUDY = shared.trained_study(
    "mirrored-starts",
    title="Looks-Linear starts, and smaller attention gains beside identity values",
    source="Simplified blocks, section 4.3 and Figure 23",
    published="Looks-Linear starts do not make up for the MLP skip, nor do smaller gains of "
    "attention for identity values beside a skip.",
    kind=MirroredSettings,
    sweeps=sweeps,
    measure=measure,
    summarise=summarise,
)
