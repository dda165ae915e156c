"""Signal propagation: measure every layer of a model on one batch.

Rank collapse shows in cosines, stable rank, size and kurtosis of token vectors. The attention
matrix here is the matrix that multiplies the values. For shaped attention this is αI + βA − γC, not
the softmax A. It has negative entries, so that its entropy is that of the absolute weights.

Letters: B sequences, H heads, T tokens, D width; x are the vectors, real is False at padding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hessblocks.errors import ArgumentError
from hessblocks.signal.derivatives import Conditioning, conditioning, gradient_norms
from hessblocks.signal.heads import UNSEEN, HeadSignal, watched
from hessblocks.signal.layers import Inputs, ModuleCall, calls, evaluation, layers_of, real_tokens
from hessblocks.storage import Tabular

COLLAPSED = 0.99
"""If the mean cosine between different tokens is larger, they count as one direction."""


@dataclass(frozen=True, kw_only=True)
class TokenSignal:
    """Similarity, stable rank, size and kurtosis of all tokens' vectors at one depth."""

    token_similarity: float
    """Mean cosine between different tokens of a sequence, −1 to 1; 1 is rank collapse."""
    stable_rank: float
    """‖X‖²_F / ‖X‖²_2 of a sequence's token matrix, mean over sequences; 1 is rank collapse."""
    norm: float
    """Root mean square of the entries."""
    kurtosis: float
    """Kurtosis of the entries' root mean squares: 1 if all are equal, D if only one is nonzero."""


