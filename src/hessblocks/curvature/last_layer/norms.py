"""Read the norms of queries and keys (QK norm) and the norm before the last attention.

Letters: B sequences, L tokens, D width, K query-key width.
"""

import copy
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from hessblocks.curvature.closed import spelled
from hessblocks.curvature.last_layer.forward_pass import Seen
from hessblocks.curvature.last_layer.supported import uncovered
from hessblocks.errors import ArgumentError
from hessblocks.theory import HeadNorm


def head_norms(
    like: Float[Tensor, "rows K"], query: nn.Module | None = None, key: nn.Module | None = None
) -> dict[str, HeadNorm]:
    """Return the norms of queries and keys (QK norm) as `query_norm` and `key_norm`, if any."""
    modules = {"query_norm": query, "key_norm": key}
    return {
        name: _head_norm(name, module, like)
        for name, module in modules.items()
        if not isinstance(module, nn.Identity | None)
    }


def _head_norm(name: str, module: nn.Module, like: Tensor) -> HeadNorm:
    copied = copy.deepcopy(module)
    flat = [p.detach().flatten().to(like) for p in _trained(copied).values()]
    # a partial, since closures cannot be pickled
    function = partial(_normed, copied)
    norm = HeadNorm(function=function, parameters=torch.cat([like.new_zeros(0), *flat]))
    try:
        norm.check(like.shape[-1])
    except ArgumentError as error:
        raise uncovered(
            f"expects {name} to act on each head's vector by itself ({error})"
        ) from error
    return norm


def _normed(module: nn.Module, vector: Tensor, parameters: Tensor) -> Tensor:
    """Apply a norm to one vector, with the given values of its trained parameters."""
    trained = _trained(module)
    pieces = parameters.split([p.numel() for p in trained.values()])
    shaped = (piece.view_as(p) for piece, p in zip(pieces, trained.values(), strict=True))
    with spelled():
        normed: Tensor = functional_call(module, dict(zip(trained, shaped, strict=True)), (vector,))
    return normed


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def norm_multipliers(
    model: nn.Module, stems: set[str], recorded: Seen
) -> dict[str, Float[Tensor, "B L D"]]:
    """Compute the factor that multiplies each trained parameter of the norm before the attention.

    Args:
        model: model with the norm, any module that acts on each token separately.
        stems: names of the modules between the layer's input and its attention.
        recorded: record of the norm's input and the attention's input.

    Returns:
        Factors by name, of parameters that act entrywise. Empty if there are several modules, or
        the attention's input is not the norm's output.
    """
    if len(stems) != 1:
        return {}
    (stem,) = stems
    norm, x, inputs = model.get_submodule(stem), recorded.x, recorded.inputs
    multipliers: dict[str, Tensor] = {}
    if not inputs.isfinite().all() or not _close(norm(x), inputs, 1e-6):
        return multipliers
    # values of both signs, smaller and larger than 1
    generic = 3 * torch.arange(1, x.shape[-1] + 1).to(x).sin()
    for name, parameter in norm.named_parameters():
        if not parameter.requires_grad or parameter.shape != x.shape[-1:]:
            continue

        def at(values: Tensor, name: str = name) -> Tensor:
            normed: Tensor = functional_call(norm, {name: values}, (x,))
            return normed

        start = at(torch.zeros_like(generic))
        slope = at(torch.ones_like(generic)) - start
        tried = ((at(v), start + slope * v) for v in (generic, -generic, parameter.detach()))
        if all(_close(value, expected, 1e-4) for value, expected in tried):
            multipliers[f"{stem}.{name}"] = slope
    return multipliers


def _close(value: Tensor, expected: Tensor, share: float) -> bool:
    return torch.allclose(value, expected, rtol=share, atol=share * float(expected.abs().max()))
