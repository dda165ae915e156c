"""Batches as they come (dict, pair, tensor) in one form."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Shaped
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
    labels: Shaped[Tensor, "..."] | None = None
    """Labels, or None where the batch has none."""
    number: int = 0
    """Place of the batch in the set that was given, counted from 0."""
    idle: bool = False
    """Whether it counts nothing: a process without work runs it beside others, for the weights it holds."""
    first: int = 0
    """Place of its first row in that batch, where it is a piece of it."""

    @property
    def inputs(self) -> Shaped[Tensor, "rows ..."]:
        """Token ids or features, the model's first input."""
        for name in ("input_ids", "pixel_values", "inputs_embeds"):
            if name in self.keywords:
                found: Tensor = self.keywords[name]
                return found
        first: Tensor = self.arguments[0] if self.arguments else next(iter(self.keywords.values()))
        return first

    @property
    def rows(self) -> int:
        """Sequences, images or examples."""
        return self.inputs.shape[0]

    def digest(self) -> bytes:
        """A fingerprint of all tensors of the batch: form, dtype, shape and values."""
        seen = hashlib.sha256()

        def note(tensor: Tensor) -> Tensor:
            seen.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            seen.update(
                tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            )
            return tensor

        _map(self.raw, note)
        return seen.digest()

    def split(self, rows: int) -> list[Batch]:
        """The same batch in pieces of at most so many rows."""
        if rows >= self.rows:
            return [self]
        return [
            replace(
                unpack(self._some(slice(start, start + rows)), self.inputs.device),
                number=self.number,
                first=self.first + start,
            )
            for start in range(0, self.rows, rows)
        ]

    def _some(self, part: slice) -> Any:
        """Some rows: of every tensor that has as many as the batch."""
        return _map(self.raw, lambda t: t[part] if t.ndim and t.shape[0] == self.rows else t)

    @property
    def attention_mask(self) -> Shaped[Tensor, "rows ..."] | None:
        """The mask of padded positions, where given."""
        return self.keywords.get("attention_mask")


def unpack(batch: Any, device: torch.device, *, number: int = 0) -> Batch:
    """One batch as it came, in parts and on the model's device.

    Args:
        batch: a mapping of keyword arguments, with `labels` beside them; a pair (inputs, labels) whose
            inputs are a tensor, several tensors or a mapping; or the inputs alone. Lists of numbers
            count as tensors.
        device: where the model is.
        number: its place in the set.

    Returns:
        The batch, labels apart.

    Raises:
        ArgumentError: none of these.
    """
    raw = _map(batch, lambda tensor: tensor.to(device))
    if isinstance(raw, tuple | list) and 1 <= len(raw) <= 2:
        inputs, labels = raw if len(raw) == 2 else (raw[0], None)
    else:
        inputs, labels = raw, None
    if isinstance(inputs, Mapping):
        keywords = dict(inputs)
        within = keywords.pop("labels", None)
        if not keywords:
            raise ArgumentError("batches: a batch has no inputs besides labels")
        labels = within if labels is None else labels
        return Batch(raw=raw, keywords=keywords, labels=_checked(labels), number=number)
    arguments = (inputs,) if isinstance(inputs, Tensor) else inputs
    if isinstance(arguments, tuple | list) and all(isinstance(t, Tensor) for t in arguments):
        return Batch(raw=raw, arguments=tuple(arguments), labels=_checked(labels), number=number)
    raise ArgumentError(
        "batches: expected dicts of tensors, pairs (inputs, labels) or tensors, "
        f"got {type(batch).__name__}"
    )


def unpack_all(batches: Iterable[Any], device: torch.device) -> list[Batch]:
    """All batches on the model's device; a single dict, tensor or pair counts as one batch.

    Returns:
        The batches, numbered as they came.

    Returns:
        At least one batch.

    Raises:
        ArgumentError: there is none, or one of an unknown form.
    """
    is_pair = isinstance(batches, tuple) and len(batches) == 2 and isinstance(batches[1], Tensor)
    if isinstance(batches, Mapping | Tensor) or is_pair:
        batches = [batches]
    unpacked = [unpack(batch, device, number=number) for number, batch in enumerate(batches)]
    if not unpacked:
        raise ArgumentError("batches: expected at least one batch, got none")
    return unpacked


def _checked(labels: Any) -> Tensor | None:
    if labels is None or isinstance(labels, Tensor):
        return labels
    raise ArgumentError(f"batches: expected labels in one tensor, got {type(labels).__name__}")


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same with the function applied to every tensor; lists of numbers, also nested, count as tensors."""
    first = value
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(value, list) and isinstance(first, int | float):
        try:
            return function(torch.tensor(value))
        except (ValueError, TypeError) as error:
            raise ArgumentError(
                f"batches: lists of numbers must have equal lengths ({error}); pad them and give an attention_mask"
            ) from error
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map(item, function) for key, item in value.items()}
    if isinstance(value, tuple | list):
        kind = tuple if isinstance(value, tuple) else list
        return kind(_map(item, function) for item in value)
    return value
