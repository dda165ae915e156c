"""Softmax attention of any Hugging Face model, seen in its own forward pass.

Models of transformers look their attention function up in a registry (`ALL_ATTENTION_FUNCTIONS`).
Whichever they find is called as always, and what it was given is measured.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from hessblocks.signal.heads import HeadSignal, SoftmaxCall, head_signals

UNSEEN = "its attention does not go through transformers' ALL_ATTENTION_FUNCTIONS"
ELSEWHERE = ("key_value_states", "encoder_hidden_states")
"""Arguments of a module whose keys are made of other vectors than its input."""
Found = dict[int, tuple[HeadSignal, ...] | str]
"""Number of a layer → its heads, or why they cannot be measured."""


@contextmanager
def watched(layers: Sequence[nn.Module], real: Bool[Tensor, "sequences tokens"]) -> Iterator[Found]:
    """Record the first attention of each layer in the forward pass inside.

    Args:
        layers: layers of the model.
        real: False at padding.

    Yields:
        The layers that have been seen.
    """
    found: Found = {}
    inputs: dict[nn.Module, Tensor | None] = {}
    owner = {module: number for number, layer in enumerate(layers) for module in layer.modules()}

    def enter(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        inputs[module] = _vectors(arguments, keywords)

    def leave(module: nn.Module, *_: Any) -> None:
        inputs.pop(module, None)

    def measure(module: Any, call: SoftmaxCall) -> None:
        number, x = owner.get(module), inputs.get(module)
        if number is not None and number not in found:
            fits = x is not None and x.shape[:2] == (len(call.key), call.key.shape[-2])
            with torch.no_grad(), torch.autocast(real.device.type, enabled=False):
                found[number] = head_signals(replace(call, x=x if fits else None), real)

    with ExitStack() as stack:
        for module in owner:
            before = module.register_forward_pre_hook(enter, with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(module.register_forward_hook(leave).remove)
        stack.enter_context(_overheard(measure))
        yield found


def _vectors(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor | None:
    """Find the vectors that a module's keys are made of."""
    x = arguments[0] if arguments else keywords.get("hidden_states")
    other = any(keywords.get(name) is not None for name in ELSEWHERE)
    return x if isinstance(x, Tensor) and x.ndim == 3 and not other else None


@contextmanager
def _overheard(measure: Callable[..., None]) -> Iterator[None]:
    """Record every call of an attention function that this thread's models look up."""
    from transformers.modeling_utils import AttentionInterface

    registry: Any = AttentionInterface
    own, thread, listening = registry.get_interface, threading.get_ident(), [True]

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = own(self, name, default)

        @wraps(function)
        def attention(module: Any, *tensors: Any, **keywords: Any) -> Any:
            output = function(module, *tensors, **keywords)
            if listening and threading.get_ident() == thread and len(tensors) > 2:
                measure(module, _call(module, tensors, keywords, output[0], function is default))
            return output

        return attention

    registry.get_interface = get_interface
    try:
        yield
    finally:
        listening.clear()
        if registry.get_interface is get_interface:  # else another thread's stands on it
            registry.get_interface = own


def _call(module: Any, tensors: Any, keywords: Any, output: Any, eager: bool) -> SoftmaxCall:
    query, key, value, *rest = tensors
    mask = rest[0] if rest else keywords.get("attention_mask")
    causal, scale = keywords.get("is_causal"), keywords.get("scaling")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return SoftmaxCall(
        query=query,
        key=key,
        value=value,
        mask=mask,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        # eager functions learn of causality from the mask alone
        causal=bool(causal) and mask is None and not eager and query.shape[2] > 1,
        output=output,
        x=None,
    )
