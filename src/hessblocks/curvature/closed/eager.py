"""Swap transformers' eager attention for tiles, while a graph is captured."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hessblocks.curvature.attention import in_place_of
from hessblocks.curvature.closed.shared import Shared
from hessblocks.curvature.closed.softmax import LONG
from hessblocks.curvature.closed.watch import Watch, note_derivative

_inside = threading.local()
_original: Any = None


@contextmanager
def swap_eager(watch: Watch) -> Iterator[None]:
    """Give models that ask for eager attention tiles in long contexts, in this thread."""
    registry = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    if registry is None:  # no model of transformers
        yield
        return
    watches = vars(_inside).setdefault("watches", [])
    watches.append(watch)
    try:
        with _swapped:
            yield
    finally:
        watches.pop()


@contextmanager
def _swap() -> Iterator[None]:
    """Our choice in the place of the registry's own."""
    global _original
    registry = sys.modules["transformers.modeling_utils"].AttentionInterface
    _original = registry.get_interface
    registry.get_interface = _chosen
    try:
        yield
    finally:
        registry.get_interface = _original


_swapped = Shared(_swap)


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