def token_signal(x: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"]) -> TokenSignal:
    """Measure the vectors of the unpadded tokens.

    The kurtosis is mean(s⁴) / mean(s²)², with s_j the root mean square of entry j over tokens.

    Returns:
        The measured values of this layer.

    Source: token similarity and rank as in Dong et al. (2021); kurtosis as in He et al. (2024),
        arXiv 2405.19279, equation 2.

    Examples:
        >>> alike = token_signal(torch.ones(1, 3, 4), torch.ones(1, 3, dtype=torch.bool))
        >>> round(alike.token_similarity, 3), round(alike.stable_rank, 3)
        (1.0, 1.0)
    """
    x = x.detach().to(torch.promote_types(x.dtype, torch.float32)) * real[..., None]
    squares = x.square().sum(dim=(0, 1)) / real.sum()
    spectral = torch.linalg.matrix_norm(x, ord=2)
    return TokenSignal(
        token_similarity=float(_similarities(x, real).mean()),
        stable_rank=float((x.square().sum(dim=(1, 2)) / spectral.square()).mean()),
        norm=float(squares.mean().sqrt()),
        kurtosis=float(squares.square().mean() / squares.mean().square()),
    )


def _similarities(x: Tensor, real: Tensor) -> Float[Tensor, " B"]:
    """Average cosines: Σ_{s≠t} cos(x_s, x_t) = ‖Σ_t x̂_t‖² − tokens, by the number of pairs."""
    directions = torch.nn.functional.normalize(x, dim=-1)
    tokens = real.sum(dim=1)
    together = directions.sum(dim=1).square().sum(dim=-1)
    squares = directions.square().sum(dim=(1, 2))
    similarities: Tensor = (together - squares) / (tokens * (tokens - 1)).clamp(min=1)
    return similarities


def rank_collapse(similarities: Sequence[float], *, above: float = COLLAPSED) -> int | None:
    """Find the layer from which on the token similarity stays above a threshold.

    Args:
        similarities: mean cosine between tokens after each layer, in order.
        above: the threshold.

    Returns:
        The layer, counted from 0; None where the last layer still tells tokens apart.

    Source: rank collapse as in Dong et al. (2021), arXiv 2103.03404; the threshold is ours.

    Examples:
        >>> rank_collapse([0.2, 0.995, 0.4, 0.995, 0.999])
        3
    """
    collapsed = len(list(takewhile(lambda similarity: similarity > above, reversed(similarities))))
    return len(similarities) - collapsed if collapsed else None


def attention_entropy(
    matrix: Float[Tensor, "B H T T"], real: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Compute the mean entropy of a token's absolute weights |m_j| / Σ|m_j|, in nats.

    0: each token takes from one token only, as with the identity. log i: token number i takes from
    all i tokens alike. A token without any weight counts as 0.

    Returns:
        The mean over tokens, heads and sequences.
    """
    weights = matrix.abs()
    shares = weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(matrix.dtype).tiny)
    entropies = torch.special.entr(shares).sum(dim=-1)
    mean: Tensor = (entropies * real[:, None]).sum() / (real.sum() * matrix.shape[1])
    return mean


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("layer", "quantity", "role", "value", "method")
"""Columns of the rows."""
OF_ATTENTION = ("attention_entropy", "largest_logit", "second_moment")
"""Quantities of a layer's attention, each of which may be None."""


@dataclass(frozen=True, kw_only=True)
class LayerSignal:
    """Signal at one layer."""

    layer: int
    """Number of the layer, counted from 0."""
    tokens: TokenSignal
    """Signal of the layer's output."""
    heads: tuple[HeadSignal, ...]
    """Attention of each head; empty where it cannot be measured."""
    reason: str
    """Reason why values of the heads are None; empty if none is None."""
    jacobian: Conditioning | None
    """Singular values of the layer's Jacobian on the first sequence; None with 0 steps."""
    gradient_norms: Mapping[str, float]
    """Norm of the loss gradient by parameter role; empty if the batch has no labels."""

    @property
    def attention_entropy(self) -> float | None:
        """Mean entropy of a token's attention row, in nats; of |weights| for shaped attention."""
        return fmean(head.entropy for head in self.heads) if self.heads else None

    @property
    def largest_logit(self) -> float | None:
        """Largest absolute attention logit of all heads, before mask and softmax."""
        logits = torch.tensor(self._of_heads("largest_logit"), dtype=torch.float64)
        return float(logits.max()) if len(logits) else None  # Python's max may drop a NaN

    @property
    def second_moment(self) -> float | None:
        """Mean of tr M_2 over tokens and heads; at 0, queries and keys have no curvature."""
        moments = self._of_heads("second_moment")
        return fmean(moments) if moments else None

    def _of_heads(self, name: str) -> list[float]:
        values = (getattr(head, name) for head in self.heads)
        return [value for value in values if value is not None]


@dataclass(frozen=True, kw_only=True, repr=False)
class Signal(Tabular):
    """Signal through all layers."""

    inputs: TokenSignal
    """Signal that enters the first layer."""
    layers: tuple[LayerSignal, ...]
    """Every layer, in order."""

    def to_rows(self) -> list[dict[str, Any]]:
        """List a row for each value: layer (empty for inputs), quantity, role, value, method.

        A value that could not be measured is None, and `method` has the reason. For a value of one
        head, `role` names the head.

        Returns:
            All rows, layer by layer.
        """
        inputs = [("", name, "", value, "exact") for name, value in asdict(self.inputs).items()]
        layers = [(layer.layer, *value) for layer in self.layers for value in _values(layer)]
        return [dict(zip(COLUMNS, row, strict=True)) for row in (*inputs, *layers)]

    def __str__(self) -> str:
        """Say how similar the tokens are before the first layer and after the last."""
        first, last = self.inputs.token_similarity, self.layers[-1].tokens.token_similarity
        return (
            f"signal through {len(self.layers)} layers: similarity of tokens {first:.3g} at the "
            f"input, {last:.3g} at the output"
        )

    def plot(self, ax: Axes | None = None) -> Figure:
        """Plot the mean cosine between tokens along depth; 1 is rank collapse.

        Args:
            ax: axes of matplotlib to draw on; None for a figure of its own.

        Returns:
            The figure that was drawn on.
        """
        from hessblocks.drawing import plot
        from hessblocks.figures import Panel, Series

        similarities = [self.inputs, *(layer.tokens for layer in self.layers)]
        series = Series(
            name="similarity",
            x=tuple(map(float, range(len(similarities)))),
            y=tuple(tokens.token_similarity for tokens in similarities),
        )
        panel = Panel(
            title="Similarity of tokens along depth",
            x_label="Layers passed",
            y_label="Mean cosine between tokens",
            series=(series,),
            ticks=("input", *map(str, range(1, len(similarities)))),
        )
        return plot(panel, ax)


def propagate(
    model: nn.Module,
    batch: Inputs | Int[Tensor, "sequences tokens"],
    *,
    jacobian_steps: int = 16,
    dense_limit: int = 512,
) -> Signal:
    """Measure signal propagation at every layer of a model.

    Args:
        model: a model of this library, or any model with its layers in a `torch.nn.ModuleList` and
            vectors (sequences, tokens, width) as the layers' first argument. Heads are measured if
            attention calls an attention function of transformers.
        batch: inputs by name, or only `input_ids`, on any device; with `labels`, gradient norms
            are measured too.
        jacobian_steps: products with each layer's Jacobian (JVP and VJP) for a lower bound of its
            condition number, on the first sequence; 0: no condition number.
        dense_limit: largest tokens × width for which the whole Jacobian is computed instead, for
            the exact condition number.

    Returns:
        The measured values; the model, its gradients and its mode are not changed.

    Raises:
        ArgumentError: no list of layers, no `input_ids`, or a sequence of fewer than two unpadded
            tokens.

    Cost: one forward pass (and one backward pass with labels). Attention is recomputed in float64,
        by tiles of queries; attention of this library needs one layer's tokens × tokens matrices at
        a time. The Jacobians need a float64 copy of the model.
    """
    tensors = {"input_ids": batch} if isinstance(batch, Tensor) else batch
    device = next((p.device for p in model.parameters()), None)
    inputs = {name: tensor.to(device) for name, tensor in tensors.items()}
    _check(inputs)
    layers, real = layers_of(model), real_tokens(inputs)
    attentions = [_attention(layer) for layer in layers]
    looked_at = layers + [attention for attention in attentions if attention is not None]
    with evaluation(model):
        with torch.set_grad_enabled("labels" in inputs):
            with watched(layers, real) as heads:
                called, output = calls(model, looked_at, inputs)
            gradients: list[dict[str, float]] = [{} for _ in layers]
            if "labels" in inputs:
                gradients = gradient_norms(layers, output.loss)
        jacobians = _jacobians(model, inputs, real, jacobian_steps, dense_limit)
        mixing = [
            _mixing(a if a is None else called[a], heads.get(index, UNSEEN), real)
            for index, a in enumerate(attentions)
        ]
    return Signal(
        inputs=token_signal(_stream(layers[0], called[layers[0]].x), real),
        layers=tuple(
            LayerSignal(
                layer=index,
                tokens=token_signal(_stream(layer, called[layer].output), real),
                heads=mixing[index][0],
                reason=mixing[index][1],
                jacobian=jacobians[index],
                gradient_norms=gradients[index],
            )
            for index, layer in enumerate(layers)
        ),
    )


def _stream(layer: Any, vectors: Tensor) -> Tensor:
    """Return x without the other vectors that our layers pass on: embedding, first values."""
    return layer.split(vectors)["x"] if hasattr(layer, "carried") else vectors


def _check(inputs: Inputs) -> None:
    if "input_ids" not in inputs:
        raise ArgumentError(f"batch: expected input_ids, got {', '.join(inputs) or 'nothing'}")
    if int(real_tokens(inputs).sum(dim=1).min()) < 2:
        raise ArgumentError("batch: every sequence needs two unpadded tokens or more to compare")


def _attention(layer: nn.Module) -> nn.Module | None:
    return next((m for m in layer.modules() if callable(getattr(m, "matrix", None))), None)


def _mixing(
    call: ModuleCall | None, signals: tuple[HeadSignal, ...] | str, real: Tensor
) -> tuple[tuple[HeadSignal, ...], str]:
    """Complete heads by the call of an attention with `matrix`; say why values are None."""
    heads, reason = ((), signals) if isinstance(signals, str) else (signals, "")
    if any(head.second_moment is None for head in heads):
        reason = "its keys are made of other vectors than its input"
    if call is None:
        return heads, reason
    module: Any = call.module
    with torch.no_grad():
        matrix = module.matrix(*call.arguments[:2])
    wide = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    unseen = HeadSignal(entropy=0.0, largest_logit=None, second_moment=None)
    return tuple(
        replace(head, entropy=float(attention_entropy(weights[:, None], real)))
        for head, weights in zip(heads or [unseen] * wide.shape[1], wide.unbind(1), strict=True)
    ), reason


def _jacobians(
    model: nn.Module, inputs: Inputs, real: Tensor, steps: int, dense_limit: int
) -> list[Conditioning | None]:
    if not steps:
        return [None] * len(layers_of(model))
    double: Any = copy.deepcopy(model).double()
    if hasattr(double, "config"):
        double.config.use_cache = False  # a second call must not use the first call's keys
    names = {"input_ids", "token_type_ids", "position_ids"} & inputs.keys()
    first = {name: inputs[name][:1, real[0]] for name in names}
    with torch.no_grad():
        called, _ = calls(double, layers_of(double), first)
    try:
        return [
            conditioning(
                lambda z, call=call: call.again(z[None])[0],  # type: ignore[misc]
                call.x[0].detach(),
                dense_limit=dense_limit,
                steps=steps,
            )
            for call in map(called.__getitem__, layers_of(double))
        ]
    except RuntimeError as error:
        if "autograd.Function" not in str(error):
            raise
        raise ArgumentError(
            "jacobian_steps: expected 0, since a layer has an autograd.Function that torch.func "
            "cannot differentiate"
        ) from error


def _values(layer: LayerSignal) -> Iterator[tuple[str, str, float | None, str]]:
    """Yield quantity, role, value and method of each measurement."""
    values = asdict(layer.tokens) | {name: getattr(layer, name) for name in OF_ATTENTION}
    for name, value in values.items():
        yield name, "", value, layer.reason if value is None else "exact"
    for number, head in enumerate(layer.heads):
        for name, value in asdict(head).items():
            if value is not None:
                yield f"head_{name}", f"head.{number}", value, "exact"
    if layer.jacobian is not None:
        method = "exact" if layer.jacobian.exact else "lower bound"
        yield "jacobian_condition", "", layer.jacobian.condition, method
    for role, norm in layer.gradient_norms.items():
        yield "gradient_norm", role, norm, "exact"
