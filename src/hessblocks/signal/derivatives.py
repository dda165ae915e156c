"""Derivatives at layers: condition numbers of Jacobians, and gradient norms by role.

A condition number comes from Jacobian-vector and vector-Jacobian products.

Letters: J the Jacobian (N × N) of all output entries of one sequence by all its input entries,
N = tokens · width; T tokens, D width; V a matrix of k orthonormal columns.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

TokenVectors = Float[Tensor, "T D"]
VectorFunction = Callable[[TokenVectors], TokenVectors]

ROUNDING = 1e-13
"""Relative size below which a singular value in float64 counts as zero."""


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """Range of the singular values of a Jacobian."""

    largest: float
    """Largest singular value; a lower bound if not exact."""
    smallest: float
    """Smallest singular value; an upper bound if not exact."""
    exact: bool
    """Whether the values are from the whole Jacobian, not from a Krylov subspace."""

    @property
    def condition(self) -> float:
        """Condition number; a lower bound if not exact; infinite for a singular Jacobian."""
        if self.smallest <= ROUNDING * self.largest:
            return math.inf
        return self.largest / self.smallest


def conditioning(
    layer: VectorFunction, x: TokenVectors, *, dense_limit: int, steps: int
) -> Conditioning:
    """Find the extreme singular values of the Jacobian of `layer` at `x`.

    Args:
        layer: function of one sequence's vectors that returns the same shape.
        x: point of the derivative, in float64.
        dense_limit: up to this N the whole Jacobian is computed, and the result is exact.
        steps: for larger N, the dimension of the Krylov subspace of JᵀJ to which J is restricted.

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


def _transposed(function: VectorFunction, x: TokenVectors) -> VectorFunction:
    """Build the vector-Jacobian product u ↦ Jᵀu of `function` at x."""
    pull: Any = torch.func.vjp(function, x)[1]
    return lambda u: pull(u)[0]


def _restricted(pull: VectorFunction, x: TokenVectors, steps: int) -> Float[Tensor, "N k"]:
    """Compute J V with V an orthonormal basis of a Krylov subspace of JᵀJ from a fixed start."""
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
    for _ in range(2):  # the second pass removes rounding errors of the first
        rest = rest - basis @ (basis.T @ rest)
    if rest.norm() <= vector.norm() * torch.finfo(rest.dtype).eps:
        return torch.zeros_like(rest)
    return torch.nn.functional.normalize(rest, dim=0)


_SELF = r"(attention(\.self)?|attn|self_attn|self_attention)\."
ROLES = {
    "query": _SELF + "(query|q_proj)",
    "key": _SELF + "(key|k_proj)",
    "value": _SELF + "(value|v_proj)",
    "query_key_value": _SELF + "(c_attn|query_key_value|qkv_proj)",
    "projection": _SELF + r"(projection|[co]_proj|out_proj|dense)|attention\.output\.dense",
    "gain": r"attention\.(gains|sink)|(attention|mlp)_branch|embedding_skip|value_residual",
    "mlp_in": r"mlp\.(input|gate|c_fc|gate_proj|up_proj|dense_h_to_4h)|intermediate\.dense|fc1",
    "mlp_out": r"mlp\.(output|c_proj|down_proj|dense_4h_to_h)|output\.dense|fc2",
    "norm": r".*(norm|LayerNorm)|ln_\d",
}
"""For each role, the names of its modules in a layer, in this library and in transformers."""


def gradient_norms(layers: list[nn.Module], loss: Float[Tensor, ""]) -> list[dict[str, float]]:
    """Compute the Euclidean norm of the loss gradient for each layer and role.

    The role of a module that is not in `ROLES` is its name.

    Args:
        layers: modules with the parameters.
        loss: a scalar with a graph; `.grad` is not changed.

    Returns:
        For each layer, the norms by role.
    """
    named = [
        (index, name, parameter)
        for index, layer in enumerate(layers)
        for name, parameter in layer.named_parameters()
        if parameter.requires_grad
    ]
    parameters = [parameter for _, _, parameter in named]
    if not parameters:
        return [{} for _ in layers]
    # allow_unused: the loss may not depend on every parameter of a layer
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    squares: list[dict[str, float]] = [defaultdict(float) for _ in layers]
    for (index, name, _), gradient in zip(named, gradients, strict=True):
        size = 0.0 if gradient is None else float(gradient.double().square().sum())
        module = name.rpartition(".")[0]
        known = (role for role, names in ROLES.items() if re.fullmatch(names, module))
        squares[index][next(known, module)] += size
    return [{role: square**0.5 for role, square in of_layer.items()} for of_layer in squares]
