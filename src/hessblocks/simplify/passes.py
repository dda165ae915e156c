"""Store hidden states of a text before each layer; a changed model then runs from its layer on.

Letters: S sequences, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.errors import RunError
from hessblocks.linalg import Estimate

ROWS = 128
"""Tokens whose logits are computed at a time, besides those of the original."""
LARGEST = math.log(sys.float_info.max)
"""Largest loss, in nats per token, whose perplexity is a number."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a change on held-out text, in nats per token, with errors over sequences."""

    kl: Estimate
    """KL divergence from the original's predictions to those of the changed model."""
    loss: Estimate
    """Increase of the loss."""


class Pass:
    """Hidden states of a text: the inputs of each layer and of the final norm."""

    @torch.no_grad()
    def __init__(self, model: Any, tokens: Int[Tensor, "S T"]) -> None:
        self.model, self.tokens = model, tokens
        self.states: list[Float[Tensor, "S T D"]] = []
        self.context: Any = None
        trunk = model.model

        def note(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            self.states.append(arguments[0])
            self.context = arguments[1] if len(arguments) > 1 else self.context

        with ExitStack() as stack:
            for module in (*trunk.layers, trunk.final_norm):
                stack.callback(module.register_forward_pre_hook(note).remove)
            trunk(input_ids=tokens, use_cache=False)


def outputs_of(
    module: nn.Module, names: Collection[str], x: Float[Tensor, "S T D"], context: Any
) -> tuple[
    dict[str, tuple[Float[Tensor, "S T _"], Float[Tensor, "S T _"]]], Float[Tensor, "S T D"]
]:
    """Run a layer or its attention.

    Args:
        module: the layer or attention.
        names: modules in it.
        x: its input.
        context: masks, positions and the kernel.

    Returns:
        Input and output of each of these modules, and the output of the layer.
    """
    calls: dict[str, tuple[Tensor, Tensor]] = {}
    with ExitStack() as stack:
        for name in names:

            def note(_: nn.Module, arguments: Any, output: Any, name: str = name) -> None:
                calls[name] = arguments[0], output

            stack.callback(module.get_submodule(name).register_forward_hook(note).remove)
        return calls, module(x, context)


class Held(Pass):
    """Hidden states of a held-out text, with the predictions of the original model."""

    def __init__(self, model: Any, tokens: Int[Tensor, "S T"]) -> None:
        super().__init__(model, tokens)
        self._before = [part.log_softmax(-1) for part in self._logits(self.states[-1])]
        self._loss = self._losses(self._before)
        self.before = _mean(self._loss)
        """Loss of the original, nats per token."""
        if not self.before.value < LARGEST:  # nor is NaN
            raise RunError(
                f"MODEL: its loss on held-out text is {self.before.value:.3g} nats per token, so "
                "that nothing can be compared with it; give a model that is not damaged."
            )

    @torch.no_grad()
    def cost(self, layers: Sequence[nn.Module], start: int) -> Cost:
        """Measure the cost of a model with other layers from index `start` on.

        Args:
            layers: all its layers from `start` on.
            start: number of layers before them, which are unchanged.

        Returns:
            KL divergence and increase of the loss, relative to the original.

        Cost: a forward pass from layer `start` on.
        """
        x = self.states[start]
        for layer in layers:
            x = layer(x, self.context)
        after = [part.log_softmax(-1) for part in self._logits(x)]
        pairs = zip(self._before, after, strict=True)
        kl = torch.cat([(before.exp() * (before - now)).sum(-1) for before, now in pairs])
        return Cost(kl=_mean(self._by_sequence(kl)), loss=_mean(self._losses(after) - self._loss))

    def _logits(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the logits of all tokens with a label, `ROWS` tokens at a time."""
        with torch.no_grad():
            for rows in self.model.model.final_norm(x[:, :-1]).flatten(0, 1).split(ROWS):
                yield self.model.lm_head(rows).float()

    def _losses(self, parts: list[Tensor]) -> Tensor:
        pairs = zip(parts, self.tokens[:, 1:].flatten().split(ROWS), strict=True)
        losses = [F.nll_loss(part, tokens, reduction="none") for part, tokens in pairs]
        return self._by_sequence(torch.cat(losses))

    def _by_sequence(self, values: Tensor) -> Tensor:
        means: Tensor = values.double().unflatten(0, (len(self.tokens), -1)).mean(-1)
        return means


def _mean(values: Float[Tensor, " S"]) -> Estimate:
    error = float(values.std()) / len(values) ** 0.5
    mean = float(values.mean())
    return Estimate(value=mean, standard_error=error, probes=len(values), method="measured")
