"""Measure linear MLPs of depth 1 to 5 in closed form: blocks grow as σ² at every depth.

With h_n the input of layer l at token n, B the map from its output to the logits, and the loss the
squared distance from the one-hot target summed over N tokens and C classes,

    H_o = 2 Σ_n h_n h_nᵀ ⊗ B Bᵀ, H_f = 0,

since the network is linear in each single weight, for any target. There are two set-ups. `head`:
D layers and a head, which is not counted; weights as in the attention studies; mean over N tokens
and C classes. `authors` follows the authors' notebook: the last of D layers is the output; weights
are torch's default for linear layers (uniform with variance 1/(3 width)); the squares are summed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.conventions import IGNORED, PARTS
from hessblocks.figures import Panel, number
from hessblocks.linalg import Estimate
from hessblocks.storage import Row
from hessblocks_studies import growth
from hessblocks_studies.data import SYMBOLS, addition_batch
from hessblocks_studies.engine import Rows, Scale, Study, Summary, seed_of
from hessblocks_studies.growth import GROWTH_COLUMNS, Norms

_SIGMAS = growth.logspace(-2, 1, 20)
_DEPTHS = (1, 2, 3, 4, 5)
SIZES: dict[Scale, growth.Size] = {
    "smoke": growth.Size(width=16, sums=8, seeds=3, sigmas=_SIGMAS, layers=_DEPTHS),
    "laptop": growth.Size(width=128, sums=64, seeds=10, sigmas=_SIGMAS, layers=_DEPTHS),
    "paper": growth.Size(width=128, sums=64, seeds=20, sigmas=_SIGMAS, layers=_DEPTHS),
}
SETUPS = {"head": "weight", "authors": "authors' weight"}
"""Set-up → group of its rows."""
EXPECTED = tuple(growth.Expected(group=group, part="full", slope=2) for group in SETUPS.values())


@dataclass(frozen=True, kw_only=True)
class LinearSettings:
    """Settings of a point: one network at one σ."""

    setup: str
    """Name in `SETUPS`."""
    layers: int
    """Number of layers."""
    width: int
    """Width of the network."""
    sums: int
    """Number of sums in the batch."""
    sigma: float
    """Standard deviation σ of the embeddings."""
    seed: int
    """Index of the repetition, from 0; it determines network and sums together with depth."""


def measure(settings: LinearSettings) -> list[Row]:
    """Compute exact norms of every layer's block; a seed has one network for all σ."""
    layers, sigma, setup = settings.layers, settings.sigma, settings.setup
    draw = seed_of("mlp", layers, settings.seed)
    embedding, weights = network(setup, layers, settings.width, sigma, draw)
    norms = outer_norms(setup, embedding, weights, addition_batch(settings.sums, seed=draw))
    norms_by_layer: list[Norms] = [
        {
            (SETUPS[setup], part): Estimate(value=norm * (part != "functional"), method="exact")
            for part in PARTS
        }
        for norm in norms
    ]
    return growth.growth_rows(norms_by_layer, "mlp", layers=layers, sigma=sigma, seed=settings.seed)


def network(
    setup: str, layers: int, width: int, sigma: float, seed: int
) -> tuple[Float[Tensor, "symbols width"], list[Float[Tensor, "width _"]]]:
    """Draw embedding (symbols, width) and weights (width, width), the last one (width, symbols)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int, std: float) -> Tensor:
        return std * torch.randn(rows, columns, generator=generator, dtype=torch.float64)

    def weight(columns: int) -> Tensor:
        if setup == "head":
            return normal(width, columns, growth.weight_size(width))
        uniform = torch.rand(width, columns, generator=generator, dtype=torch.float64)
        return (2 * uniform - 1) / math.sqrt(width)

    weights = [weight(width) for _ in range(layers if setup == "head" else layers - 1)]
    embedding = normal(len(SYMBOLS), width, sigma)
    return embedding, [*weights, weight(len(SYMBOLS))]


def outer_norms(
    setup: str,
    embedding: Float[Tensor, "symbols width"],
    weights: Sequence[Float[Tensor, "width _"]],
    batch: Mapping[str, Int[Tensor, "sequences tokens"]],
) -> list[float]:
    """Compute ‖H_o‖_F = 2 ‖Σ_n h_n h_nᵀ‖ ‖B Bᵀ‖ of each counted layer, or that of the mean loss."""
    is_counted = batch["labels"][:, 1:] != IGNORED
    h = embedding[batch["input_ids"][:, :-1][is_counted]]
    classes = weights[-1].shape[1]
    counted, share = (weights[:-1], 2 / (len(h) * classes)) if setup == "head" else (weights, 2)
    norms = []
    for layer, weight in enumerate(counted):
        unit = torch.eye(weight.shape[1], dtype=weight.dtype)
        behind = reduce(torch.matmul, weights[layer + 1 :], unit)
        norms.append(share * float((h.T @ h).norm() * (behind @ behind.T).norm()))
        h = h @ weight
    return norms


def summarise(rows: Rows) -> Summary:
    """Fit slopes for σ ≤ 0.1, and plot a panel per set-up."""
    factor = growth.apart(rows, "layers", "group", "part")
    return growth.growth_summary(
        rows,
        title="A linear MLP grows as σ² at every depth",
        caption=(
            "Drawn is the block of the first layer; those of other layers lie within a factor of "
            f"{number(factor)} of it. Left: linear layers and a head, mean of squares; right: the "
            "authors' set-up, whose last layer is the output, sum of squares. Exact; the "
            "functional part is 0."
        ),
        expected=EXPECTED,
        panels=[_panel(rows, setup) for setup in SETUPS],
    )


def _panel(rows: Rows, setup: str) -> Panel:
    curve = (0, SETUPS[setup], "full")
    panel = growth.curves_panel(
        [row for row in rows if (row["layer"], row["group"], row["part"]) == curve],
        "layers and a head, mean" if setup == "head" else "authors' set-up, sum",
        label=lambda curve: f"depth {curve[0]}",
    )
    return growth.with_guides(panel, {f"depth {max(_DEPTHS)}": 2}, (min(_SIGMAS), max(_SIGMAS)))


STUDY = Study(
    name="mlp",
    title="linear MLPs of depth 1 to 5 against the size of the data",
    source="Hessian paper, appendix: MLP",
    published="Without attention all blocks grow as σ², whatever the depth.",
    settings=growth.draws(SIZES, LinearSettings, setup=tuple(SETUPS)),
    measure=measure,
    summarise=summarise,
    columns=GROWTH_COLUMNS,
    revision=3,  # one draw for all σ
)
