"""Factors of gain and shift in the norm in front of the last attention, entry by entry.

Letters: B sequences, L tokens, D width.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from hessblocks.curvature.last_layer.forward_pass import Seen


def norm_multipliers(
    model: nn.Module, stems: set[str], seen: Seen
) -> dict[str, Float[Tensor, "B L D"]]:
    """Factors of the one module between the layer's input and its attention."""
    if len(stems) != 1:
        return {}
    (stem,) = stems
    found = multipliers(model.get_submodule(stem), seen.x, seen.inputs)
    return {f"{stem}.{name}": slope for name, slope in found.items()}


def multipliers(
    norm: nn.Module, x: Float[Tensor, "B L D"], inputs: Float[Tensor, "B L D"]
) -> dict[str, Float[Tensor, "B L D"]]:
    """Compute what each trained parameter of a norm is multiplied with, entry by entry.

    Args:
        norm: any module that acts on each token by itself.
        x: what it reads.
        inputs: what the attention reads.

    Returns:
        By the parameter's own name; without those that enter in another way, and nothing at all
        where the attention does not read the norm's output as it is.
    """
    found: dict[str, Tensor] = {}
    if not inputs.isfinite().all() or not torch.allclose(
        norm(x), inputs, rtol=1e-6, atol=1e-6 * float(inputs.abs().max())
    ):
        return found
    generic = (
        3 * torch.arange(1, x.shape[-1] + 1).to(x).sin()
    )  # of both signs, within ±1 and without
    for name, parameter in norm.named_parameters():
        if not parameter.requires_grad or parameter.shape != x.shape[-1:]:
            continue

        def at(values: Tensor, name: str = name) -> Tensor:
            normed: Tensor = functional_call(norm, {name: values}, (x,))
            return normed

        start = at(torch.zeros_like(generic))
        slope = at(torch.ones_like(generic)) - start
        if all(_close(at(v), start + slope * v) for v in (generic, -generic, parameter.detach())):
            found[name] = slope
    return found


def _close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
