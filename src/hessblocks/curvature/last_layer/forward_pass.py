"""Record one forward pass of a model around its last attention, and the sub-block that it shows.

What follows the last attention acts on each token by itself: that is what makes its curvature
exact.

Letters: B sequences, L tokens, N tokens with a label, D width, C classes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hessblocks.curvature.last_layer.families import Family, output_layer
from hessblocks.curvature.last_layer.supported import ELSEWHERE, uncovered
from hessblocks.curvature.losses import Batch
from hessblocks.errors import ArgumentError
from hessblocks.theory import AttentionLayer

HiddenNetwork = Callable[..., Float[Tensor, "... D"]]
"""From one token's attention output (D,) and its side inputs to its final hidden state (D,)."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class LastAttention:
    """Last attention sub-block and the token-wise network after it."""

    layer: AttentionLayer
    """Weights, input and mask."""
    seen: Seen
    """Record of the model's forward pass."""
    network: HiddenNetwork
    """From one token's output and layer input to its final hidden state."""
    output_layer: Any
    """Linear layer from the final hidden state to the logits."""
    projection_bias: Float[Tensor, " D"] | None = None
    """Bias of the output, where it has one."""
    rounding: float = 0.0
    """Relative error of an operation inside the attention, where it is larger than that of the
    weights."""
    left_out: tuple[str, ...] = ()
    """Trained parameters of the attention that have no group: gains of reparametrised weights."""
    before: frozenset[str]
    """Parameters of the layer that stand before its attention."""
    multipliers: Mapping[str, Float[Tensor, "B L D"]]
    """Factors of those parameters that enter entry by entry: gain and shift of a norm."""

    def check(self, valid: Bool[Tensor, "B L"]) -> None:
        """Compare attention and output layer, computed anew, with the model's own.

        Args:
            valid: where outputs count.

        Raises:
            ArgumentError: one of them differs by more than rounding.
        """
        positions = valid.any(0).nonzero()[:, 0]
        output = self.layer.output(positions)
        if self.projection_bias is not None:
            output = output + self.projection_bias
        counted, seen = valid[:, positions], self.seen
        attended = seen.attended[:, positions][counted]
        if not attended.isfinite().all():
            raise ArgumentError(
                "model: the output of its last attention is not finite on this batch; check "
                "weights and inputs"
            )
        if not _close(output[counted], attended, self.rounding):
            raise ArgumentError(
                "batch: the model attends otherwise than the closed form supposes (packed "
                "sequences, a mask of its own, a softmax in single precision that "
                "attn_implementation='sdpa' would not have?); use hessblocks.Hessian for this batch"
            )
        hidden = seen.hidden[:1, 0] if seen.pooled else seen.hidden[:1, seen.tried]
        own = self.output_layer
        if not _close(nn.functional.linear(hidden, own.weight, own.bias), seen.logits):
            raise ArgumentError(
                "model: its logits are not the output layer's of the final hidden state (scaled, "
                f"capped, changed by a hook?); {ELSEWHERE}"
            )

    def check_behind(self, hidden: Float[Tensor, "N D"], valid: Bool[Tensor, "B L"]) -> None:
        """Compare the network after the attention, computed anew, with the model's own output.

        Args:
            hidden: what the network gives.
            valid: at which tokens.

        Raises:
            ArgumentError: it differs by more than rounding.
        """
        if not _close(hidden, self.seen.hidden[valid]):
            raise ArgumentError(
                "model: after its last attention it does something else than the closed form "
                f"supposes, or not token by token; {ELSEWHERE}"
            )


def _close(found: Tensor, seen: Tensor, rounding: float = 0.0) -> bool:
    """Tell whether they differ by at most 1e4 of their own roundings, or 100 of a given size."""
    share = max(1e4 * torch.finfo(seen.dtype).eps, 100 * rounding)
    tolerance = share * seen.abs().amax()
    return found.shape == seen.shape and bool((found - seen).abs().amax() <= tolerance)


def token_network(family: Family, model: Any, keywords: Mapping[str, Any]) -> HiddenNetwork:
    """Build the last layer and the final norm as a function of one attended token.

    Args:
        family: the layout.
        model: the model.
        keywords: those of the layer in the forward pass; they concern the attention alone.

    Returns:
        From the attention's output and the layer's input, (D,) each, to the final hidden state
        (D,).
    """
    layer = model.get_submodule(family.layers)[-1]
    attention = layer.get_submodule(family.attention)
    behind = [model.get_submodule(name) for name in family.behind]

    def network(a: Tensor, x: Tensor) -> Tensor:
        given = a[None, None]
        with ExitStack() as stack:
            stack.enter_context(_replaced(attention, lambda *_, **__: (given, None)))
            if family.apart:
                stack.enter_context(_replaced(family.written(layer), lambda _: given))
            stack.enter_context(_replaced(output_layer(model), lambda hidden: hidden))
            out = layer(x[None, None], **keywords)
            hidden: Tensor = out[0] if isinstance(out, tuple) else out
            for module in behind:
                hidden = module(hidden)
        return hidden[0, 0]

    return network


def feeding(
    family: Family, model: Any, x: Float[Tensor, " D"], keywords: Mapping[str, Any]
) -> frozenset[str]:
    """List the parameters of the last layer that its attention's input depends on."""
    layer = model.get_submodule(family.layers)[-1]
    attention = layer.get_submodule(family.attention)
    seen: list[Tensor] = []

    def note(*inputs: Any, **words: Any) -> tuple[Tensor, None]:
        seen.append(inputs[0] if inputs else words["hidden_states"])
        return torch.zeros_like(seen[0]), None

    known = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not known:
        return frozenset()
    with torch.enable_grad(), _replaced(attention, note):
        layer(x.detach()[None, None].requires_grad_(), **keywords)
        if not seen[0].requires_grad:  # a hook cut it off
            return frozenset()
        slopes = torch.autograd.grad(seen[0].sum(), list(known.values()), allow_unused=True)
    met = zip(known, slopes, strict=True)
    return frozenset(name for name, slope in met if slope is not None)


@contextmanager
def _replaced(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Put another function in the place of the module's own, and restore it afterwards."""
    had = "forward" in vars(module)
    own = module.forward
    module.forward = forward
    try:
        yield
    finally:
        if had:
            module.forward = own
        else:
            del module.forward
