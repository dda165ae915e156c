"""Record a model's forward pass around its last attention, and extract the attention from it.

The layers after the last attention act on each token separately. This makes a closed form of the
curvature possible.

Letters: B sequences, L tokens, N tokens with a label, D width, C classes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hessblocks.curvature.last_layer.supported import (
    ELSEWHERE,
    LastModules,
    output_layer,
    uncovered,
)
from hessblocks.curvature.losses import Batch
from hessblocks.errors import ArgumentError
from hessblocks.theory import AttentionLayer

HiddenNetwork = Callable[..., Float[Tensor, "... D"]]
"""Maps one token's attention output (D,) and side inputs to its final hidden state (D,)."""

_TRIED = 4
"""Number of tokens whose logits the model computes, to check our output layer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """Inputs and outputs of the last attention in a forward pass."""

    x: Float[Tensor, "B L state"]
    """Input of the last layer; wider than D if layers pass several vectors per token."""
    inputs: Float[Tensor, "B L D"]
    """Input of the attention."""
    attended: Float[Tensor, "B L D"]
    """Output of the attention, after the projection."""
    hidden: Float[Tensor, "B _ D"]
    """Input of the output layer; if `pooled`, zeros after the first token."""
    pooled: bool
    """Whether the output layer reads only the first token."""
    tried: Int[Tensor, " _"]
    """Tokens of the first row whose logits the model computed."""
    logits: Float[Tensor, "_ *_ C"]
    """The model's logits of these tokens."""
    layer_keywords: Mapping[str, Any]
    """Keyword arguments of the last layer."""
    arguments: tuple[Any, ...]
    """Positional arguments of the attention."""
    keywords: Mapping[str, Any]
    """Keyword arguments of the attention."""


