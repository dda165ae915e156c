"""Measure the indefiniteness of each diagonal block of H by layer, with and without softmax.

H = H_o + H_f, where H_o is positive semi-definite. In the last layer the logits are piecewise
linear in each value, projection and MLP matrix; with linear scores also in each query and key
matrix. For these blocks H_f is 0 and H is positive semi-definite. In earlier layers H may be
indefinite, but a nonzero H_f does not imply it, since H_o may outweigh H_f.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from hessblocks.curvature import Hessian, Problem, parameter_groups
from hessblocks.errors import RunError
from hessblocks.figures import Panel
from hessblocks.storage import Row, Scalar
from hessblocks_studies import growth, shared
from hessblocks_studies.data import addition_batch
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary, seed_of
from hessblocks_studies.hessian_paper.one_matrix import SCORES, negative_share

SCORED = ("attention.query", "attention.key")
"""Groups that affect the output through the scores."""
OTHERS = ("attention.value", "attention.projection", "mlp.in", "mlp.out")
_SIZES: dict[Scale, growth.Size] = {
    "smoke": growth.Size(width=8, sums=4, seeds=2, layers=(2,), sigmas=(0.1,)),
    "laptop": growth.Size(width=8, sums=64, seeds=5, layers=(4,), sigmas=(0.1,)),
    "paper": growth.Size(width=16, sums=64, seeds=20, layers=(4,), sigmas=(0.1,)),
}
ROUNDING = 1e-9
"""Share up to which it counts as 0, due to rounding."""
MUCH = 0.01
"""Share from which a block counts as indefinite beyond what theory implies."""


@dataclass(frozen=True, kw_only=True)
class IndefinitenessSettings(growth.DrawSettings):
    """Settings of a point: all blocks of one model."""

    scores: str
    """Kind of scores: softmax or linear."""
    layers: int
    """Number of layers."""
    sigma: float
    """Standard deviation of embeddings and positions; with linear scores the logits reach 1e8 at
    0.28, and 10 at 0.1."""


def measure(settings: IndefinitenessSettings) -> list[Row]:
    """Compute the share of negative curvature, Σ|negative λ| / Σ|λ|, of each matrix's block of H.

    Returns:
        One row per layer and matrix.

    Raises:
        RunError: a block is not symmetric; the signs of its eigenvalues would depend on rounding.
    """
    width, layers, seed, scores = settings.width, settings.layers, settings.seed, settings.scores
    draw = seed_of("indefiniteness", seed)
    sigma = settings.sigma
    model = growth.addition_model(scores, layers=layers, width=width, sigma=sigma, seed=draw)
    problem = Problem(model, [addition_batch(settings.sums, seed=draw)])
    groups = parameter_groups(model)
    rows: list[Row] = []
    for layer in range(layers):
        for name in (*SCORED, *OTHERS):
            block = Hessian(problem, groups[f"layers.{layer}.{name}"]).dense()
            if (block - block.T).norm() > ROUNDING * block.norm():
                raise RunError(
                    f"layers.{layer}.{name}: its block is rounding alone, since the outputs "
                    f"saturate the loss; choose sigma below {sigma:g}."
                )
            share = negative_share(torch.linalg.eigvalsh((block + block.T) / 2).tolist())
            columns: Row = {"study": "indefiniteness", "scores": scores, "layers": layers}
            rows.append({**columns, "layer": layer, "group": name, "seed": seed, "value": share})
    return rows


Shares = Mapping[tuple[str, int, str], Mapping[Scalar, float]]
"""(scores, layer, group) → {seed: share}."""


def summarise(rows: Rows) -> Summary:
    """Plot shares by layer, one panel per kind of scores."""
    means = shared.gathered(rows, "scores", "layer", "group")
    shares = shared.nested(rows, ("scores", "layer", "group"), "seed")
    depth = max((row["layers"] for row in rows), default=0)
    seeds = len({row["seed"] for row in rows})
    return shared.summary(
        "Softmax makes query and key blocks indefinite in every layer",
        "Sum of |λ| over negative eigenvalues λ of a diagonal block of H over the sum of all |λ|, "
        f"at initialisation; mean over {seeds} seeds, bars are its standard errors.",
        (_panel(scores, depth, means) for scores in SCORES if any(k[0] == scores for k in means)),
        list(_checks(depth, shares)),
        shares=shared.mean_table(means, "scores", "layer", "group"),
    )


def _panel(scores: str, depth: int, means: Mapping[tuple[str, int, str], Sequence[float]]) -> Panel:
    curves = {}
    for name in (*SCORED, *OTHERS):
        shares = {float(layer): means.get((scores, layer, name), ()) for layer in range(depth)}
        measured = {layer: values for layer, values in shares.items() if values}
        curves[name.removeprefix("attention.").replace(".", " ")] = shared.mean_places(measured)
    panel = shared.panel(f"{scores} scores", "layer", "share of negative curvature", curves)
    return replace(panel, ticks=tuple(str(layer + 1) for layer in range(depth)))


def _checks(depth: int, means: Shares) -> Iterator[Check]:
    """Check the exact facts about the last layer, and report those about the layer before it."""
    last = depth - 1
    for scores, groups in (("linear", SCORED), ("linear", OTHERS), ("softmax", OTHERS)):
        names = "query and key" if groups is SCORED else "value, projection and MLP"
        if shares := _by_seed(means, scores, last, groups):
            largest = max(map(max, shares.values()))
            yield Check(
                fact=f"no negative curvature in the last layer's {names} blocks, {scores} scores",
                expected="a share of 0 to rounding (theory)",
                ours=f"at most {largest:.0e}",
                holds=largest < ROUNDING,
            )
    if shares := _by_seed(means, "softmax", last, SCORED):
        yield _much(
            "negative curvature in the last layer's query and key blocks, softmax scores",
            "the smaller share",
            {seed: min(pair) for seed, pair in shares.items()},
        )
    for layer in range(last):
        if shares := _by_seed(means, "linear", layer, (*SCORED, *OTHERS)):
            yield _much(
                f"negative curvature in the blocks of layer {layer + 1}, linear scores",
                "the mean share",
                {seed: statistics.fmean(values) for seed, values in shares.items()},
            )
    for layer in range(depth):
        values = {
            scores: {
                seed: statistics.fmean(pair)
                for seed, pair in _by_seed(means, scores, layer, SCORED).items()
            }
            for scores in SCORES
        }
        if all(values.values()):
            yield shared.difference(values, *SCORES).judged(
                f"softmax adds negative curvature to the query and key blocks of layer {layer + 1}",
                "a larger share than with linear scores (found, not implied by theory)",
                unit="in share",
            )


def _much(fact: str, quantity: str, shares: Mapping[Scalar, float]) -> Check:
    """Judge whether a share is clearly above 0, which theory allows and does not imply."""
    expected = f"{quantity} above {MUCH:g} (found, not implied by theory)"
    share = shared.over_seeds(shares)
    return share.judged(fact, expected, limit=MUCH, unit="in share", signed=False)


def _by_seed(
    by_group: Shares, scores: str, layer: int, groups: Sequence[str]
) -> dict[Scalar, list[float]]:
    """Collect {seed: shares of groups of a layer}, for the seeds that all groups have."""
    first, *others = (by_group.get((scores, layer, name), {}) for name in groups)
    return {
        seed: [by_seed[seed] for by_seed in (first, *others)]
        for seed in first
        if all(seed in by_seed for by_seed in others)
    }


STUDY = Study(
    name="indefiniteness",
    title=(
        "share of negative curvature of each diagonal block along depth, with softmax and without"
    ),
    source="ours, from section 4 of the Hessian paper",
    published=(
        "Only the functional part is indefinite; of the last layer's diagonal blocks softmax "
        "leaves it to queries and keys, linear scores to none."
    ),
    settings=growth.draws(_SIZES, IndefinitenessSettings, scores=SCORES),
    measure=measure,
    summarise=summarise,
    columns=("study", "scores", "layers", "layer", "group", "seed", "value"),
)
