"""Eager attention of transformers by tiles, while a graph is captured."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hessblocks.curvature.attention import in_place_of
from hessblocks.curvature.closed.softmax import LONG
from hessblocks.curvature.closed.watch import Watch, note_derivative

_lock = threading.Lock()
_inside = threading.local()
_open = 0
"""Blocks of `swap_eager` in all threads; the registry is as it was when there is none."""
_original: Any = None


@contextmanager
def swap_eager(watch: Watch) -> Iterator[None]:
    """Let models that ask transformers' registry for eager attention have tiles in long contexts, in this thread."""
    registry = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    if registry is None:  # no model of transformers
        yield
        return
    _count(registry, 1)
    watches = vars(_inside).setdefault("watches", [])
    watches.append(watch)
    try:
        yield
    finally:
        watches.pop()
        _count(registry, -1)


def _count(registry: Any, change: int) -> None:
    global _open, _original
    with _lock:
        if _open == 0:
            _original = registry.get_interface
            registry.get_interface = _chosen
        _open += change
        if _open == 0:
            registry.get_interface = _original


def _chosen(registry: Any, implementation: str, default: Callable[..., Any]) -> Any:
    found = _original(registry, implementation, default)
    watches = getattr(_inside, "watches", None)
    if not watches or found is not default:
        return found
    watch: Watch = watches[-1]

    def attention(
        module: Any, query: Any, key: Any, value: Any, *args: Any, **keywords: Any
    ) -> Any:
        if key.shape[-2] >= LONG and len(args) < 2 and not watch.in_recomputed_part():
            mask = args[0] if args else keywords.get("attention_mask")
            others = {name: v for name, v in keywords.items() if name != "attention_mask"}
            tiled = in_place_of(
                default, module, query, key, value, mask, noticed=note_derivative, **others
            )
            if tiled is not None:
                return tiled
        return default(module, query, key, value, *args, **keywords)

    return attention
