"""Let one thread at a time measure a model, which a pass changes and puts back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

_lock = threading.Lock()
_locks = WeakIdKeyDictionary()


@contextmanager
def exclusive(model: nn.Module) -> Iterator[None]:
    """Wait until no other thread measures this model."""
    with _lock:
        if model not in _locks:
            _locks[model] = threading.RLock()
        own = _locks[model]
    with own:
        yield
