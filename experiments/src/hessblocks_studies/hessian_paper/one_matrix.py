"""Compare W_QK with W_Q and W_K: the same function, two Hessians, one less indefinite.

Both models compute the same logits: W_QK = W_Q W_Kᵀ / sqrt(K). Letters: K head width, λ
eigenvalues, G the gradient with respect to W_QK.

With two matrices H_f has the blocks ± G between W_Q and W_K, whose eigenvalues come in pairs
±σ_j(G)/sqrt(K), each K times; with linear scores that is all of H_f.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from hessblocks.conventions import PARTS, Part
from hessblocks.curvature import exact_attention_curvature
from hessblocks.figures import Panel, Series
from hessblocks.statistics import mean_and_error
from hessblocks.storage import Row
from hessblocks.theory import AttentionHessian
from hessblocks_studies import growth, shared
from hessblocks_studies.data import addition_batch
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary, seed_of

BLOCKS = {"two-matrix": ("query", "key"), "one-matrix": ("query_key",)}
"""Parametrisation → its groups."""
SCORES = ("softmax", "linear")
ROUNDING = 1e-12
"""Share of the largest eigenvalue up to which an eigenvalue counts as 0: rounding in float64 at
these sizes."""
_SIZES: dict[Scale, growth.Size] = {
    "smoke": growth.Size(width=8, sums=8, seeds=2),
    "laptop": growth.Size(width=16, sums=64, seeds=10),
    "paper": growth.Size(width=16, sums=64, seeds=20),
}


@dataclass(frozen=True, kw_only=True)
class PairSettings(growth.DrawSettings):
    """Settings of a point: one function in both parametrisations."""

    scores: str
    """Kind of scores: softmax or linear."""


def measure(settings: PairSettings) -> list[Row]:
    """Compute eigenvalues and mean entry of each part of H, for both parametrisations."""
    seed, scores = settings.seed, settings.scores
    draw = seed_of("one-matrix", seed)
    models = equal_models(scores, settings.width, draw)
    batch = addition_batch(settings.sums, seed=draw)
    rows: list[Row] = []
    for name, groups in BLOCKS.items():
        hessian = exact_attention_curvature(models[name], batch)
        for part in PARTS:
            columns: Row = {"study": "one-matrix", "scores": scores, "parametrisation": name}
            columns |= {"part": part, "seed": seed}
            values = quantities(_joint(hessian, groups, part), spectrum=seed == 0)
            rows += [{**columns, "quantity": q, "value": v} for q, v in values.items()]
    return rows


def equal_models(scores: str, width: int, seed: int) -> dict[str, PreTrainedModel]:
    """Build two models of the same function, by parametrisation."""
    sigma = growth.weight_size(width)
    two = growth.addition_model(scores, layers=1, width=width, sigma=sigma, seed=seed)
    single_name = "one-matrix" if scores == "softmax" else "one-matrix-linear"
    single = growth.addition_model(single_name, layers=1, width=width, sigma=sigma, seed=seed)
    attention = two.model.layers[0].attention
    query_key = attention.query.weight.T @ attention.key.weight / math.sqrt(width)
    state = {name: value for name, value in two.state_dict().items() if ".key." not in name}
    single.load_state_dict({**state, "model.layers.0.attention.query.weight": query_key.T})
    return {"two-matrix": two, "one-matrix": single}


def quantities(matrix: Float[Tensor, "size size"], *, spectrum: bool) -> dict[str, float]:
    """Summarise a symmetric matrix: mean entry, indefiniteness, pairing, and, if asked, spectrum.

    Args:
        matrix: a part of the Hessian, symmetric up to rounding.
        spectrum: whether to include the eigenvalues.

    Returns:
        Name of the quantity → value.
    """
    eigenvalues: list[float] = torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0).tolist()
    values = {
        "mean_size": float(matrix.abs().mean()),
        "negative_share": negative_share(eigenvalues),
        "pairing": pairing(eigenvalues),
    }
    if spectrum:
        values |= {f"eigenvalue {index}": value for index, value in enumerate(eigenvalues)}
    return values


def negative_share(eigenvalues: Sequence[float]) -> float:
    """Compute the sum of |λ| over negative λ, divided by the sum over all λ."""
    total = sum(abs(value) for value in eigenvalues)
    return sum(-value for value in eigenvalues if value < 0) / total if total else 0.0


def pairing(eigenvalues: Sequence[float]) -> float:
    """Compute max |λ_i + λ_(n+1−i)| / max |λ| for sorted λ; 0 if all eigenvalues are ± pairs."""
    largest = max(abs(value) for value in eigenvalues)
    ends = zip(eigenvalues, reversed(eigenvalues), strict=True)
    return max(abs(first + last) for first, last in ends) / largest if largest else 0.0


def _joint(hessian: AttentionHessian, groups: Sequence[str], part: Part) -> Tensor:
    """Compute a part of the dense Hessian over all of `groups`."""
    return torch.cat(
        [
            torch.cat([hessian.block(row, column, part).dense() for column in groups], dim=1)
            for row in groups
        ]
    )


Values = dict[tuple[Any, ...], list[float]]
"""(scores, parametrisation, part, quantity) → values of the seeds."""
_KEY = ("scores", "parametrisation", "part", "quantity")


def summarise(rows: Rows) -> Summary:
    """Summarise the indefiniteness of each parametrisation, and the pairing of eigenvalues."""
    by_key = shared.gathered(rows, *_KEY)
    means = {key: seeds for key, seeds in by_key.items() if not key[-1].startswith("eigenvalue")}
    panels, zeros = zip(*(_panel(scores, by_key) for scores in SCORES), strict=True)
    return shared.summary(
        "One matrix W_QK leaves fewer negative directions than W_Q and W_K",
        "Eigenvalues of H over the query and key weights, first seed, by size; same function. "
        f"{sum(zeros)} below {ROUNDING:.0e} of the largest are 0 but for rounding and are left "
        "out.",
        panels,
        _checks(by_key),
        quantities=shared.mean_table(means, *_KEY),
    )


def _panel(scores: str, by_key: Values) -> tuple[Panel, int]:
    """Plot the eigenvalues for one kind of scores; also return how many are not shown."""
    series, zeros = [], 0
    for parametrisation in BLOCKS:
        eigenvalues = [
            values[0]
            for (s, p, part, quantity), values in by_key.items()
            if (s, p, part) == (scores, parametrisation, "full") and quantity.startswith("eigen")
        ]
        least = ROUNDING * max(map(abs, eigenvalues), default=0.0)
        zeros += sum(abs(value) <= least for value in eigenvalues)
        for sign, name in ((1, "positive"), (-1, "negative")):
            sizes = sorted((sign * v for v in eigenvalues if sign * v > least), reverse=True)
            if sizes:
                ranks = tuple(float(rank) for rank in range(1, len(sizes) + 1))
                series.append(Series(name=f"{parametrisation}, {name}", x=ranks, y=tuple(sizes)))
    panel = Panel(
        title=f"{scores} scores",
        x_label="rank",
        y_label="|eigenvalue| of H",
        y_scale="log",
        series=tuple(series),
    )
    return panel, zeros


def _checks(by_key: Values) -> list[Check]:
    checks = []
    for scores in SCORES:
        two = by_key.get((scores, "two-matrix", "full", "negative_share"), [])
        single = by_key.get((scores, "one-matrix", "full", "negative_share"), [])
        if two and single:
            checks.append(_share_check(scores, two, single))
    pairs = by_key.get(("linear", "two-matrix", "functional", "pairing"), [])
    if pairs:
        checks.append(
            Check(
                fact="with linear scores all eigenvalues of H_f over W_Q and W_K come in ± pairs",
                expected="0 to rounding",
                ours=f"{max(pairs):.0e} of the largest",
                holds=max(pairs) < 1e-9,
            )
        )
    return checks


def _share_check(scores: str, two: Sequence[float], single: Sequence[float]) -> Check:
    texts = []
    for name, values in (("two matrices", two), ("one matrix", single)):
        mean, error = mean_and_error(values)
        texts.append(f"{name} {mean:.3f}" + (f" ± {error:.3f}" if len(values) > 1 else " (1 seed)"))
    return Check(
        fact=f"H is less indefinite with one matrix ({scores} scores)",
        expected="smaller share of negative curvature at every seed",
        ours=", ".join(texts),
        holds=None if len(two) < 2 else all(a > b for a, b in zip(two, single, strict=False)),
    )


STUDY = Study(
    name="one-matrix",
    title="W_QK against W_Q and W_K: entries, indefiniteness, ± pairs of eigenvalues",
    source="Hessian paper, section 4 and appendix: single-matrix parametrisation",
    published=(
        "With W_Q and W_K apart the functional Hessian gains a block-hollow term whose "
        "eigenvalues come in ± pairs; one matrix W_QK has no such term."
    ),
    settings=growth.draws(_SIZES, PairSettings, scores=SCORES),
    measure=measure,
    summarise=summarise,
    columns=("study", "scores", "parametrisation", "part", "quantity", "seed", "value"),
)
