"""Refits by normal equations equal the direct solution."""

from functools import reduce
from operator import add

import pytest
import torch

from hessblocks.simplify.least_squares import RIDGES, NormalEquations, Refit


def problem(tokens: int = 60, inputs: int = 5, outputs: int = 3) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    x, y = torch.randn(tokens, inputs), torch.randn(tokens, outputs)
    return x, y, torch.randn(inputs, outputs)


@pytest.mark.parametrize("pieces", [1, 3, 60])
def test_the_solution_is_that_of_lstsq_however_tokens_are_batched(pieces: int) -> None:
    x, y, old = problem()
    parts = zip(x.chunk(pieces), y.chunk(pieces), strict=True)
    equations = reduce(add, (NormalEquations.of(some, wanted) for some, wanted in parts))
    direct = torch.linalg.lstsq(x.double(), y.double()).solution
    found = equations.solve(old, ridge=0.0)
    assert (found - direct).abs().max() < 1e-8
    left = (x.double() @ direct - y.double()).square().sum() / y.double().square().sum()
    assert equations.error(found) == pytest.approx(float(left), rel=1e-10)


def test_inputs_that_are_left_out_are_not_used() -> None:
    x, y, old = problem()
    kept = torch.tensor([0, 3, 4])
    direct = torch.linalg.lstsq(x[:, kept].double(), y.double()).solution
    equations = NormalEquations.of(x, y)
    assert (equations.solve(old[kept], kept, ridge=0.0) - direct).abs().max() < 1e-8


def test_the_ridge_pulls_towards_the_old_weights_where_the_text_says_nothing() -> None:
    x, y, old = problem()
    x[:, 2] = 0
    equations = NormalEquations.of(x, y)
    found = equations.solve(old)
    assert torch.allclose(found[2], old[2].double(), rtol=0, atol=1e-12)
    root = torch.diag((1e-6 * x.double().square().sum(0)).sqrt())
    stacked, wanted = torch.cat([x.double(), root]), torch.cat([y.double(), root @ old.double()])
    direct = torch.linalg.lstsq(stacked[:, [0, 1, 3, 4]], wanted).solution
    assert (found[[0, 1, 3, 4]] - direct).abs().max() < 1e-8
    with pytest.raises(RuntimeError, match="cholesky"):
        equations.solve(old, ridge=0.0)


def test_the_ridge_is_the_one_that_predicts_the_other_half_best() -> None:
    torch.manual_seed(1)
    for noise in (0.01, 30.0):
        x, old = torch.randn(40, 12).double(), torch.randn(12, 2).double()
        y = x @ (old + 0.3 * torch.randn(12, 2)) + noise * torch.randn(40, 2)
        found, tried = Refit(x, y).solve(old), []
        for ridge in RIDGES:
            missed = 0.0
            for own, other in ((slice(20), slice(20, 40)), (slice(20, 40), slice(20))):
                scale = ridge * torch.diag(x[own].square().sum(0))
                gram = x[own].T @ x[own] + scale
                weight = torch.linalg.solve(gram, x[own].T @ y[own] + scale @ old)
                missed += float(
                    (x[other] @ weight - y[other]).square().sum() / y[other].square().sum()
                )
            tried.append(missed)
        best = RIDGES[tried.index(min(tried))]
        assert torch.allclose(
            found, NormalEquations.of(x, y).solve(old, ridge=best / 2), atol=1e-12
        )
        assert (best > 0.1) == (noise > 1)


def test_tokens_count_by_their_weights() -> None:
    x, y, old = problem()
    weight = torch.rand(60)
    found, root = Refit(x, y, weight).solve(old), weight.sqrt()[:, None]
    assert torch.allclose(found, Refit(root * x, root * y).solve(old))
    assert not torch.allclose(found, Refit(x, y).solve(old))


@pytest.mark.parametrize("dead", ["outputs", "inputs and outputs"])
def test_a_part_that_gives_nothing_is_refitted_too(dead: str) -> None:
    x, y, old = problem()
    x = x if dead == "outputs" else torch.zeros_like(x)
    found = Refit(x, torch.zeros_like(y)).solve(old)
    assert torch.isfinite(found).all()
    assert (x.double() @ found).norm() < 1e-2 * (x @ old).norm() + 1e-12
