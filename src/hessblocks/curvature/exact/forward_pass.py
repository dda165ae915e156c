"""What passes by the last attention in one forward pass of a model.

Letters: B sequences, L tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.curvature.products import Batch


class _Captured(Exception):  # noqa: N818 - no error: it ends the forward pass
    """All has been seen; what follows need not be computed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """What passes by the last attention in a forward pass."""

    x: Float[Tensor, "B L D"]
    """Input of the layer."""
    inputs: Float[Tensor, "B L D"]
    """Input of its attention."""
    attended: Float[Tensor, "B L D"]
    """Output of its attention, projected."""
    hidden: Float[Tensor, "B *L D"]
    """Input of the output layer."""
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
    """A forward pass that ends before the output layer.

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
        AssertionError: the model gave its logits without the output layer.
    """
    seen: dict[str, Any] = {}

    def enter_layer(module: nn.Module, inputs: tuple[Any, ...], keywords: Any) -> None:
        seen["x"] = inputs[0] if inputs else keywords["hidden_states"]
        seen["layer_keywords"] = {k: v for k, v in keywords.items() if k != "hidden_states"}

    def enter_attention(module: nn.Module, inputs: tuple[Any, ...], keywords: Any) -> None:
        seen["inputs"] = inputs[0] if inputs else keywords["hidden_states"]
        seen["arguments"], seen["keywords"] = inputs, keywords

    def leave_attention(module: nn.Module, inputs: Any, output: Any) -> None:
        seen["attended"] = output[0] if isinstance(output, tuple) else output

    def stop(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        raise _Captured(inputs[0])

    hooks = [
        layer.register_forward_pre_hook(enter_layer, with_kwargs=True),
        attention.register_forward_pre_hook(enter_attention, with_kwargs=True),
        written.register_forward_hook(leave_attention),
        output_layer.register_forward_pre_hook(stop),
    ]
    try:
        model(*batch.arguments, **{**batch.keywords, **without_cache(batch)})
    except _Captured as captured:
        return Seen(hidden=captured.args[0], **seen)
    finally:
        for hook in hooks:
            hook.remove()
    raise AssertionError("the output layer did not run")


@contextmanager
def noted_inputs(module: nn.Module) -> Iterator[list[Float[Tensor, "..."]]]:
    """What a module reads while it is used."""
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        handle.remove()


def without_cache(batch: Batch) -> dict[str, bool]:
    """Keywords of a language model that keep it from caching keys and values; none for images."""
    return {} if batch.inputs.is_floating_point() else {"use_cache": False}
