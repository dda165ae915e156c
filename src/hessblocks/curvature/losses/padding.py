"""Give left-padded batches the positions of the text itself.

A learned table of positions (GPT-2, GPT-Neo, BERT) is read from the edge of the batch on, whatever
the mask says. So a text that is padded on the left is another text to the model. Three passes show
whether a model does this: a padded row as it is, with `position_ids`, and without its padding.
"""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from hessblocks.curvature.losses.batches import Batch
from hessblocks.errors import out_of_memory

ALIKE = 1e-3
"""Largest change by padding, as a share of the norm of the logits, that rounding of rotations may
explain."""
BETTER = 4
"""Positions are given where they bring the logits so many times nearer to those of the text
alone."""


class PaddingWarning(UserWarning):
    """Warning that padding on the left changes the logits; the message says by how much."""


class TextPositions:
    """Positions counted from each row's first token, for a model that needs to be given them."""

    def __init__(self, model: nn.Module) -> None:
        """Read the signature; nothing is run before the first batch with padding on the left.

        Args:
            model: that the batches are for.
        """
        self._names = tuple(inspect.signature(model.forward).parameters)
        self._needed: bool | None = None

    def put_into(
        self,
        batch: Batch,
        outputs: Callable[[Batch], Float[Tensor, "..."]],
        most: Callable[[int], int] = int,
    ) -> Batch:
        """Add `position_ids` to a left-padded batch, if that gives the text's own logits.

        One row, that with the most padding in the first such batch, decides for all; it costs three
        of its forward passes.

        Args:
            batch: as it came.
            outputs: logits of a batch, or what the last layer makes them from, without a graph.
            most: the largest of a number over processes that must all pass alike.

        Returns:
            The batch, its other entries untouched.
        """
        mask = None if self._needed is False else self._mask(batch)
        if self._needed is None:
            padded = mask is not None and bool(_padding(mask).any())
            if not most(int(padded)):
                return batch
            self._needed = bool(most(int(self._decide(batch, mask if padded else None, outputs))))
        return _counted(batch, mask) if self._needed and mask is not None else batch

    def _mask(self, batch: Batch) -> Shaped[Tensor, "rows tokens"] | None:
        """Find the mask of padded tokens; none if the batch gives positions itself."""
        entries = {**dict(zip(self._names, batch.arguments, strict=False)), **batch.keywords}
        mask = entries.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.ndim != 2 or len(mask) != batch.rows:
            return None
        if entries.get("position_ids") is not None or bool((mask < 0).any()):
            return None  # a mask that is added to scores has 0 at tokens, not at padding
        return mask

    @torch.no_grad()
    def _decide(
        self,
        batch: Batch,
        mask: Shaped[Tensor, "rows tokens"] | None,
        outputs: Callable[[Batch], Tensor],
    ) -> bool:
        """Compare the row with most padding to its text alone; warn where nothing agrees."""
        if mask is None:  # another process decides, and this one passes alike
            _ = [_tried(outputs, replace(batch.piece(0, 1), idle=True)) for _ in range(3)]
            return False
        number = int(_padding(mask).argmax())
        row, mask = replace(batch.piece(number, number + 1), idle=True), mask[number : number + 1]
        before = int(_padding(mask))
        plain = outputs(row)  # what fails here has nothing to do with padding
        alone = _tried(outputs, _without(row, mask.shape, before))
        counted = _tried(outputs, _counted(row, mask))
        change, helped = (_change(found, alone, before) for found in (plain, counted))
        rounding = 0.0 if alone is None else 16 * torch.finfo(alone.dtype).eps
        needed = change > rounding and helped < change / BETTER
        left = helped if needed else change
        if left > max(ALIKE, rounding):
            by = f"by {left:.2g} of their norm" if left < float("inf") else "in number, or fail"
            warnings.warn(
                f"curvature: logits of a row padded on the left (batch {batch.number}, counted "
                f"from 0) differ {by} from those of its text without padding, and position_ids do "
                "not mend that: the loss is not that of the texts; pad on the right, or give the "
                "batches what the model reads positions from",
                PaddingWarning,
                stacklevel=2,
            )
        return needed


def _padding(mask: Shaped[Tensor, "rows tokens"]) -> Int[Tensor, " rows"]:
    """Count the padding before each row's first token."""
    real = mask != 0
    return (real.cumsum(1) == 0).sum(1) * real.any(1)


def _counted(batch: Batch, mask: Shaped[Tensor, "rows tokens"]) -> Batch:
    """Add positions, counted from each row's first token, to rows with padding in front."""
    padding = _padding(mask)
    if not padding.any():
        return batch
    places = torch.arange(mask.shape[1], device=mask.device) - padding[:, None]
    return replace(batch, keywords={**batch.keywords, "position_ids": places.clamp(min=0)})


def _without(row: Batch, shape: torch.Size, before: int) -> Batch:
    """Cut the padding out of every entry of a row's tokens; a decoder's entries stay."""

    def cut(value: Any) -> Any:
        of_tokens = isinstance(value, Tensor) and value.shape[:2] == shape
        return value[:, before:] if of_tokens else value

    named = {k: v if k.startswith("decoder_") else cut(v) for k, v in row.keywords.items()}
    return replace(row, keywords=named, arguments=tuple(map(cut, row.arguments)))


def _tried(outputs: Callable[[Batch], Tensor], batch: Batch) -> Tensor | None:
    """Call the model; None if it takes no such batch."""
    try:
        return outputs(batch)
    except Exception as error:
        if out_of_memory(error):
            raise
        return None


def _change(found: Tensor | None, alone: Tensor | None, before: int) -> float:
    """Compare the text's logits with those of the text alone, as a share of their norm."""
    if found is None or alone is None or found.ndim != alone.ndim:
        return float("inf")
    for axis, (whole, own) in enumerate(zip(found.shape, alone.shape, strict=True)):
        if whole - own == before:
            found = found.narrow(axis, before, own)
            break
    if found.shape != alone.shape:
        return float("inf")
    change = (found - alone).nan_to_num().norm()
    return float(change / alone.nan_to_num().norm().clamp(min=torch.finfo(alone.dtype).tiny))