def forward_pass(
    model: nn.Module,
    batch: Batch,
    layer: nn.Module,
    attention: nn.Module,
    written: nn.Module,
    output_layer: nn.Module,
) -> Seen:
    """Run and record a forward pass that computes the logits of only a few tokens.

    Args:
        model: the model.
        batch: its inputs.
        layer: the last layer.
        attention: the attention in that layer.
        written: module that returns the projected output: the attention or its projection.
        output_layer: module that returns the logits.

    Returns:
        The recorded tensors and arguments.

    Raises:
        ArgumentError: the last layer, or the output layer, runs more than once.
    """
    recorded: dict[str, Any] = {"tried": _first_tokens(batch)}

    def once(module: nn.Module, key: str) -> None:
        if key in recorded:
            raise uncovered(
                f"expects one use of the last layer, and {type(module).__name__} runs twice in a "
                "forward pass"
            )

    def enter_layer(module: nn.Module, inputs: tuple[Any, ...], keywords: Any) -> None:
        once(module, "x")
        recorded["x"] = inputs[0] if inputs else keywords["hidden_states"]
        recorded["layer_keywords"] = {k: v for k, v in keywords.items() if k != "hidden_states"}

    def enter_attention(module: nn.Module, inputs: tuple[Any, ...], keywords: Any) -> None:
        once(module, "inputs")
        recorded["inputs"] = inputs[0] if inputs else keywords["hidden_states"]
        recorded["arguments"], recorded["keywords"] = inputs, keywords

    def leave_attention(module: nn.Module, inputs: Any, output: Any) -> None:
        recorded["attended"] = output[0] if isinstance(output, tuple) else output

    def enter_output(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        once(module, "hidden")
        hidden = recorded["hidden"] = inputs[0]
        tried = recorded["tried"][recorded["tried"] < hidden.shape[1]]
        return (hidden[:1, tried] if hidden.ndim == 3 else hidden[:1], *inputs[1:])

    with (
        layer.register_forward_pre_hook(enter_layer, with_kwargs=True),
        attention.register_forward_pre_hook(enter_attention, with_kwargs=True),
        written.register_forward_hook(leave_attention),
        output_layer.register_forward_pre_hook(enter_output),
    ):
        recorded["logits"] = logits(model, batch)
    first = recorded["hidden"]
    if pooled := first.ndim == 2:
        recorded["hidden"] = torch.zeros_like(recorded["x"])
        recorded["hidden"][:, 0] = first
    return Seen(pooled=pooled, **recorded)


def logits(model: nn.Module, batch: Batch) -> Float[Tensor, "_ *_ C"]:
    """Compute the logits of a batch."""
    # no key-value cache; models of images take no such argument
    without = {} if batch.inputs.is_floating_point() else {"use_cache": False}
    outputs = model(*batch.arguments, **{**batch.keywords, **without})
    values: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs.logits
    return values


def _first_tokens(batch: Batch) -> Int[Tensor, " _"]:
    """Find the first `_TRIED` tokens of the first row that are no padding."""
    if batch.attention_mask is None:
        return torch.arange(min(_TRIED, batch.inputs.shape[1]), device=batch.inputs.device)
    return batch.attention_mask[0].nonzero()[:_TRIED, 0]


@dataclass(frozen=True, kw_only=True, eq=False)
class LastAttention:
    """Last attention sub-block and the token-wise network after it."""

    layer: AttentionLayer
    """Weights, input and mask of the attention."""
    seen: Seen
    """Record of the model's forward pass."""
    network: HiddenNetwork
    """Maps one token's attention output and layer input to its final hidden state."""
    output_layer: Any
    """Linear layer from the final hidden state to the logits."""
    projection_bias: Float[Tensor, " D"] | None = None
    """Bias that is added to the attention's output; None if there is none."""
    rounding: float = 0.0
    """Relative error of an operation inside the attention in lower precision than the weights; 0
    if there is none."""
    left_out: tuple[str, ...] = ()
    """Trained parameters of the attention that have no group: gains of reparametrised weights."""
    before: frozenset[str]
    """Parameters of the layer that its attention's input depends on."""
    multipliers: Mapping[str, Float[Tensor, "B L D"]]
    """Factors of those of these parameters that act entrywise: gain and shift of a norm."""

    def check(self, valid: Bool[Tensor, "B L"]) -> None:
        """Compare our attention and output layer with the recorded outputs of the model.

        Args:
            valid: tokens with a label, whose outputs are compared.

        Raises:
            ArgumentError: an output differs by more than rounding.
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
                "batch: the model's attention differs from the closed form's (packed sequences, "
                "its own mask, or a softmax in single precision, which attn_implementation='sdpa' "
                "avoids?); use hessblocks.Hessian for this batch"
            )
        hidden = seen.hidden[:1, 0] if seen.pooled else seen.hidden[:1, seen.tried]
        head = self.output_layer
        if not _close(nn.functional.linear(hidden, head.weight, head.bias), seen.logits):
            raise ArgumentError(
                "model: its logits are not what its output layer gives for the final hidden state "
                f"(scaled, capped, changed by a hook?); {ELSEWHERE}"
            )

    def check_behind(self, hidden: Float[Tensor, "N D"], valid: Bool[Tensor, "B L"]) -> None:
        """Compare our network after the attention with the recorded output of the model.

        Args:
            hidden: output of our network.
            valid: tokens with a label.

        Raises:
            ArgumentError: it differs by more than rounding.
        """
        if not _close(hidden, self.seen.hidden[valid]):
            raise ArgumentError(
                "model: the closed form expects what follows the last attention to act on each "
                f"token by itself, as the architecture does; this model differs; {ELSEWHERE}"
            )


def _close(value: Tensor, expected: Tensor, rounding: float = 0.0) -> bool:
    """Tell whether the largest relative difference is at most 1e4 eps or 100 `rounding`."""
    share = max(1e4 * torch.finfo(expected.dtype).eps, 100 * rounding)
    tolerance = share * expected.abs().amax()
    return value.shape == expected.shape and bool((value - expected).abs().amax() <= tolerance)


def token_network(modules: LastModules, model: Any, keywords: Mapping[str, Any]) -> HiddenNetwork:
    """Build the network of one token after its attention, up to the final norm.

    Args:
        modules: modules of the model.
        model: the model.
        keywords: recorded keyword arguments of the last layer, which only its attention uses.

    Returns:
        Function of the attention's output and the layer's input, (D,) each, that returns the final
        hidden state (D,).
    """

    def network(a: Tensor, x: Tensor) -> Tensor:
        attended = a[None, None]
        with ExitStack() as stack:
            stack.enter_context(_replaced(modules.attention, lambda *_, **__: (attended, None)))
            if modules.apart:
                stack.enter_context(_replaced(modules.linear["projection"], lambda _: attended))
            stack.enter_context(_replaced(output_layer(model), lambda hidden: hidden))
            out = modules.layer(x[None, None], **keywords)
            hidden: Tensor = out[0] if isinstance(out, tuple) else out
            for module in modules.behind:
                hidden = module(hidden)
        return hidden[0, 0]

    return network


def feeding(
    modules: LastModules, model: Any, x: Float[Tensor, " D"], keywords: Mapping[str, Any]
) -> frozenset[str]:
    """List the parameters of the last layer that its attention's input depends on."""
    recorded: list[Tensor] = []

    def note(*inputs: Any, **words: Any) -> tuple[Tensor, None]:
        recorded.append(inputs[0] if inputs else words["hidden_states"])
        return torch.zeros_like(recorded[0]), None

    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        return frozenset()
    with torch.enable_grad(), _replaced(modules.attention, note):
        modules.layer(x.detach()[None, None].requires_grad_(), **keywords)
        if not recorded[0].requires_grad:  # a hook detached it
            return frozenset()
        slopes = torch.autograd.grad(recorded[0].sum(), list(trained.values()), allow_unused=True)
    met = zip(trained, slopes, strict=True)
    return frozenset(name for name, slope in met if slope is not None)


@contextmanager
def _replaced(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the module's `forward`, and restore it afterwards."""
    had = "forward" in vars(module)
    original = module.forward
    module.forward = forward
    try:
        yield
    finally:
        if had:
            module.forward = original
        else:
            del module.forward
