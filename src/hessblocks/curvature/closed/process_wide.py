"""Patch checkpointing, process-wide, while a graph is captured.

`torch.utils.checkpoint(use_reentrant=True)` runs its part without a graph. Only `Tensor.backward`
computes its weights' gradients, and adds them to `.grad`. `use_reentrant=False` gives the same
values and has derivatives of every order. All calls of `checkpoint` reach
`CheckpointFunction.apply`, the function that we patch.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.utils.checkpoint import CheckpointFunction, checkpoint


class CountedContext(AbstractContextManager[None]):
    """Process-wide setting: the first thread to enter makes it, the last to leave undoes it."""

    def __init__(self, setting: Callable[[], AbstractContextManager[Any]]) -> None:
        """Store `setting`, whose context manager makes and undoes the setting."""
        self._setting, self._lock, self._inside = setting, threading.Lock(), 0
        self._made: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        """Make the setting, unless it is made already."""
        with self._lock:
            if not self._inside:
                self._made = self._setting()
                self._made.__enter__()
            # a count, since threads may leave in another order than they entered
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        """Undo the setting when the last thread leaves."""
        with self._lock:
            self._inside -= 1
            if not self._inside and self._made is not None:
                self._made.__exit__(None, None, None)


@contextmanager
def _without_reentry() -> Iterator[None]:
    before = vars(CheckpointFunction).get("apply")
    CheckpointFunction.apply = staticmethod(_checkpoint)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del CheckpointFunction.apply  # restores the inherited method
        if before is not None:
            CheckpointFunction.apply = before  # type: ignore[method-assign]


def _checkpoint(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    # `use_reentrant=False` does not use `CheckpointFunction`, so that there is no recursion
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)


# Process-wide, since a GPU's backward pass runs in another thread.
differentiable_checkpoints = CountedContext(_without_reentry)
"""Makes `checkpoint(use_reentrant=True)` behave as `use_reentrant=False`."""
