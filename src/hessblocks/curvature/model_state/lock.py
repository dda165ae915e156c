"""A lock per model: one thread at a time runs it or lists its form."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

_lock = threading.Lock()
_locks = WeakIdKeyDictionary()


@contextmanager
def exclusive(model: nn.Module) -> Iterator[None]:
    """Hold the lock of this model; wait until no other thread holds it."""
    with _lock:
        lock = _locks.setdefault(model, threading.RLock())
    with lock:
        yield
