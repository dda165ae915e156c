"""Check the parameters that are differentiated by."""

from __future__ import annotations

from torch import nn

from hessblocks.errors import ArgumentError


def check_parameters(model: nn.Module) -> None:
    """Require trainable parameters in real numbers, with memory behind them.

    Raises:
        ArgumentError: no trainable parameters, complex ones, some without values, or made in
            inference mode.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ArgumentError("model: expected trainable parameters, found none")
    for name, parameter in trainable.items():
        if parameter.is_inference():
            raise ArgumentError(
                f"model: {name!r} was made under torch.inference_mode(), and autograd cannot use "
                "it; build or load the model outside, or give copy.deepcopy(model)"
            )
        if parameter.is_complex():
            raise ArgumentError(
                f"model: {name!r} is complex; hold it in real numbers, "
                "torch.view_as_real(parameter), and use torch.view_as_complex of these in forward"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ArgumentError(
                f"model: {name!r} is on the meta device and has no values; load the model before"
            )
