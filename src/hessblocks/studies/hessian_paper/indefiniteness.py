"""How indefinite each diagonal block of H is along depth, with softmax and without.

H = H_o + H_f, and only H_f has negative eigenvalues of its own. In the last layer the logits are piecewise
linear in each value, projection and MLP matrix, and with linear scores in each query and key matrix
too: there H_f of the diagonal block is 0 and H is positive semi-definite. In earlier layers it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from hessblocks.curvature import Hessian, Problem, parameter_groups
from hessblocks.data import addition_batch
from hessblocks.errors import RunError
from hessblocks.figures import Panel
from hessblocks.storage import Row, Scalar
from hessblocks.studies import shared
from hessblocks.studies.engine import Check, Rows, Scale, Study, Summary, seed_of
from hessblocks.studies.hessian_paper.one_matrix import SCORES, negative_share

SCORED = ("attention.query", "attention.key")
"""Groups that act through the scores."""
OTHERS = ("attention.value", "attention.projection", "mlp.in", "mlp.out")
_SIZES: dict[Scale, shared.Size] = {
    "smoke": shared.Size(width=8, sums=4, seeds=2, layers=(2,), sigmas=(0.1,)),
    "laptop": shared.Size(width=8, sums=64, seeds=5, layers=(4,), sigmas=(0.1,)),
    "paper": shared.Size(width=16, sums=64, seeds=20, layers=(4,), sigmas=(0.1,)),
}
ROUNDING = 1e-9
"""Share that is 0 to rounding."""


@dataclass(frozen=True, kw_only=True)
class IndefinitenessSettings(shared.DrawSettings):
    """A point of this study: all blocks of one model."""

    scores: str
    """softmax or linear."""
    layers: int
    """Depth."""
    sigma: float
    """Standard deviation of embeddings and positions; linear scores reach logits of 1e8 at 0.28, of 10 at 0.1."""


def measure(settings: IndefinitenessSettings) -> list[Row]:
    """Share of negative curvature, Σ|negative λ| / Σ|λ|, of each matrix's dense block of H.

    Returns:
        A row for each layer and matrix.

    Raises:
        RunError: a block is not symmetric, so that rounding decides the signs of its eigenvalues.
    """
    width, layers, seed, scores = settings.width, settings.layers, settings.seed, settings.scores
    draw = seed_of("indefiniteness", seed)
    sigma = settings.sigma
    model = shared.addition_model(scores, layers=layers, width=width, sigma=sigma, seed=draw)
    problem = Problem(model, [addition_batch(settings.sums, seed=draw)])
    groups = parameter_groups(model)
    rows: list[Row] = []
    for layer in range(layers):
        for name in (*SCORED, *OTHERS):
            block = Hessian(problem, groups[f"layers.{layer}.{name}"]).dense()
            if (block - block.T).norm() > ROUNDING * block.norm():
                raise RunError(
                    f"layers.{layer}.{name}: its block is rounding alone, since the outputs saturate the "
                    f"loss; choose sigma below {sigma:g}."
                )
            share = negative_share(torch.linalg.eigvalsh((block + block.T) / 2).tolist())
            place: Row = {"study": "indefiniteness", "scores": scores, "layers": layers}
            rows.append({**place, "layer": layer, "group": name, "seed": seed, "value": share})
    return rows


Shares = Mapping[tuple[str, int, str], Sequence[float]]
"""(scores, layer, group) → the share of each seed."""


def summarise(rows: Rows) -> Summary:
    """Shares along depth, a panel for each kind of scores."""
    found = shared.gathered(rows, "scores", "layer", "group")
    depth = max((row["layers"] for row in rows), default=0)
    seeds = len({row["seed"] for row in rows})
    return shared.summary(
        "Softmax makes query and key blocks indefinite in every layer",
        "Sum of |λ| over negative eigenvalues λ of a diagonal block of H over the sum of all |λ|, at "
        f"initialisation; mean over {seeds} seeds, bars are its standard errors.",
        (_panel(scores, depth, found) for scores in SCORES if any(k[0] == scores for k in found)),
        list(_checks(depth, found)),
        shares=shared.mean_table(found, "scores", "layer", "group"),
    )


def _panel(scores: str, depth: int, found: Shares) -> Panel:
    curves = {
        name: {float(layer): found.get((scores, layer, name), ()) for layer in range(depth)}
        for name in (*SCORED, *OTHERS)
    }
    return Panel(
        title=f"{scores} scores",
        x_label="layer",
        y_label="share of negative curvature",
        ticks=tuple(str(layer + 1) for layer in range(depth)),
        series=tuple(
            shared.curve(
                name.removeprefix("attention.").replace(".", " "),
                shared.mean_places({x: each for x, each in places.items() if each}),
            )
            for name, places in curves.items()
        ),
    )


def _checks(depth: int, found: Shares) -> Iterator[Check]:
    """What holds exactly in the last layer, and what is found before it."""
    last, earlier = depth - 1, range(depth - 1)
    zero = [("linear", SCORED), ("linear", OTHERS), ("softmax", OTHERS)]
    for scores, groups in zero:
        names = "query and key" if groups is SCORED else "value, projection and MLP"
        if shares := _shares(found, scores, last, groups):
            yield Check(
                fact=f"no negative curvature in the last layer's {names} blocks, {scores} scores",
                expected="a share of 0 to rounding (theory)",
                ours=f"at most {max(shares):.0e}",
                holds=max(shares) < ROUNDING,
            )
    if shares := _shares(found, "softmax", last, SCORED):
        yield Check(
            fact="negative curvature in the last layer's query and key blocks, softmax scores",
            expected="a share above 0 at every seed (theory: the functional part is not 0)",
            ours=f"{min(shares):.2g} to {max(shares):.2g}",
            holds=min(shares) > ROUNDING,
        )
    for layer in earlier:
        blocks = [found.get(("linear", layer, name), ()) for name in (*SCORED, *OTHERS)]
        if largest := [max(shares) for shares in zip(*blocks, strict=False)]:
            yield Check(
                fact=f"negative curvature in some block of layer {layer + 1}, linear scores",
                expected="a share above 0 at every seed (theory: only the last layer's functional part is 0)",
                ours=f"the largest share is {min(largest):.2g} to {max(largest):.2g}",
                holds=min(largest) > ROUNDING,
            )
    for layer in range(depth):
        values = {scores: _by_seed(found, scores, layer) for scores in SCORES}
        if all(values.values()):
            yield shared.difference_check(
                values,
                *SCORES,
                f"softmax adds negative curvature to the query and key blocks of layer {layer + 1}",
                expected="a larger share than with linear scores",
                above=True,
                unit="in share",
            )


def _by_seed(found: Shares, scores: str, layer: int) -> dict[Scalar, float]:
    """Mean share of the query and key blocks by seed."""
    query, key = (found.get((scores, layer, name), ()) for name in SCORED)
    return {seed: sum(pair) / 2 for seed, pair in enumerate(zip(query, key, strict=False))}


def _shares(found: Shares, scores: str, layer: int, groups: Sequence[str]) -> list[float]:
    """The shares of all seeds of some groups of a layer."""
    return [share for group in groups for share in found.get((scores, layer, group), ())]


STUDY = Study(
    name="indefiniteness",
    title="share of negative curvature of each diagonal block along depth, with softmax and without",
    source="ours, from section 4 of the Hessian paper",
    published=(
        "Only the functional part is indefinite; of the last layer's diagonal blocks softmax leaves it to "
        "queries and keys, linear scores to none."
    ),
    settings=shared.draws(_SIZES, IndefinitenessSettings, scores=SCORES),
    measure=measure,
    summarise=summarise,
    columns=("study", "scores", "layers", "layer", "group", "seed", "value"),
)
