"""Add `position_ids` to left-padded batches, counted from each row's first token.

Models with learned positions (GPT-2, GPT-Neo, BERT) number positions from the batch's left edge and
ignore the mask, so that padding on the left changes the logits. Three forward passes of a padded
row detect such a model: as it is, with `position_ids`, and without its padding.
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
from hessblocks.errors import ArgumentError, out_of_memory

NEGLIGIBLE_CHANGE = 1e-3
"""Padding may change the logits by this share of their norm: rotary embeddings round so much."""
BETTER = 4
"""Add positions if they shrink the distance to the unpadded text's logits by this factor."""


class PaddingWarning(UserWarning):
    """Warning that padding on the left changes the logits, with the size of the change."""


def check_packing(batch: Batch) -> bool:
    """Check that packed sequences come without a key-value cache; tell whether there are any.

    Sequences are packed where positions start again within a row, without an attention mask.
    Without a cache, as in training, transformers keeps them apart; with one it does not.

    Returns:
        True if sequences are packed.

    Raises:
        ArgumentError: they are, and the batch asks for a cache.
    """
    places = batch.keywords.get("position_ids")
    if not isinstance(places, Tensor) or batch.attention_mask is not None:
        return False
    packed = bool((places.diff(dim=-1) != 1).any())
    use_cache = batch.keywords.get("use_cache")
    if packed and use_cache is not None and use_cache is not False:
        raise ArgumentError(
            f"batches: in batch {batch.number} (counted from 0) use_cache=True would let packed "
            "sequences see each other; leave it out, as in training"
        )
    return packed


class TextPositions:
    """Adds positions counted from each row's first token, if the model's logits need them."""

    def __init__(self, model: nn.Module) -> None:
        """Read the signature of `forward`; the first left-padded batch triggers the test passes.

        Args:
            model: model that takes the batches.
        """
        self._names = tuple(inspect.signature(model.forward).parameters)
        self.needed: bool | None = None
        """Whether the logits need positions; None before that was decided."""

    def put_into(self, batch: Batch, outputs: Callable[[Batch], Float[Tensor, "..."]]) -> Batch:
        """Add `position_ids` to a left-padded batch, if the model's logits need them.

        The most padded row of the first left-padded batch decides for all batches; this costs three
        forward passes of one row.

        Args:
            batch: batch as the caller gave it.
            outputs: computes a batch's logits, without a graph.

        Returns:
            The batch, with its other entries unchanged.
        """
        mask = None if self.needed is False else self._mask(batch)
        if mask is None or not _padding(mask).any():
            return batch
        if self.needed is None:
            self.needed = self._decide(batch, mask, outputs)
        return _counted(batch, mask) if self.needed else batch

    def _mask(self, batch: Batch) -> Shaped[Tensor, "rows tokens"] | None:
        """Find the attention mask, (rows, tokens); None if the batch has `position_ids`."""
        entries = {**dict(zip(self._names, batch.arguments, strict=False)), **batch.keywords}
        mask = entries.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.ndim != 2 or len(mask) != batch.rows:
            return None
        if entries.get("position_ids") is not None or bool((mask < 0).any()):
            return None  # an additive mask has 0 at tokens and negative numbers at padding
        return mask

    @torch.no_grad()
    def _decide(
        self, batch: Batch, mask: Shaped[Tensor, "rows tokens"], outputs: Callable[[Batch], Tensor]
    ) -> bool:
        """Compare the most padded row with its text without padding; warn if no way agrees."""
        number = int(_padding(mask).argmax())
        row, mask = batch.piece(number, number + 1), mask[number : number + 1]
        before = int(_padding(mask))
        plain = outputs(row)  # an error here does not come from our changes to the row
        alone = _tried(outputs, _without(row, mask.shape, before))
        counted = _tried(outputs, _counted(row, mask))
        change, helped = (_change(logits, alone, before) for logits in (plain, counted))
        rounding = 0.0 if alone is None else 16 * torch.finfo(alone.dtype).eps
        needed = change > rounding and helped < change / BETTER
        left = helped if needed else change
        if left > max(NEGLIGIBLE_CHANGE, rounding):
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
    """Add `position_ids`, counted from each row's first token, if any row is left-padded."""
    padding = _padding(mask)
    places = torch.arange(mask.shape[1], device=mask.device) - padding[:, None]
    return replace(batch, keywords={**batch.keywords, "position_ids": places.clamp(min=0)})


def _without(row: Batch, shape: torch.Size, before: int) -> Batch:
    """Remove the first `before` tokens of every per-token tensor but a decoder's."""

    def cut(value: Any) -> Any:
        of_tokens = isinstance(value, Tensor) and value.shape[:2] == shape
        return value[:, before:] if of_tokens else value

    named = {k: v if k.startswith("decoder_") else cut(v) for k, v in row.keywords.items()}
    return replace(row, keywords=named, arguments=tuple(map(cut, row.arguments)))


def _tried(outputs: Callable[[Batch], Tensor], batch: Batch) -> Tensor | None:
    """Call the model; return None if it raises an error other than out of memory."""
    try:
        return outputs(batch)
    except Exception as error:
        if out_of_memory(error):
            raise
        return None


def _change(logits: Tensor | None, alone: Tensor | None, before: int) -> float:
    """Compute ‖found − alone‖ / ‖alone‖ after cutting `before` padded positions off `logits`."""
    if logits is None or alone is None or logits.ndim != alone.ndim:
        return float("inf")
    for axis, (length, alone_length) in enumerate(zip(logits.shape, alone.shape, strict=True)):
        if length - alone_length == before:
            logits = logits.narrow(axis, before, alone_length)
            break
    if logits.shape != alone.shape:
        return float("inf")
    change = (logits - alone).nan_to_num().norm()
    return float(change / alone.nan_to_num().norm().clamp(min=torch.finfo(alone.dtype).tiny))
