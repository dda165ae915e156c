"""Run the last layer's own code on one token, and find the parameters before its attention.

Letters: D width.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.curvature.last_layer.families import Family, output_layer

HiddenNetwork = Callable[..., Float[Tensor, "... D"]]
"""From one token's attention output (D,) and its side inputs to its final hidden state (D,)."""


def token_network(family: Family, model: Any, keywords: Mapping[str, Any]) -> HiddenNetwork:
    """Build the last layer and the final norm as a function of one attended token.

    Args:
        family: the layout.
        model: the model.
        keywords: those of the layer in the forward pass; they concern the attention alone.

    Returns:
        From the attention's output and the layer's input, (D,) each, to the final hidden state
        (D,).
    """
    layer = model.get_submodule(family.layers)[-1]
    attention = layer.get_submodule(family.attention)
    behind = [model.get_submodule(name) for name in family.behind]

    def network(a: Tensor, x: Tensor) -> Tensor:
        given = a[None, None]
        with ExitStack() as stack:
            stack.enter_context(_replaced(attention, lambda *_, **__: (given, None)))
            if family.apart:
                stack.enter_context(_replaced(family.written(layer), lambda _: given))
            stack.enter_context(_replaced(output_layer(model), lambda hidden: hidden))
            out = layer(x[None, None], **keywords)
            hidden: Tensor = out[0] if isinstance(out, tuple) else out
            for module in behind:
                hidden = module(hidden)
        return hidden[0, 0]

    return network


def feeding(
    family: Family, model: Any, x: Float[Tensor, " D"], keywords: Mapping[str, Any]
) -> frozenset[str]:
    """List the parameters of the last layer that its attention's input depends on."""
    layer = model.get_submodule(family.layers)[-1]
    attention = layer.get_submodule(family.attention)
    seen: list[Tensor] = []

    def note(*inputs: Any, **words: Any) -> tuple[Tensor, None]:
        seen.append(inputs[0] if inputs else words["hidden_states"])
        return torch.zeros_like(seen[0]), None

    known = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not known:
        return frozenset()
    with torch.enable_grad(), _replaced(attention, note):
        layer(x.detach()[None, None].requires_grad_(), **keywords)
        if not seen[0].requires_grad:  # a hook cut it off
            return frozenset()
        slopes = torch.autograd.grad(seen[0].sum(), list(known.values()), allow_unused=True)
    met = zip(known, slopes, strict=True)
    return frozenset(name for name, slope in met if slope is not None)


@contextmanager
def _replaced(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Put another function in the place of the module's own, and restore it afterwards."""
    had = "forward" in vars(module)
    own = module.forward
    module.forward = forward
    try:
        yield
    finally:
        if had:
            module.forward = own
        else:
            del module.forward
