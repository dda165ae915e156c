"""The weights that are differentiated by: whether they will do, and whether they have changed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.errors import ArgumentError


def sums_of(tensors: Iterable[Float[Tensor, "..."]], device: torch.device) -> tuple[float, ...]:
    """The sum of each, where it is of real numbers of 2 bytes or more.

    Args:
        tensors: of any shapes.
        device: where the sums are brought together.

    Returns:
        One number each, in the order of the tensors.
    """
    numbers = [t for t in tensors if t.is_floating_point() and t.element_size() > 1]
    sums = [t.sum(dtype=torch.promote_types(t.dtype, torch.float32)).to(device) for t in numbers]
    return tuple(torch.hstack(sums).tolist()) if sums else ()


def check_parameters(model: nn.Module) -> None:
    """Make sure that there is something to differentiate by, in real numbers that are there.

    Raises:
        ArgumentError: no trainable parameters, complex ones, or some without values.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ArgumentError("model: expected trainable parameters, found none")
    for name, parameter in trainable.items():
        if parameter.is_complex():
            raise ArgumentError(
                f"model: {name!r} is complex; hold it in real numbers, torch.view_as_real(parameter), and use "
                "torch.view_as_complex of these in forward"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ArgumentError(
                f"model: {name!r} is on the meta device and has no values; load the model before"
            )
