"""Record events of a forward pass that limit how it may be differentiated afterwards.

A closed form supports two derivatives. A model that calls autograd in its forward pass (a residual
of a differential equation, a force field, a score) takes the first one there.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


class Unplanned(BaseException):
    """Signal that a product needs a plan: it is too large, or needs checks that a plan makes.

    The `except Exception` of a model's forward pass must not catch it.
    """


# torch has no public way to read these hooks
_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks


@dataclass(eq=False)
class Watch:
    """Record of one forward pass: attention, differentiation, activation checkpointing."""

    attention: bool = False
    """Whether scaled_dot_product_attention over many keys ran without tiles."""
    differentiated: bool = False
    """Whether the forward pass differentiated a closed form with `create_graph=True`."""
    recomputed: bool = False
    """Whether the backward pass will recompute a part (activation checkpointing)."""
    _hooks: Any = field(default_factory=lambda: (_top_hooks(True) or [None])[0])
    """Innermost saved-tensor hook; activation checkpointing sets such a hook."""
    thread: int = field(default_factory=threading.get_ident)
    """Thread of the forward pass."""

    def in_recomputed_part(self) -> bool:
        """Tell whether this is inside a checkpointed part, which our forms must not change."""
        hooks = _top_hooks(True)
        inside = (hooks and hooks[0]) is not self._hooks
        self.recomputed |= inside
        return inside


_open: list[Watch] = []
"""Watches of the running forward passes of all threads; a backward pass inside one may run in
another thread."""


@contextmanager
def watching() -> Iterator[Watch]:
    """Record a forward pass."""
    watch = Watch()
    _open.append(watch)
    try:
        yield watch
    finally:
        _open.remove(watch)


def note_derivative() -> None:
    """Record that a closed form is differentiated with `create_graph=True`."""
    here = [watch for watch in _open if watch.thread == threading.get_ident()]
    for watch in here or [*_open]:  # autograd's threads have no watch: mark all
        watch.differentiated = True
