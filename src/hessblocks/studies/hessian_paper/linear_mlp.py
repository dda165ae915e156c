"""Linear MLPs of depth 1 to 5: blocks grow as σ² at every depth, in closed form.

With h_n the input of layer l at token n, B the map from its output to the logits, and the loss the
squared distance from the one-hot target averaged over N tokens and C classes,

    H_o = 2/(N C) Σ_n h_n h_nᵀ ⊗ B Bᵀ, H_f = 0,

since the network is linear in each single weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.conventions import IGNORED, PARTS
from hessblocks.curvature import Norms
from hessblocks.data import SYMBOLS, addition_batch
from hessblocks.figures import Panel
from hessblocks.linalg import Estimate
from hessblocks.storage import GROWTH_COLUMNS, Row
from hessblocks.studies import shared
from hessblocks.studies.engine import Rows, Scale, Study, Summary, seed_of

_SIGMAS = shared.logspace(-2, 1, 20)
_DEPTHS = (1, 2, 3, 4, 5)
SIZES: dict[Scale, shared.Size] = {
    "smoke": shared.Size(width=16, sums=8, seeds=3, sigmas=_SIGMAS, layers=_DEPTHS),
    "laptop": shared.Size(width=128, sums=64, seeds=10, sigmas=_SIGMAS, layers=_DEPTHS),
    "paper": shared.Size(width=128, sums=64, seeds=20, sigmas=_SIGMAS, layers=_DEPTHS),
}
EXPECTED = (shared.Expected(group="weight", part="full", slope=2),)


@dataclass(frozen=True, kw_only=True)
class LinearSettings:
    """A point of this study: one network at one σ."""

    layers: int
    """Depth."""
    width: int
    """Entries of a token's vector."""
    sums: int
    """Sums in the batch."""
    sigma: float
    """Standard deviation of the embeddings."""
    seed: int
    """Repetition, from 0; network and sums are drawn from depth, σ and it."""


def measure(settings: LinearSettings) -> list[Row]:
    """Exact norms of every layer's block; weights, embeddings and sums drawn afresh for each point."""
    draw = seed_of("mlp", settings.layers, settings.sigma, settings.seed)
    embedding, weights = network(settings.layers, settings.width, settings.sigma, draw)
    norms = outer_norms(embedding, weights, addition_batch(settings.sums, seed=draw))
    found: list[Norms] = [
        {
            ("weight", part): Estimate(value=norm * (part != "functional"), method="exact")
            for part in PARTS
        }
        for norm in norms
    ]
    return shared.growth_rows(
        found, "mlp", layers=settings.layers, sigma=settings.sigma, seed=settings.seed
    )


def network(
    layers: int, width: int, sigma: float, seed: int
) -> tuple[Float[Tensor, "symbols width"], list[Float[Tensor, "width _"]]]:
    """Embedding (symbols, width), and weights (width, width) of each layer with the head (width, symbols)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int, std: float) -> Tensor:
        return std * torch.randn(rows, columns, generator=generator, dtype=torch.float64)

    std = shared.weight_size(width)
    weights = [normal(width, width, std) for _ in range(layers)]
    embedding = normal(len(SYMBOLS), width, sigma)
    return embedding, [*weights, normal(width, len(SYMBOLS), std)]


def outer_norms(
    embedding: Float[Tensor, "symbols width"],
    weights: Sequence[Float[Tensor, "width _"]],
    batch: Mapping[str, Int[Tensor, "sequences tokens"]],
) -> list[float]:
    """‖H_o‖_F of each layer's weight: 2/(N C) ‖Σ_n h_n h_nᵀ‖ ‖B Bᵀ‖."""
    asked = batch["labels"][:, 1:] != IGNORED
    h = embedding[batch["input_ids"][:, :-1][asked]]
    share = 2 / (len(h) * weights[-1].shape[1])
    norms = []
    for layer, weight in enumerate(weights[:-1]):
        behind = reduce(torch.matmul, weights[layer + 1 :])
        norms.append(share * float((h.T @ h).norm() * (behind @ behind.T).norm()))
        h = h @ weight
    return norms


def summarise(rows: Rows) -> Summary:
    """Slopes for σ ≤ 0.1, and a panel for each depth."""
    return shared.growth_summary(
        rows,
        title="A linear MLP grows as σ² at every depth",
        caption="Embedding, linear layers without bias, head; squared loss. Exact; the functional part is 0.",
        expected=EXPECTED,
        panels=[_panel(rows, depth) for depth in _DEPTHS],
    )


def _panel(rows: Rows, depth: int) -> Panel:
    return shared.curves_panel(
        [row for row in rows if row["layers"] == depth and row["part"] == "full"],
        "one layer" if depth == 1 else f"{depth} layers",
        label=lambda place: f"layer {place[1] + 1}",
    )


STUDY = Study(
    name="mlp",
    title="linear MLPs of depth 1 to 5 against the size of the data",
    source="Hessian paper, appendix: MLP",
    published="Without attention all blocks grow as σ², whatever the depth.",
    settings=shared.draws(SIZES, LinearSettings),
    measure=measure,
    summarise=summarise,
    columns=GROWTH_COLUMNS,
)
