"""Jacobian of a layer: its condition number, from Jacobian-vector and vector-Jacobian products.

Letters: J the Jacobian (N × N) of all output entries of one sequence in all its input entries,
N = tokens · width; T tokens, D width; V orthonormal columns, k of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Vectors = Float[Tensor, "T D"]
Function = Callable[[Vectors], Vectors]

ROUNDING = 1e-13
"""Relative size below which a singular value in double precision is taken for zero."""


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """Range of the singular values of a Jacobian."""

    largest: float
    """Largest singular value; where not exact, a lower bound."""
    smallest: float
    """Smallest singular value; where not exact, an upper bound."""
    exact: bool
    """Whether the whole Jacobian was looked at, not a subspace."""

    @property
    def condition(self) -> float:
        """Condition number, a lower bound where not exact; infinite for a singular Jacobian."""
        if self.smallest <= ROUNDING * self.largest:
            return math.inf
        return self.largest / self.smallest


def conditioning(layer: Function, x: Vectors, *, dense_limit: int, steps: int) -> Conditioning:
    """Find the extreme singular values of the Jacobian of `layer` at `x`.

    Args:
        layer: one sequence's vectors to the same shape.
        x: where the derivative is taken, in double precision.
        dense_limit: up to this N the Jacobian is built, and the answer is exact.
        steps: beyond, the dimensions of the Krylov subspace of JᵀJ that J is restricted to.

    Returns:
        The largest and the smallest singular value, and whether they are exact.

    Cost: N backward passes (batched) and an N³ decomposition, or `steps` passes forward and
    backward.
    """
    size, exact = x.numel(), x.numel() <= dense_limit
    with sdpa_kernel(SDPBackend.MATH):  # fused kernels have no second derivative
        if exact:
            matrix = torch.func.jacrev(layer)(x).reshape(size, size)
        else:
            matrix = _restricted(_transposed(layer, x), x, steps)
    values = torch.linalg.svdvals(matrix.detach())
    return Conditioning(largest=float(values[0]), smallest=float(values[-1]), exact=exact)


def _transposed(function: Function, x: Vectors) -> Function:
    """Build the vector-Jacobian product u ↦ Jᵀu of `function` at x."""
    pull: Any = torch.func.vjp(function, x)[1]
    return lambda u: pull(u)[0]


def _restricted(pull: Function, x: Vectors, steps: int) -> Float[Tensor, "N k"]:
    """Compute J V, V the Krylov subspace of JᵀJ from a fixed random start, orthogonal in full."""
    push = _transposed(pull, torch.zeros_like(x))  # u ↦ Jᵀu is linear: its transpose is v ↦ Jv
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(x.numel(), generator=generator, dtype=x.dtype).to(x.device)
    basis, products = x.new_empty(x.numel(), 0), []
    for _ in range(min(steps, x.numel())):
        vector = _orthogonalised(vector, basis)
        if not vector.any():
            break
        basis = torch.cat([basis, vector[:, None]], dim=1)
        product = push(vector.view_as(x)).detach()
        products.append(product.flatten())
        vector = pull(product).detach().flatten()
    return torch.stack(products, dim=1)


def _orthogonalised(vector: Tensor, basis: Tensor) -> Tensor:
    """Project the columns of `basis` out and scale to length 1; zero where nothing is left."""
    rest = vector
    for _ in range(2):  # the second time removes what rounding has left
        rest = rest - basis @ (basis.T @ rest)
    if rest.norm() <= vector.norm() * torch.finfo(rest.dtype).eps:
        return torch.zeros_like(rest)
    return torch.nn.functional.normalize(rest, dim=0)
