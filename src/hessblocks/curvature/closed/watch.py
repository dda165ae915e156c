"""Watch a forward pass for what limits how it may be differentiated afterwards.

A closed form here carries two derivatives. A model that differentiates in its inputs inside its
forward pass (a residual of a differential equation, a force field, a score) uses up the first of
them there.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(eq=False)
class Watch:
    """Record of one forward pass."""

    attention: bool = False
    """Whether scaled_dot_product_attention kept its plain form in a long context."""
    differentiated: bool = False
    """Whether a closed form was differentiated, with a graph, before the forward pass was over."""
    recomputed: bool = False
    """Whether a part will be computed again in the backward pass (activation checkpointing)."""
    _hooks: Any = field(default_factory=lambda: _hooks_of_saved_tensors())
    thread: int = field(default_factory=threading.get_ident)
    """Thread of the forward pass."""

    def in_recomputed_part(self) -> bool:
        """True inside of a checkpointed part, which torch must recompute all by itself."""
        inside = _hooks_of_saved_tensors() is not self._hooks
        self.recomputed |= inside
        return inside


_open: list[Watch] = []
"""Watches of the forward passes under way, of all threads, since backward passes run in threads of
their own."""


@contextmanager
def watching() -> Iterator[Watch]:
    """Record a forward pass."""
    watch = Watch()
    _open.append(watch)
    try:
        yield watch
    finally:
        _open.remove(watch)


def _hooks_of_saved_tensors() -> Any:
    """Find the innermost saved-tensor hook, or None; activation checkpointing sets its own."""
    # torch has no public way to read these hooks
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks and hooks[0]


def note_derivative() -> None:
    """Record that a closed form is differentiated, and that a graph is kept of it."""
    here = [watch for watch in _open if watch.thread == threading.get_ident()]
    for watch in here or [*_open]:  # a thread of autograd's own passes nothing itself
        watch.differentiated = True
