"""Dense Hessians of attention layers by autodiff, and every block and part compared with them.

The reference is slow, small, and independent of the closed form.

Letters: B sequences, L tokens, H heads, P parameters, O width of the output.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from hessblocks.conventions import PARTS, Part
from hessblocks.linalg import slices
from hessblocks.theory.head_vectors import HeadNorm
from hessblocks.theory.hessian import AttentionHessian
from hessblocks.theory.piecewise import GAINS, GROUPS, NORMS

Parameters = dict[str, Float[Tensor, "..."]]
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest accepted relative error in each dtype; autodiff always runs in float64."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Comparison of one block of one case, by both ways."""

    case: str
    """Name of the case."""
    block: str
    """`row, column`."""
    part: Part
    """outer, functional or full."""
    error: float
    """Frobenius norm of the difference over that of autodiff's block. Where the block is below
    rounding of the whole matrix (it is exactly zero), over the norm of that matrix."""
    bound: float
    """Largest accepted error."""

    @property
    def passed(self) -> bool:
        """True where the error keeps the bound; an error that is not a number does not."""
        return self.error <= self.bound


def compare(
    name: str,
    hessian: AttentionHessian,
    reference: dict[str, Float[Tensor, "size size"]],
    bound: float,
) -> list[Check]:
    """Compare every block of one layer.

    Args:
        name: name of the case.
        hessian: the closed form.
        reference: {part: dense matrix} with the groups in the same order.
        bound: largest accepted error.

    Returns:
        One row for each block on or above the diagonal, and part.
    """
    lengths = [sum(p.length for p in hessian.layer.pieces(group)) for group in hessian.groups]
    places = dict(zip(hessian.groups, slices(lengths), strict=True))
    rows = []
    for row, column in combinations_with_replacement(hessian.groups, 2):
        for part in PARTS:
            expected = reference[part][places[row], places[column]]
            found = hessian.block(row, column, part).dense().to(expected.dtype)
            error = _error(found, expected, float(reference["full"].norm()))
            block = f"{row}, {column}"
            rows.append(Check(case=name, block=block, part=part, error=error, bound=bound))
    return rows


def _error(found: Tensor, expected: Tensor, whole: float) -> float:
    size = float(expected.norm())
    scale = size if size > 1e-13 * whole else whole
    difference = float((found - expected).norm())
    return difference / scale if scale > 0 else difference


def reference_hessian(arguments: Mapping[str, Any]) -> dict[str, Float[Tensor, "P P"]]:
    """Compute dense H_o, H_f and H of `attention_hessian(**arguments)`, by autodiff in float64.

    Args:
        arguments: as `attention_hessian` takes them; `x` batched, weights stacked by head.

    Returns:
        {part: (P, P)}, groups in the order of `AttentionHessian.groups`, each flattened row by row.
    """
    exact = {name: _double(value) for name, value in arguments.items()}
    parameters = _parameters(exact)
    flat = torch.cat([weight.flatten() for weight in parameters.values()])

    def output(theta: Tensor) -> Tensor:
        return attention_output(exact, _unflatten(theta, parameters))

    at = output(flat).detach()
    loss = _loss(exact, at)
    gradient = torch.func.grad(loss)(at)
    curvature = torch.func.hessian(loss)(at).reshape(at.numel(), at.numel())
    jacobian = torch.func.jacrev(output)(flat).reshape(at.numel(), -1)
    return {
        "outer": jacobian.T @ curvature @ jacobian,
        "functional": torch.func.hessian(lambda theta: (gradient * output(theta)).sum())(flat),
        "full": torch.func.hessian(lambda theta: loss(output(theta)))(flat),
    }


