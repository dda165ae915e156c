"""Choose how much of a model goes, which parts may, and how it is healed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hessblocks.settings.field_marks import OneOf, Range, Seed, above_0, at_least, check_ranges

SHARE = Range(lambda value: 0 <= value < 1, "a share from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class SimplifySettings:
    """What is saved, the text that costs are told by, and the training that follows."""

    save: Annotated[float, SHARE] = 0.15
    """Share of the parameters to save; 0: the table alone."""
    kinds: tuple[str, ...] = ()
    """Kinds of removal with commas, such as 'layer,mlp units'; all by default."""
    sequences: Annotated[int, at_least(4)] = 8
    """Windows that removals are measured on, and as many others to judge the result."""
    fitted: Annotated[int, at_least(2)] = 24
    """Windows that weights are refitted on, and forecasts made of."""
    tokens: Annotated[int, at_least(2)] = 64
    """Tokens of each window, 2 or more."""
    samples: Annotated[int, Range(lambda value: value != 1 and value >= 0, "0, or 2 or more")] = 32
    """Sampled gradients of the forecasts; 0: no forecasts."""
    steps: Annotated[int, at_least(0)] = 100
    """Updates of the healing; 0: none."""
    towards: Annotated[str, OneOf(("logits", "text"))] = "logits"
    """Targets of the healing: logits of the original, or the text."""
    learning_rate: Annotated[float, above_0("a rate")] = 1e-4
    """Largest learning rate of the healing (AdamW)."""
    batch: Annotated[int, at_least(1)] = 8
    """Windows of an update."""
    seed: Seed = 0
    """Random seed of the windows, samples and batches."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_ranges(self)
