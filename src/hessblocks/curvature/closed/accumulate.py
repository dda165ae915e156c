"""Accumulate parameter gradients in place during a replay of the graph.

Autograd makes each share of a product a tensor of its own, adds whole tensors up and leaves the
copy into the result to its caller: two matrix products, a sum and a copy for the weight of one
linear layer. Closed forms whose weight is a parameter add to the result itself.

Letters: N rows that are added.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Sum:
    """Running sum of the products by one parameter."""

    def __init__(self, into: Float[Tensor, "*shape"], *, fresh: bool) -> None:
        """Take the tensor `into`; a fresh one holds no numbers yet."""
        self._into, self._fresh = into, fresh

    def started(self) -> Float[Tensor, "*shape"]:
        """Return the tensor to add to, filled with zeros if it was fresh."""
        if self._fresh:
            self._into.zero_()
            self._fresh = False
        return self._into

    def add(self, values: Float[Tensor, "*shape"]) -> None:
        """Add values of the parameter's shape."""
        if self._fresh:
            self._into.copy_(values)
            self._fresh = False
        else:
            self._into.add_(values)

    def add_product(self, left: Float[Tensor, "..."], right: Float[Tensor, "..."]) -> None:
        """Add a product of two matrices."""
        self._into.addmm_(left, right, beta=0 if self._fresh else 1)
        self._fresh = False

    def add_rows(self, rows: Int[Tensor, " N"], values: Float[Tensor, "N ..."]) -> None:
        """Add to some rows; a row that is named twice gets both."""
        self.started().index_add_(0, rows, values)


_open: dict[int, Sum | None] = {}
"""By identity of the parameter; of all replays under way, since backward passes have threads of
their own."""


@contextmanager
def adding(sums: Mapping[int, Sum | None]) -> Iterator[None]:
    """Let a replay add to these sums.

    Args:
        sums: by identity of a parameter; None for those whose products nobody wants.
    """
    _open.update(sums)
    try:
        yield
    finally:
        for key in sums:
            del _open[key]


def sum_of(key: int) -> Sum | None:
    """Look up the sum for products with a parameter's transposed Jacobian, if there is one."""
    return _open.get(key)


def wanted(key: int) -> bool:
    """Tell whether anybody needs the gradient of a parameter."""
    return key not in _open or _open[key] is not None


def transformed() -> bool:
    """Tell whether this runs inside torch.vmap or another transform of torch.func."""
    return torch._C._functorch.peek_interpreter_stack() is not None
