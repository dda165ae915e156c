"""Run reentrant activation checkpoints as non-reentrant ones while a graph is captured.

`torch.utils.checkpoint(use_reentrant=True)` hides its weights from autograd: the part runs without
a graph, and only `Tensor.backward` reaches the weights, by adding to `.grad`. The form
`use_reentrant=False` gives the same values and has derivatives of every order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.utils.checkpoint import CheckpointFunction, checkpoint

from hessblocks.curvature.closed.shared import Shared


def differentiable_checkpoints() -> AbstractContextManager[None]:
    """Run parts under `checkpoint(use_reentrant=True)` as with `use_reentrant=False`.

    Whoever calls `checkpoint`, by whatever name, ends at `CheckpointFunction.apply`, which is
    swapped.

    Returns:
        A context, in which that holds for the whole process.
    """
    return _checkpoints


@contextmanager
def _swapped() -> Iterator[None]:
    before = vars(CheckpointFunction).get("apply")
    CheckpointFunction.apply = staticmethod(_apply)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del CheckpointFunction.apply  # the inherited one is found again
        if before is not None:
            CheckpointFunction.apply = before  # type: ignore[method-assign]


# Of the whole process: a GPU's backward pass has a thread of its own.
_checkpoints = Shared(_swapped)


def _apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    # calls no `CheckpointFunction`, so that the swap does not meet itself
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)
