"""Choose which changes of a pretrained model are priced, or which parts are taken."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from hessblocks.errors import ArgumentError
from hessblocks.settings.field_marks import OneOf, Range, Seed, above_0, at_least, check_ranges

NOT_NEGATIVE = Range(lambda value: value >= 0, "0 or more")


@dataclass(frozen=True, kw_only=True)
class PricingSettings:
    """Changes of each weight matrix, and the text on which their cost is forecast."""

    round: tuple[int, ...] = ()
    """Bits that matrices are rounded to, from 2 to 8, with commas, such as 2,3,4,8."""
    prune: tuple[float, ...] = ()
    """Shares of the smallest entries to set to 0, with commas, such as 0.1,0.3."""
    merge: str | None = None
    """Model of the same shape to average with, half and half: a folder or a GGUF file."""
    allocate: Annotated[float | None, above_0("bits per entry")] = None
    """Mean bits per entry to share out among the matrices; needs --round."""
    check: Annotated[int, NOT_NEGATIVE] = 20
    """Changes made and measured on other text, one at a time, besides all together; 0: none."""
    samples: Annotated[int, at_least(2)] = 32
    """Sampled gradients, each of a piece of the text of its own."""
    sequences: Annotated[int, at_least(2)] = 32
    """Windows of the text for the forecasts, and as many others for the check."""
    tokens: Annotated[int, at_least(2)] = 96
    """Tokens of each window, 2 or more."""
    seed: Seed = 0
    """Random seed of the windows and of the samples."""

    def __post_init__(self) -> None:
        """Read the numbers, and check ranges and what goes together."""
        bits = tuple(_number("--round", int, one, 2, 8) for one in self.round)
        shares = tuple(_number("--prune", float, one, 1e-9, 1 - 1e-9) for one in self.prune)
        object.__setattr__(self, "round", bits)
        object.__setattr__(self, "prune", shares)
        check_ranges(self)
        if self.allocate is not None and self.allocate < min(bits, default=self.allocate + 1):
            raise ArgumentError(
                f"--allocate: {self.allocate:g} bits are shared out among those of --round, of "
                f"which the fewest are {min(bits, default='missing')}; add fewer ones."
            )


def _number(name: str, kind: Any, word: Any, least: float, most: float) -> Any:
    """Read one of several numbers."""
    with suppress(ValueError):
        if least <= (found := kind(word)) <= most:
            return found
    expected = "bits from 2 to 8" if kind is int else "shares between 0 and 1"
    raise ArgumentError(f"{name}: expected {expected}, got {word!r}.")


SHARE = Range(lambda value: 0 <= value < 1, "a share from 0, below 1")


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
