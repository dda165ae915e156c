"""Extreme eigenvalues next to hessian-eigenthings: residuals at equal products, time to a residual.

Run `python -m benchmarks eigenvalues`. The model is a GPT-2 of 2 layers, width 128, vocabulary 1024
on 2 x 64 tokens, float32, random weights; H over all parameters, the two eigenvalues that are
largest in size. Each side multiplies with its own Hessian; residuals are measured with a further
product of ours. Residuals are relative to the larger of the two. One thread, processor time, sides
take turns.
"""

from __future__ import annotations

import warnings
from typing import Any

import hessian_eigenthings
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks._timing import alternated
from benchmarks.curvature_products import everything, gpt, mean_loss
from hessblocks.curvature import Hessian, Problem
from hessblocks.linalg import Eigenvalues, LinearOperator, extreme_eigenvalues

COUNT = 2
PRODUCTS = (20, 40)
TARGET = 1e-3
ROUNDS = 3


def main() -> dict[str, Any]:
    """Measure every figure, printing a line for each."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = gpt(128, layers=2)
    ids = torch.randint(0, 1024, (2, 64))
    ours = Hessian(Problem(model, ids), everything(model))
    foreign = hessian_eigenthings.HessianOperator(model, [ids], mean_loss)
    found: dict[str, Any] = {"parameters": ours.shape[0]}
    found["residuals"] = {str(number): at(ours, foreign, number) for number in PRODUCTS}
    found["time"] = times(ours, foreign)
    return found


def theirs(foreign: Any, products: int) -> Any:
    """So many steps of hessian-eigenthings; it has no other end."""
    with sdpa_kernel(SDPBackend.MATH):
        return hessian_eigenthings.lanczos(foreign, k=COUNT, max_iter=products, seed=0)


def measured(operator: LinearOperator, values: Tensor, vectors: Tensor) -> list[float]:
    """‖H v − θ v‖ over the larger |θ|."""
    rests = operator @ vectors - vectors * values.to(vectors)
    lengths = torch.linalg.vector_norm(rests, dim=0, dtype=torch.float64)
    return (lengths / values.abs().max()).tolist()


def at(ours: LinearOperator, foreign: Any, products: int) -> dict[str, list[float]]:
    """Residuals of both sides after as many products."""
    mine = extreme_eigenvalues(ours, COUNT, "magnitude", max_products=products, tolerance=0)
    other = theirs(foreign, products)
    sides = {
        "ours": measured(ours, mine.values, mine.vectors),
        "hessian-eigenthings": measured(ours, other.eigenvalues, other.eigenvectors.T),
    }
    for name, shares in sides.items():
        print(f"{products} products, {name}: residuals {', '.join(f'{x:.1e}' for x in shares)}")
    return sides


def times(ours: LinearOperator, foreign: Any) -> dict[str, Any]:
    """Processor seconds to a residual; theirs is told the fewest steps that reach it."""

    def mine(*, copies: bool) -> Eigenvalues:
        return extreme_eigenvalues(ours, COUNT, "magnitude", tolerance=TARGET, copies=copies)

    reached = next(number for number in range(COUNT, 99) if reaches(ours, foreign, number))
    sides = {
        "ours": lambda: mine(copies=False),
        "ours, and copies looked for": lambda: mine(copies=True),
        "hessian-eigenthings": lambda: theirs(foreign, reached),
    }
    seconds = alternated(sides, ROUNDS, processor=True)
    spent = mine(copies=False).products, mine(copies=True).products, reached
    products = dict(zip(sides, spent, strict=True))
    for name, taken in seconds.items():
        print(f"residual of {TARGET:.0e}, {name}: {taken:.2f} s, {products[name]} products")
    return {"seconds": seconds, "products": products}


def reaches(ours: LinearOperator, foreign: Any, products: int) -> bool:
    """Whether theirs is there after so many products."""
    other = theirs(foreign, products)
    return max(measured(ours, other.eigenvalues, other.eigenvectors.T)) <= TARGET


if __name__ == "__main__":
    main()
