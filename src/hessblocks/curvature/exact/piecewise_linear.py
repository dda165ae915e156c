"""Detect piecewise linear functions from the operations that autograd records.

A sum, a product with a constant, a rearrangement and a rectifier have no second derivative,
wherever they are taken; nor has any chain of them. What is not on the list counts as curved.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

SUMS = ("Add", "Sub", "Cat")
"""Operations that are linear in all of their inputs together."""

LINEAR = (
    *SUMS,
    *("Addmm", "Mm", "Mv", "Bmm", "Dot", "Linear", "Mul", "Neg", "Relu", "LeakyRelu"),
    *("T", "Transpose", "Permute", "View", "UnsafeView", "Expand", "Clone", "Alias"),
    *("Slice", "Select", "Squeeze", "Unsqueeze", "Split"),
)
"""Operations that are piecewise linear in each of their inputs, the others being constant."""

_NODE = re.compile(r"(\w+)Backward\d+")
_POINT = "torch::autograd::AccumulateGrad"


def piecewise_linear(
    function: Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]], point: Float[Tensor, "..."]
) -> bool:
    """Tell whether the recorded operations show that there is no second derivative.

    Args:
        function: its parameters must not ask for gradients.
        point: any; the operations must be the same everywhere.

    Returns:
        False also where this cannot be told.
    """
    with torch.enable_grad():
        image = function(point.detach().requires_grad_())
    return image.grad_fn is not None and _all_linear(image.grad_fn)


def _all_linear(last: Any) -> bool:
    seen, waiting = {last}, [last]
    while waiting:
        node = waiting.pop()
        inputs = [source for source, _ in node.next_functions if source is not None]
        if not _linear(node.name(), len(inputs)):
            return False
        waiting += [source for source in inputs if source not in seen]
        seen.update(inputs)
    return True


def _linear(name: str, inputs: int) -> bool:
    if name == _POINT:
        return True
    found = _NODE.fullmatch(name)
    return found is not None and found[1] in (LINEAR if inputs == 1 else SUMS)
