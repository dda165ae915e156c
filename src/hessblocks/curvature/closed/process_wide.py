"""Patch eager attention and checkpointing, process-wide, while a graph is captured.

`torch.utils.checkpoint(use_reentrant=True)` runs its part without a graph. Only `Tensor.backward`
computes its weights' gradients, and adds them to `.grad`. `use_reentrant=False` gives the same
values and has derivatives of every order. All calls of `checkpoint` reach
`CheckpointFunction.apply`, the function that we patch.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.utils.checkpoint import CheckpointFunction, checkpoint

from hessblocks.curvature.attention import in_place_of
from hessblocks.curvature.closed import softmax
from hessblocks.curvature.closed.watch import Watch, note_derivative


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

_inside = threading.local()


@contextmanager
def swap_eager(watch: Watch) -> Iterator[None]:
    """Replace transformers' eager attention by tiled attention for long contexts in this thread."""
    registry = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    if registry is None:  # transformers is not imported
        yield
        return
    watches = vars(_inside).setdefault("watches", [])
    watches.append(watch)
    try:
        with _choosing:
            yield
    finally:
        watches.pop()


@contextmanager
def _our_choice() -> Iterator[None]:
    """Patch `AttentionInterface.get_interface` to return our attention in place of eager."""
    registry = sys.modules["transformers.modeling_utils"].AttentionInterface
    original = registry.get_interface
    registry.get_interface = lambda self, name, default: _chosen(
        original(self, name, default), default
    )
    try:
        yield
    finally:
        registry.get_interface = original


_choosing = CountedContext(_our_choice)


def _chosen(choice: Callable[..., Any], default: Callable[..., Any]) -> Callable[..., Any]:
    watches = getattr(_inside, "watches", None)
    if not watches or choice is not default:
        return choice
    watch: Watch = watches[-1]

    def attention(
        module: Any, query: Any, key: Any, value: Any, *args: Any, **keywords: Any
    ) -> Any:
        if key.shape[-2] >= softmax.LONG and len(args) < 2 and not watch.in_recomputed_part():
            others = dict(keywords)
            mask = args[0] if args else others.pop("attention_mask", None)
            tiled = in_place_of(
                default, module, query, key, value, mask, noticed=note_derivative, **others
            )
            if tiled is not None:
                return tiled
        return default(module, query, key, value, *args, **keywords)

    return attention
