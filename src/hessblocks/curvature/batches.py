"""Batches as they come (dict, pair, tensor) in one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch, taken apart into what the model sees and what the loss sees."""

    raw: Any
    """As it came, on the model's device; a callable loss gets this."""
    arguments: tuple[Any, ...] = ()
    """Positional arguments of the model."""
    keywords: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the model; `labels` never is among them."""
    labels: Tensor | None = None
    """Labels, or None where the batch has none."""

    @property
    def inputs(self) -> Tensor:
        """Token ids or features, the model's first input."""
        for name in ("input_ids", "pixel_values", "inputs_embeds"):
            if name in self.keywords:
                found: Tensor = self.keywords[name]
                return found
        first: Tensor = self.arguments[0] if self.arguments else next(iter(self.keywords.values()))
        return first

    @property
    def attention_mask(self) -> Tensor | None:
        """The mask of padded positions, where given."""
        return self.keywords.get("attention_mask")


def unpack(batch: Any, device: torch.device) -> Batch:
    """One batch as it came, in parts and on the model's device.

    Args:
        batch: a mapping of keyword arguments, with `labels` beside them; a pair (inputs, labels); or
            the inputs alone.
        device: where the model is.

    Raises:
        ArgumentError: none of these.
    """
    raw = _move(batch, device)
    if isinstance(raw, Mapping):
        keywords = dict(raw)
        labels = keywords.pop("labels", None)
        if not keywords:
            raise ArgumentError("batches: a batch has no inputs besides labels")
        return Batch(raw=raw, keywords=keywords, labels=labels)
    if isinstance(raw, Tensor):
        return Batch(raw=raw, arguments=(raw,))
    if isinstance(raw, tuple | list) and 1 <= len(raw) <= 2:
        return Batch(raw=raw, arguments=(raw[0],), labels=raw[1] if len(raw) == 2 else None)
    raise ArgumentError(
        "batches: expected dicts of tensors, pairs (inputs, labels) or tensors, "
        f"got {type(batch).__name__}"
    )


def unpack_all(batches: Iterable[Any], device: torch.device) -> list[Batch]:
    """All batches; a single dict, or a single tensor, counts as one batch.

    Raises:
        ArgumentError: there is none, or one of an unknown form.
    """
    if isinstance(batches, Mapping | Tensor):
        batches = [batches]
    unpacked = [unpack(batch, device) for batch in batches]
    if not unpacked:
        raise ArgumentError("batches: expected at least one batch, got none")
    return unpacked


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _move(item, device) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_move(item, device) for item in value)
    return value
