"""Accumulate parameter gradients in place during a replay of the graph.

For one linear layer's weight, autograd computes two matrix products in new tensors, adds them and
leaves the copy into the result to its caller. Our closed forms add both products to the result.

Letters: N rows that are added.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Sum:
    """Running sum of one parameter's gradients, in a given tensor."""

    def __init__(self, into: Float[Tensor, "*shape"], *, fresh: bool) -> None:
        """Accumulate in the tensor `into`; `fresh` means that its values are uninitialised."""
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
        """Add `values` to the rows with indices `rows`; a repeated index adds repeatedly."""
        self.started().index_add_(0, rows, values)


_open: dict[int, Sum | None] = {}
"""Sums of all running replays, by `id` of the parameter; shared by all threads, since a backward
pass may run in another thread than its caller."""


@contextmanager
def adding(sums: Mapping[int, Sum | None]) -> Iterator[None]:
    """Accumulate gradients in these sums during the block.

    Args:
        sums: sum of each parameter, by its `id`; None for a parameter without a wanted gradient.
    """
    _open.update(sums)
    try:
        yield
    finally:
        for key in sums:
            del _open[key]


def graph_only(parameters: Iterable[Float[Tensor, "..."]]) -> AbstractContextManager[None]:
    """Build graphs of these parameters' gradients during the block, without their values."""
    return adding({id(parameter): None for parameter in parameters})


def sum_of(key: int) -> Sum | None:
    """Look up the sum of a parameter by its `id`; None if there is none."""
    return _open.get(key)


def wanted(key: int) -> bool:
    """Tell whether a running replay or construction, if any, reads the gradient of a parameter."""
    return key not in _open or _open[key] is not None


def unread(like: Float[Tensor, "..."], *shape: int) -> Float[Tensor, "..."]:
    """Return one zero, expanded to `shape` or that of `like`; it takes no memory.

    It stands for a gradient whose values nobody reads, since only its graph is needed.
    """
    return like.new_zeros(()).expand(shape or like.shape)


def transformed() -> bool:
    """Tell whether this runs inside torch.vmap or another transform of torch.func."""
    return torch._C._functorch.peek_interpreter_stack() is not None
