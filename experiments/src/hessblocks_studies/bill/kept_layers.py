"""Cache layers' outputs, so that a changed model is only computed from the changed layer on."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class _Kept:
    """Last output of each layer, valid while no earlier layer has other weights."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self._own = [[p.data_ptr() for p in layer.parameters()] for layer in layers]
        self._last: list[tuple[Tensor, Any] | None] = [None] * len(layers)
        self._clean = False

    def call(self, index: int, layer: nn.Module, forward: Any, x: Tensor, **keywords: Any) -> Any:
        """Return the cached output if weights and input equal the last call's bit for bit."""
        own = self._own[index] == [p.data_ptr() for p in layer.parameters()]
        self._clean = own and (self._clean or index == 0)
        last = self._last[index]
        if self._clean and last is not None and torch.equal(last[0], x):
            return last[1]
        output = forward(x, **keywords)
        if self._clean:
            self._last[index] = x, output
        return output


@contextmanager
def kept_layers(layers: nn.ModuleList) -> Iterator[None]:
    """Skip layers whose weights and inputs equal those of the last forward pass.

    The output is the same bit for bit if each layer's output depends only on its weights and its
    first input, and if keywords (positions, masks) depend only on the shape.

    Args:
        layers: layers of the model, each called once per pass, in order.

    Yields:
        None; layers are skipped inside the context.
    """
    kept = _Kept(layers)
    try:
        for index, layer in enumerate(layers):
            layer.forward = partial(kept.call, index, layer, layer.forward)
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)
