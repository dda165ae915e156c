"""Last attention sub-block of a model as it stands in one forward pass.

What follows the last attention acts on each token by itself: that is what makes its curvature
exact.

Letters: B sequences, L tokens, N tokens with a label, D width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from hessblocks.curvature.last_layer.forward_pass import Seen
from hessblocks.curvature.last_layer.supported import ELSEWHERE
from hessblocks.curvature.last_layer.token_network import HiddenNetwork
from hessblocks.errors import ArgumentError
from hessblocks.theory import AttentionLayer


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
