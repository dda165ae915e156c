"""Wrap the calls of transformers' attention functions, which models look up at every call."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any], bool], Any]
"""Function of an attention function, the calling module, its queries, keys, values (and mask), its
keywords, and whether the function is the module's own (eager) one."""


@contextmanager
def wrapped_attention(wrapper: Wrapper) -> Iterator[None]:
    """Let `wrapper` make every call of a transformers attention function in this thread.

    Models whose attention is not looked up in transformers' AttentionInterface are not noticed.

    Args:
        wrapper: calls the attention function and returns its result.
    """
    from transformers.modeling_utils import AttentionInterface

    registry: Any = AttentionInterface
    original, thread, active = registry.get_interface, threading.get_ident(), [True]

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, name, default)

        @wraps(function)
        def attention(module: Any, *tensors: Any, **keywords: Any) -> Any:
            if active and threading.get_ident() == thread and len(tensors) > 2:
                return wrapper(function, module, tensors, keywords, function is default)
            return function(module, *tensors, **keywords)

        return attention

    registry.get_interface = get_interface
    try:
        yield
    finally:
        active.clear()
        if registry.get_interface is get_interface:  # else another thread has wrapped ours
            registry.get_interface = original
