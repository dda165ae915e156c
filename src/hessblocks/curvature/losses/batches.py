"""Convert a caller's batches (dict, pair or tensor) to one form, `Batch`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hessblocks.errors import ArgumentError, RunError, in_units

SAMPLED = 1 << 16
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NON_TOKEN_INPUTS = ("position_ids", "token_type_ids")
"""Integer inputs, besides masks, that are not token ids."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch, split into the model's inputs and the loss's labels."""

    raw: Any
    """The batch as the caller gave it, on the model's device; the argument of a callable loss."""
    arguments: tuple[Any, ...] = ()
    """Positional arguments of the model."""
    keywords: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the model, without `labels`."""
    labels: Shaped[Tensor, "..."] | None = None
    """Labels, or None where the batch has none."""
    number: int = 0
    """Index of the batch in the caller's data set, counted from 0."""
    first: int = 0
    """Index, in the caller's batch, of the first row of this microbatch."""

    @property
    def inputs(self) -> Shaped[Tensor, "rows ..."]:
        """Token ids or features: the first positional argument, else the input with a usual name.

        If neither exists, it is the first token ids, else the first input that is not a mask.
        """
        usual = ("input_ids", "pixel_values", "inputs_embeds")
        named = _tensors(self.keywords)
        others = (self.ids or _without_masks(named) or named).values()
        preferred = (self.keywords[name] for name in usual if name in self.keywords)
        first: Tensor = next(iter((*self.arguments, *preferred, *others)))
        return first

    @property
    def ids(self) -> dict[str, Int[Tensor, "rows tokens"]]:
        """Inputs that may be token ids, by name; only `input_ids` if there is such an input."""
        usual = {k: v for k, v in self.keywords.items() if k == "input_ids"}
        named = usual or _without_masks(_tensors(self.keywords))
        return {k: v for k, v in named.items() if v.ndim == 2 and v.dtype in WHOLE}

    @property
    def rows(self) -> int:
        """Number of sequences, images or examples."""
        return self.inputs.shape[0]

    def tensors(self) -> list[Shaped[Tensor, "..."]]:
        """List all tensors of the batch."""
        return [leaf for leaf in tree_leaves(self.raw) if isinstance(leaf, Tensor)]

    def digest(self, *, sampled: bool = False) -> bytes:
        """Hash dtype, shape and values of all tensors of the batch.

        Args:
            sampled: hash only 65,536 to 131,072 evenly spaced values of each larger tensor.

        Returns:
            SHA-256, 32 bytes.
        """
        hasher = hashlib.sha256()
        for tensor in self.tensors():
            hasher.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            flat = tensor.detach().flatten()
            if sampled:
                flat = flat[:: max(1, flat.numel() // SAMPLED)]
            hasher.update(flat.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return hasher.digest()

    def split(self, rows: int) -> list[Batch]:
        """Split the batch into microbatches of at most `rows` rows."""
        if rows >= self.rows:
            return [self]
        return [self.piece(start, start + rows) for start in range(0, self.rows, rows)]

    def piece(self, start: int, stop: int) -> Batch:
        """Return rows `start` to `stop` − 1, counted from 0, as a microbatch."""
        cut = self._some(slice(start, stop))
        piece = unpack(cut, self.inputs.device, number=self.number)
        return replace(piece, first=self.first + start)

    def _some(self, part: slice) -> Any:
        """Slice axis 0 of every tensor whose axis 0 has length `rows`."""
        return _map(self.raw, lambda t: t[part] if t.ndim and t.shape[0] == self.rows else t)

    @property
    def attention_mask(self) -> Shaped[Tensor, "rows ..."] | None:
        """Attention mask, or None if the batch has none."""
        return self.keywords.get("attention_mask")


def unpack(batch: Any, device: torch.device | None, *, number: int = 0) -> Batch:
    """Split one batch into inputs and labels, on the model's device.

    Args:
        batch: a mapping of keyword arguments, with `labels` beside them; a pair (inputs, labels)
            whose inputs are a tensor, several tensors or a mapping; or the inputs alone. Arrays and
            lists of numbers count as tensors.
        device: the model's device; None: leave each tensor on its device.
        number: index of the batch in the caller's data set.

    Returns:
        The batch, with its labels separate.

    Raises:
        ArgumentError: the batch has another form, or is three or more tensors without names.
    """
    raw = _map(batch, lambda tensor: _ordinary(tensor if device is None else tensor.to(device)))
    pair = isinstance(raw, tuple | list) and 1 <= len(raw) <= 2
    inputs, labels = (*raw, None)[:2] if pair else (raw, None)
    keywords: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        keywords, inputs = dict(inputs), ()
        within = keywords.pop("labels", None)
        labels = within if labels is None else labels
        if not _tensors(keywords):
            raise ArgumentError("batches: a batch has no inputs besides labels")
    if isinstance(raw, tuple | list) and len(raw) > 2 and all(map(_is_single_tensor, raw)):
        raise ArgumentError(
            f"batches: {len(raw)} tensors without names do not tell which are labels; name them "
            'in a dict, {"input_ids": ..., "labels": ...}, or give a pair (inputs, labels)'
        )
    arguments = (inputs,) if isinstance(inputs, Tensor) else inputs
    if not (isinstance(arguments, tuple | list) and all(isinstance(t, Tensor) for t in arguments)):
        raise ArgumentError(
            "batches: expected dicts of tensors, pairs (inputs, labels) or tensors, "
            f"got {type(batch).__name__}"
        )
    if not isinstance(labels, Tensor | None):
        raise ArgumentError(f"batches: expected labels in one tensor, got {type(labels).__name__}")
    return Batch(
        raw=raw, arguments=tuple(arguments), keywords=keywords, labels=labels, number=number
    )


class Batches:
    """Sequence of batches that can be read repeatedly; one at a time is on the model's device.

    A list stays in memory. The batches of a loader are cached if they fit the limit. Otherwise each
    pass reads the loader again, and a hash of each batch checks that it is the same.
    """

    def __init__(
        self, batches: Iterable[Any], device: torch.device, *, limit: int, number: int | None = None
    ) -> None:
        """Read everything once.

        Args:
            batches: batches, or a single dict, tensor or pair.
            device: the model's device.
            limit: bytes of batches that may be cached if `batches` is not a list.
            number: take only the first `number` batches; None: all.

        Raises:
            ArgumentError: there is no batch, a batch is empty or of an unknown form, a list may be
                a pair, or an iterator returns more than `limit` bytes.
        """
        if isinstance(batches, tuple) and batches:  # the inputs of a pair may be of any form
            is_one = all(map(_is_single_tensor, batches[1:] if len(batches) == 2 else batches))
        else:
            is_one = isinstance(batches, Mapping | Tensor | np.ndarray)
        if is_one:
            batches = [batches]
        if isinstance(batches, list) and len(batches) == 2 and _same_length(*batches):
            raise ArgumentError(
                "batches: a list of two tensors of equal length may be a pair or two batches; give "
                "a pair as a tuple, (inputs, labels), and two batches as [(first,), (second,)]"
            )
        if not isinstance(batches, Iterable):
            raise ArgumentError(
                "batches: expected a batch, a list of them or a DataLoader, got "
                f"{type(batches).__name__}"
            )
        if number is not None and not (isinstance(number, Integral) and number >= 1):
            raise ArgumentError(f"num_batches: expected at least 1, got {number}")
        self._given, self._device, self._number = batches, device, number
        self._kept: list[Batch] | None = []
        self._seen: list[bytes] = []
        self.rows: list[int] = []
        """Number of rows of each batch."""
        self.compared: set[tuple[int, Hashable]] = set()
        """Rows of microbatches that gave the same logits as whole batches, and the model's form."""
        self._read_first(limit)
        if not self.rows:
            raise ArgumentError("batches: expected at least one batch, got none")

    def _read_first(self, limit: int) -> None:
        in_memory, once = isinstance(self._given, list | tuple), isinstance(self._given, Iterator)
        nbytes = longest = 0
        for number, raw in enumerate(islice(self._given, self._number)):
            batch = unpack(raw, None, number=number)
            if not batch.inputs.numel():
                lack = "inputs of length 0" if batch.rows else "no rows"
                raise ArgumentError(
                    f"batches: batch {number} (counted from 0) has {lack}; leave it out"
                )
            if (tokens := batch.inputs.numel() // max(1, batch.rows)) > longest or not number:
                longest, self._widest = tokens, _map(batch._some(slice(1)), Tensor.clone)
            self.rows.append(batch.rows)
            if not in_memory:
                nbytes += sum(tensor.nbytes for tensor in batch.tensors())
                self._seen.append(b"" if once else batch.digest(sampled=True))
            if nbytes > limit and once:
                raise ArgumentError(
                    "batches: an iterator can be read only once, and what it gives does not fit "
                    f"into {in_units(limit)}; give a DataLoader or another iterable that can be "
                    "read again, take fewer with num_batches, or raise memory_limit"
                )
            if nbytes > limit:
                self._kept = None
            if self._kept is not None:
                self._kept.append(batch)

    def digest(self) -> str:
        """Hash all values of all batches; reads them all once."""
        return hashlib.sha256(b"".join(batch.digest() for batch in self)).hexdigest()

    @property
    def versions(self) -> tuple[int, ...]:
        """Version counters of cached tensors; writes by `.data` or numpy do not change them."""
        tensors = (tensor for batch in self._kept or () for tensor in batch.tensors())
        return tuple(tensor._version for tensor in tensors if not tensor.is_inference())

    @property
    def widest_row(self) -> Batch:
        """Copy one row of the batch with the most inputs per row."""
        return unpack(self._widest, self._device)

    def __len__(self) -> int:
        """Count the batches."""
        return len(self.rows)

    def __getitem__(self, number: int) -> Batch:
        """Read one batch, counted from 0."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        return next(islice(self, number, None))

    def __iter__(self) -> Iterator[Batch]:
        """Read every batch, on the model's device.

        Raises:
            RunError: a loader returns other batches than in the first reading.
        """
        for batch in self._again() if self._kept is None else self._kept:
            yield unpack(batch.raw, self._device, number=batch.number)

    def _again(self) -> Iterator[Batch]:
        number = -1
        with torch.random.fork_rng(devices=[]):  # a DataLoader draws a seed at its start
            items = iter(self._given)
        for number, raw in enumerate(islice(items, self._number)):
            batch = unpack(raw, None, number=number)
            if number >= len(self) or batch.digest(sampled=True) != self._seen[number]:
                raise self._changed(number)
            yield batch
        if number + 1 < len(self):
            raise self._changed(number + 1)

    def _changed(self, number: int) -> RunError:
        return RunError(
            f"batches: batch {number} (counted from 0) is not what it was when the loader was "
            "first read; what is read anew for each product must be the same each time: give a "
            "DataLoader with shuffle=False and without random numbers, raise memory_limit so that "
            "the batches are kept, or give a list"
        )


def _ordinary(tensor: Tensor) -> Tensor:
    """Copy a tensor made under `torch.inference_mode()`, which autograd cannot save."""
    return tensor.clone() if tensor.is_inference() else tensor


def _is_single_tensor(value: Any) -> bool:
    """Tell whether a value is one tensor: itself, an array or (nested) lists of numbers."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, Tensor | np.ndarray | int | float)


def _same_length(first: Any, second: Any) -> bool:
    """Tell whether both are tensors or arrays of equal length on axis 0."""
    both = isinstance(first, Tensor | np.ndarray) and isinstance(second, Tensor | np.ndarray)
    return both and tuple(first.shape[:1]) == tuple(second.shape[:1])


def _tensors(keywords: Mapping[str, Any]) -> dict[str, Tensor]:
    """List the inputs that have rows."""
    return {k: v for k, v in keywords.items() if isinstance(v, Tensor) and v.ndim}


def _without_masks(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k: v for k, v in named.items() if "mask" not in k and k not in NON_TOKEN_INPUTS}


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor; arrays and (nested) lists of numbers count as tensors."""
    first = value
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(value, list) and isinstance(first, int | float):
        try:
            return function(torch.tensor(value))
        except (ValueError, TypeError) as error:
            raise ArgumentError(
                f"batches: lists of numbers must have equal lengths ({error}); pad them and give "
                "an attention_mask"
            ) from error
    if isinstance(value, np.ndarray):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map(item, function) for key, item in value.items()}
    if isinstance(value, tuple | list):
        kind = tuple if isinstance(value, tuple) else list
        return kind(_map(item, function) for item in value)
    return value
