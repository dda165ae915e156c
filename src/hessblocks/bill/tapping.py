"""Replace activations during forward passes: keys, values and queries of attention, and inputs.

A tap is a module's name and one of `TENSORS`, such as `model.layers.3.self_attn keys`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from hessblocks.attention_calls import wrapped_attention
from hessblocks.blocks import SelfAttention
from hessblocks.curvature import evaluation_mode, exclusive, plain_model
from hessblocks.errors import ArgumentError

TENSORS = ("queries", "keys", "values")
"""Tensors of an attention call, in the order of its arguments."""
Replace = Callable[[str, Float[Tensor, "..."]], Float[Tensor, "..."]]
"""Function of a tap and its tensor that returns the new tensor."""


@contextmanager
def tapped(
    model: nn.Module, replace: Replace, begin: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Replace activations in every pass of this thread.

    A tensor that a later layer receives again, as where layers share a cache, is replaced once.

    Args:
        model: model whose passes are changed.
        replace: is called with the tensors of every attention call, and every module's input.
        begin: is called at the start of every pass.
    """
    model = plain_model(model)
    names = {module: name for name, module in model.named_modules()}
    replaced: dict[int, tuple[Tensor, Tensor]] = {}
    thread = threading.get_ident()

    def once(tap: str, tensor: Tensor) -> Tensor:
        if id(tensor) not in replaced:  # the pair keeps the tensor alive, and so its id
            replaced[id(tensor)] = tensor, replace(tap, tensor)
        return replaced[id(tensor)][1]

    def all_of(module: nn.Module, kinds: Sequence[str], tensors: Iterable[Tensor]) -> Any:
        pairs = zip(kinds, tensors, strict=False)
        return tuple(once(f"{names[module]} {kind}", tensor) for kind, tensor in pairs)

    def attend(
        function: Any, module: Any, tensors: tuple[Any, ...], keywords: dict[str, Any], _: bool
    ) -> Any:
        if module in names:
            kinds = TENSORS[:1] if isinstance(module, SelfAttention) else TENSORS
            tensors = all_of(module, kinds, tensors) + tensors[len(kinds) :]
        return function(module, *tensors, **keywords)

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        if threading.get_ident() != thread or module not in names:
            return None
        if module is model:
            replaced.clear()
            begin()
        if not inputs or not isinstance(inputs[0], Tensor) or not inputs[0].is_floating_point():
            return None
        inputs = replace(f"{names[module]} inputs", inputs[0]), *inputs[1:]
        if isinstance(module, SelfAttention):  # shaping mixes values beside the attention call
            cache = inputs[2] or (lambda *new: new)
            inputs = *inputs[:2], lambda *new: all_of(module, TENSORS[1:], cache(*new)), *inputs[3:]
        return inputs

    handle = register_module_forward_pre_hook(enter)  # one of the model would change its form
    try:
        with wrapped_attention(attend):
            yield
    finally:
        handle.remove()
        replaced.clear()


def attention_tensors(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Find the queries, keys and values of all layers, by a pass over two tokens.

    Args:
        model: a decoder of transformers.

    Returns:
        Tap → number of heads, and width of a head; a tensor that several layers share appears
        once.

    Raises:
        ArgumentError: the model is an encoder-decoder or cannot be called with token ids, some
            attention does not go through transformers' attention interface, or the cache holds
            other tensors than attention gets, as latent ones (MLA).
    """
    model = plain_model(model)
    kind, config = type(model).__name__, getattr(model, "config", None)
    if config is None or getattr(config, "is_encoder_decoder", False):
        raise ArgumentError(f"model: expected a decoder of transformers with a cache, got {kind}")
    tensors: dict[str, Tensor] = {}

    def note(tap: str, tensor: Tensor) -> Tensor:
        if tap.split()[-1] in TENSORS and tensor.ndim == 4:
            tensors.setdefault(tap, tensor)
        return tensor

    tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    with exclusive(model), evaluation_mode(model), torch.no_grad(), tapped(model, note):
        try:
            output = model(input_ids=tokens, use_cache=True)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"model: {kind} cannot be called on token ids: {error}") from error
    if not tensors:
        raise ArgumentError(
            f"model: the attention of {kind} does not go through transformers' attention "
            "interface, so that its keys and values cannot be rounded"
        )
    cache = getattr(getattr(output, "past_key_values", None), "layers", ())
    stored = [vars(layer).get(name) for layer in cache for name in ("keys", "values")]
    for tap, tensor in tensors.items():
        if cache and not tap.endswith("queries") and not any(_ends(tensor, t) for t in stored):
            raise ArgumentError(f"model: the cache of {kind} holds other tensors than {tap!r}")
    return {tap: (tensor.shape[1], tensor.shape[3]) for tap, tensor in tensors.items()}


def _ends(tensor: Tensor, stored: Tensor | None) -> bool:
    """Tell whether a tensor ends with the tokens that are stored, of which a window drops some."""
    if stored is None:
        return False
    return torch.equal(tensor[..., tensor.shape[-2] - stored.shape[-2] :, :].to(stored), stored)
