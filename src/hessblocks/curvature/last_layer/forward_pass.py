"""Record one forward pass of a model around its last attention.

Letters: B sequences, L tokens, D width, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessblocks.curvature.last_layer.supported import uncovered
from hessblocks.curvature.losses import Batch

_TRIED = 4
"""Tokens whose logits the model is asked for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """Inputs and outputs of the last attention in a forward pass."""

    x: Float[Tensor, "B L state"]
    """Input of the layer, wider than D where layers carry more than one vector a token."""
    inputs: Float[Tensor, "B L D"]
    """Input of its attention."""
    attended: Float[Tensor, "B L D"]
    """Output of its attention, projected."""
    hidden: Float[Tensor, "B _ D"]
    """Input of the output layer; zeros after the first token if it reads that alone."""
    pooled: bool
    """Whether the output layer reads the first token alone."""
    tried: Int[Tensor, " _"]
    """Tokens of the first row whose logits were asked for."""
    logits: Float[Tensor, "_ *_ C"]
    """Those logits, as the model gave them."""
    layer_keywords: Mapping[str, Any]
    """Keywords of the layer."""
    arguments: tuple[Any, ...]
    """Positional arguments of the attention."""
    keywords: Mapping[str, Any]
    """Keywords of the attention."""


def forward_pass(
    model: nn.Module,
    batch: Batch,
    layer: nn.Module,
    attention: nn.Module,
    written: nn.Module,
    output_layer: nn.Module,
) -> Seen:
    """Run a forward pass that makes the logits of a few tokens alone.

    Args:
        model: the model.
        batch: its inputs.
        layer: the last one.
        attention: in that layer.
        written: gives the attention's output, itself or its projection.
        output_layer: gives the logits.

    Returns:
        What passed by.

    Raises:
        ArgumentError: the last layer, or the output layer, runs more than once.
    """
    seen: dict[str, Any] = {"tried": _first_tokens(batch)}

    def once(module: nn.Module, key: str) -> None:
        if key in seen:
            raise uncovered(
                f"expects one use of the last layer, and {type(module).__name__} runs twice in a "
                "forward pass"
            )

    def enter_layer(module: nn.Module, inputs: tuple[Any, ...], keywords: Any) -> None:
        once(module, "x")
        seen["x"] = inputs[0] if inputs else keywords["hidden_states"]
        seen["layer_keywords"] = {k: v for k, v in keywords.items() if k != "hidden_states"}

    def enter_attention(module: nn.Module, inputs: tuple[Any, ...], keywords: Any) -> None:
        once(module, "inputs")
        seen["inputs"] = inputs[0] if inputs else keywords["hidden_states"]
        seen["arguments"], seen["keywords"] = inputs, keywords

    def leave_attention(module: nn.Module, inputs: Any, output: Any) -> None:
        seen["attended"] = output[0] if isinstance(output, tuple) else output

    def enter_output(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        once(module, "hidden")
        hidden = seen["hidden"] = inputs[0]
        tried = seen["tried"][seen["tried"] < hidden.shape[1]]
        return (hidden[:1, tried] if hidden.ndim == 3 else hidden[:1], *inputs[1:])

    hooks = [
        layer.register_forward_pre_hook(enter_layer, with_kwargs=True),
        attention.register_forward_pre_hook(enter_attention, with_kwargs=True),
        written.register_forward_hook(leave_attention),
        output_layer.register_forward_pre_hook(enter_output),
    ]
    try:
        seen["logits"] = logits(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    first = seen["hidden"]
    if pooled := first.ndim == 2:
        seen["hidden"] = torch.zeros_like(seen["x"])
        seen["hidden"][:, 0] = first
    return Seen(pooled=pooled, **seen)


def logits(model: nn.Module, batch: Batch) -> Float[Tensor, "_ *_ C"]:
    """Compute the logits of a batch."""
    # keys and values of a language model are not kept; images have none
    without = {} if batch.inputs.is_floating_point() else {"use_cache": False}
    given = model(*batch.arguments, **{**batch.keywords, **without})
    found: Tensor = given[0] if isinstance(given, tuple) else given.logits
    return found


def _first_tokens(batch: Batch) -> Int[Tensor, " _"]:
    """Find the first tokens of the first row, padding left out."""
    if batch.attention_mask is None:
        return torch.arange(min(_TRIED, batch.inputs.shape[1]), device=batch.inputs.device)
    return batch.attention_mask[0].nonzero()[:_TRIED, 0]