def attention_output(
    arguments: Mapping[str, Any], parameters: Parameters
) -> Float[Tensor, "B L O"]:
    """Compute F(X) of the layer, written as plainly as it can be.

    Args:
        arguments: as `attention_hessian` takes them.
        parameters: weights by group name; groups that are absent are identities.

    Returns:
        The output at every token.
    """
    x = arguments["x"]
    one_matrix = "query_key" in parameters
    query = parameters["query_key" if one_matrix else "query"]
    heads, width, head_width = query.shape
    permitted = _permitted(arguments.get("mask"), x)
    uniform = permitted.to(x.dtype) / permitted.sum(-1, keepdim=True)
    out = []
    for h in range(heads):
        keys = x if one_matrix else x @ _of_head(parameters["key"], h, heads)
        sides = {"query_norm": x @ query[h], "key_norm": keys}
        for name in NORMS:
            if (norm := arguments.get(name)) is not None:
                each = vmap(vmap(norm.function, (0, None)), (0, None))
                sides[name] = each(sides[name], parameters.get(name, norm.parameters))
        queries, keys = sides.values()
        if arguments.get("rotary") is not None:
            queries, keys = (_turned(each, *arguments["rotary"]) for each in (queries, keys))
        scale = (1.0 if one_matrix else head_width**0.5) * arguments.get("temperature", 1.0)
        scores = queries @ keys.mT / scale
        if (bias := arguments.get("bias")) is not None:
            scores = scores + bias[h]
            uniform = bias[h].masked_fill(~permitted, -torch.inf).softmax(-1)
        if arguments.get("scores", "softmax") == "softmax":
            attention = scores.masked_fill(~permitted, -torch.inf).softmax(-1)
        else:
            attention = scores * permitted
        if "alpha" in parameters:
            identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
            alpha, beta, gamma = (parameters[name][h] for name in GAINS)
            attention = alpha * identity + beta * attention - gamma * uniform
        if "value" in parameters:
            values = x @ _of_head(parameters["value"], h, heads)
        else:
            values = x[..., h * width // heads : (h + 1) * width // heads]
        out.append(attention @ values)
    if "projection" not in parameters:
        return torch.cat(out, dim=-1)
    return torch.stack([z @ parameters["projection"][h] for h, z in enumerate(out)]).sum(0)


def _turned(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the first entries in pairs (i, i + half), as complex numbers."""
    half = cosines.shape[-1] // 2
    first, second, rest = vectors.split([half, half, vectors.shape[-1] - 2 * half], dim=-1)
    numbers = torch.complex(first, second) * torch.complex(cosines, sines)[..., :half]
    return torch.cat([numbers.real, numbers.imag, rest], dim=-1)


def _of_head(weight: Tensor, head: int, heads: int) -> Tensor:
    return weight[head * weight.shape[0] // heads]


def _permitted(mask: Tensor | str | None, x: Tensor) -> Tensor:
    if isinstance(mask, Tensor):
        return mask
    everything = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
    return everything if mask is None else everything.tril()


def _loss(arguments: Mapping[str, Any], at: Tensor) -> Callable[[Tensor], Tensor]:
    """Build the squared loss, or the quadratic with given gradient and curvature at F = `at`."""
    target = arguments.get("target")
    if target is not None:
        return lambda F: (F - target).square().mean()
    gradient, curvature = arguments["gradient"], arguments.get("curvature")
    if curvature is None:
        factor = arguments["curvature_factor"]
        curvature = factor.mT @ factor

    def quadratic(F: Tensor) -> Tensor:
        step = F - at
        bent = torch.einsum("blo,blop,blp->", step, curvature, step)
        return torch.sum(gradient * step) + bent / 2

    return quadratic


def _parameters(arguments: Mapping[str, Any]) -> Parameters:
    """Collect the differentiated weights, stacked by head, in the order of the whole matrix."""
    one_matrix = arguments.get("query_key") == "one-matrix"
    found = {
        "query_key" if one_matrix else "query": arguments["w_query"],
        "key": arguments["w_key"],
        "value": arguments["w_value"],
        "projection": arguments.get("w_projection"),
    }
    for name in NORMS:
        if (norm := arguments.get(name)) is not None and len(norm.parameters):
            found[name] = norm.parameters
    gains = arguments.get("gains")
    if gains is not None:
        found |= dict(zip(GAINS, gains, strict=True))
    return {group: found[group] for group in GROUPS if found.get(group) is not None}


def _unflatten(theta: Tensor, like: Parameters) -> Parameters:
    pieces = theta.split([weight.numel() for weight in like.values()])
    shaped = (piece.view_as(weight) for weight, piece in zip(like.values(), pieces, strict=True))
    return dict(zip(like, shaped, strict=True))


def _double(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_double(item) for item in value)
    if isinstance(value, HeadNorm):
        return replace(value, parameters=_double(value.parameters))
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.double() if floating else value
