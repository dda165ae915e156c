"""The losses of the Hessian paper on the addition task, as `Problem` takes them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hessblocks.curvature.losses import LossFunction
from hessblocks.labels import IGNORED


def one_hot_squares(outputs: Any, batch: Any) -> Tensor:
    """(logit − one-hot)² of every class at every answer digit, (digits · classes,)."""
    logits = outputs.logits[:, :-1]
    labels = batch["labels"][:, 1:]
    valid = labels != IGNORED
    target = F.one_hot(labels[valid], logits.shape[-1])
    squares: Tensor = (logits[valid] - target).square()
    return squares.flatten()


LOSSES: dict[str, str | LossFunction] = {"cross-entropy": "causal-lm", "squares": one_hot_squares}
"""Name → loss; both are means, over the answer digits and over their classes where there are several."""
