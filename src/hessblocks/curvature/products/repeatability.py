"""Check that a model's outputs are repeatable and that the rows of its batches are independent.

All products use evaluation mode and the same batches, which removes most randomness. A warning
names what was switched off; randomness that remains is an error.

Microbatches must give the same outputs as the whole batch. They do not if rows depend on each other
(experts with limited capacity, a norm over the batch), or if the first axis of an entry is no batch
axis, but has the same length.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from hessblocks.curvature.losses import Batch, Readout
from hessblocks.curvature.products.distributed import FAILED
from hessblocks.curvature.products.forward import Parameters
from hessblocks.errors import ArgumentError, RunError, out_of_memory
from hessblocks.linalg import working_dtype

SAME = 1e-4
"""Two passes agree if no logit changes by more than this share of the largest logit."""
MOVED = 1e-2
"""Relative perturbation of the parameters for a second check, which breaks ties between experts."""
SHUT = 1e-6
"""Largest entry of a parameter that counts as a closed gate."""


class RepeatabilityWarning(UserWarning):
    """Warning that something random was switched off; the message says what."""


def notice_randomness(model: nn.Module, batches: Any) -> None:
    """Warn of dropout, shuffling and the like, which are switched off.

    Args:
        model: the caller's model, perhaps in training mode.
        batches: the caller's batches, before they are read.
    """
    for message in (*_model_notices(model), *_loader_notices(batches)):
        warnings.warn(f"curvature: {message}", RepeatabilityWarning, stacklevel=3)


def check_same(first: Readout, second: Readout) -> None:
    """Check that two passes over the same rows gave the same logits.

    Raises:
        RunError: the logits differ by more than rounding.
    """
    scale = change = 0.0
    for a, b in zip(first.pieces(), second.pieces(), strict=True):
        scale = max(scale, float(a.abs().max()))
        change = max(change, float((a - b).abs().max()))
    if change > SAME * scale:
        raise RunError(
            f"curvature: two passes over the same row differ by {change:.2g} (largest logit "
            f"{scale:.2g}) although the model is in evaluation mode, so nothing computed from it "
            "can be repeated; look for torch.nn.functional.dropout without training=self.training, "
            "other random numbers, or a cache in the batch that a pass fills"
        )


def _model_notices(model: nn.Module) -> Iterator[str]:
    training = [(name, module) for name, module in model.named_modules() if module.training]
    if dropout := [name for name, module in training if _dropped(module) > 0]:
        yield (
            f"dropout is switched off ({_listed(dropout)} in training mode); "
            "the loss is that of model.eval()"
        )
    if norms := [name for name, module in training if isinstance(module, _BatchNorm)]:
        yield (
            f"batch norm uses its running statistics ({_listed(norms)} in training mode), "
            "since those of a batch would tie its rows together"
        )


def _dropped(module: nn.Module) -> float:
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):  # dropout is a number of theirs
        return module.dropout
    return module.p if isinstance(module, _DropoutNd) else 0


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0] or 'the model'}{rest}"


def _loader_notices(batches: Any) -> Iterator[str]:
    if not isinstance(batches, DataLoader):
        return
    sampler = batches.sampler
    seeded = getattr(sampler, "generator", None) is not None or batches.generator is not None
    if isinstance(sampler, RandomSampler | WeightedRandomSampler) and not seeded:
        dropped = ", and it drops a random last batch" if batches.drop_last else ""
        yield (
            f"the loader shuffles{dropped}; its batches are taken in one order, so that all "
            "products see the same, but another run sees others: give it "
            "generator=torch.Generator().manual_seed(0)"
        )


@dataclass(frozen=True, kw_only=True)
class RowComparison:
    """Comparison of a batch's outputs, computed whole, with those computed in microbatches."""

    problem: Any
    """Model and batches."""
    twice: bool
    """Whether the model runs as for second derivatives."""
    rows_per_pass: Callable[[int], int]
    """Maps the number of rows of a batch to the most rows of its microbatches."""
    rows_that_fit: int
    """Number of rows that fit the memory without a graph, and are compared at a time."""
    dtype: torch.dtype
    """Narrowest dtype that the model computes in."""

    def outputs(self, batch: Batch, point: Parameters) -> Float[Tensor, "..."]:
        """Compute the logits at `point`; for lazy logits, the last layer's inputs h."""
        with torch.no_grad():
            readout: Readout = self.problem.forward(batch, point, twice=self.twice)[0]
        return readout.hidden

    def cuts(self, rows: int) -> bool:
        """Tell whether a batch of `rows` rows is split."""
        return rows > self._rows_per_pass(rows)

    def refusal(self, batch: Batch) -> ArgumentError | None:
        """Return an error if a batch must not be split.

        Rounding alone may send a token at a tie between two experts to one of them in the whole
        batch and to the other in a microbatch. At perturbed parameters other tokens have ties, but
        the same rows depend on each other. A gate of 0, as it is at the start of training, hides
        what its branch does with other rows, but not from derivatives: it is opened too.

        Args:
            batch: a batch that would be split.

        Returns:
            The error, or None if the batch may be split.
        """
        here = self.problem.parameters
        try:
            change = self._change(batch, [here])
            if change > self._bound and not self.problem.sharded:
                change = self._change(batch, [here, _moved(here)])
            gates = not self.problem.sharded and any(bool(_gates(p).any()) for p in here.values())
            if gates and change <= self._bound:
                opened = [_opened(here, seed) for seed in (0, 1)]
                if (change := self._change(batch, opened[:1])) > self._bound:
                    change = self._change(batch, opened)
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            return self._sentence(batch, f"fail ({str(error).splitlines()[0]})")
        if math.isnan(change):
            return self._sentence(batch, "give another number of outputs")
        if change > self._bound:
            return self._sentence(batch, f"differ by {change:.2g} of their norm")
        return None

    @property
    def _bound(self) -> float:
        """Largest relative change that counts as rounding: √eps, 3e-4 in float32."""
        return math.sqrt(torch.finfo(self.dtype).eps)

    def _rows_per_pass(self, rows: int) -> int:
        return max(1, self.rows_per_pass(rows))

    def _rows_per_check(self, rows: int) -> int:
        """Count the rows that are compared at a time: at least two microbatches."""
        piece = self._rows_per_pass(rows)
        return max(2, self.rows_that_fit // piece) * piece

    def _change(self, batch: Batch, points: Sequence[Parameters]) -> float:
        """Compute the root mean square of the rows' relative changes."""
        squares = 0.0
        pieces = iter(batch.split(self._rows_per_pass(batch.rows)))
        for group in batch.split(self._rows_per_check(batch.rows)):
            members = list(islice(pieces, math.ceil(group.rows / self._rows_per_pass(batch.rows))))
            changes = [self._changes(group, members, point) for point in points]
            squares += float(torch.stack(changes).amin(0).square().sum())
        return math.sqrt(squares / batch.rows)

    def _changes(
        self, group: Batch, pieces: Sequence[Batch], point: Parameters
    ) -> Float[Tensor, "rows entries"]:
        """Compute each output's change relative to its row's norm; NaN if the counts differ."""
        together = self.outputs(group, point).flatten()
        other_number = together.new_full((group.rows, 1), math.nan)
        if together.numel() % group.rows:
            return other_number
        together = _finite(together).view(group.rows, -1)
        norms = together.norm(dim=1, keepdim=True)
        scale = norms.maximum(norms.median()).clamp(min=torch.finfo(norms.dtype).tiny)
        changes, start = torch.empty_like(together), 0
        for piece in pieces:
            rows = slice(start, start := start + piece.rows)
            alone = self.outputs(piece, point).flatten()
            if alone.numel() != together[rows].numel():
                return other_number
            change = (_finite(alone).view(piece.rows, -1) - together[rows]).abs()
            changes[rows] = change / scale[rows]
        return changes

    def _sentence(self, batch: Batch, finding: str) -> ArgumentError:
        rows = self._rows_per_pass(batch.rows)
        return ArgumentError(
            f"batches: batch {batch.number} (counted from 0) whole and in pieces of {rows} "
            f"row{'s' * (rows > 1)} {finding}, so that its rows depend on each other. Each entry "
            "of a batch is cut along its first axis if that is as long as the batch has rows: give "
            "an entry that is not one a row, such as a bias (heads, T, T), a first axis of length "
            "1. If the model itself mixes rows, give the loss as a callable and leave memory_limit "
            "out: batches then stay whole"
        )


def _finite(outputs: Tensor) -> Tensor:
    """Replace infinite and NaN values by zeros, since masked classes have logits −inf."""
    return outputs.to(working_dtype(outputs.dtype)).nan_to_num(nan=0, posinf=0, neginf=0)


def _moved(parameters: Parameters) -> Parameters:
    draw = torch.Generator().manual_seed(0)
    return {
        name: p * (1 + MOVED * torch.randn(p.shape, generator=draw)).to(p)
        for name, p in parameters.items()
    }


def _gates(p: Tensor) -> Bool[Tensor, "..."]:
    """Mark entries of 0, or all if none is larger than `SHUT`: gates before training."""
    return (p == 0) | (p.abs().max() < SHUT) if p.numel() else p == 0


def _opened(parameters: Parameters, seed: int) -> dict[str, Tensor]:
    """Put random numbers in the place of closed gates."""
    draw, opened = torch.Generator().manual_seed(seed), dict(parameters)
    for name, p in parameters.items():
        if (gates := _gates(p)).any():
            opened[name] = torch.where(gates, torch.randn(p.shape, generator=draw).to(p) / 3, p)
    return opened


def check_rows(comparison: RowComparison) -> None:
    """Check that the rows of each batch that will be split are independent.

    If processes share the batches, each batch is compared by one process.

    Args:
        comparison: how batches are split.

    Raises:
        ArgumentError: rows of a batch depend on each other.
        RunError: another process found such a batch.

    Cost: two forward passes of these batches, once; four if parameters are 0.
    """
    problem = comparison.problem
    batches, processes, device = problem.batches, problem.processes, problem.device
    numbers = [i for i, rows in enumerate(batches.rows) if comparison.cuts(rows)]
    ours = set(numbers[processes.turns])
    mine = (batch for number, batch in enumerate(batches) if number in ours) if ours else ()
    refusal = next(filter(None, map(comparison.refusal, mine)), None)
    refused = processes.least(-int(refusal is not None), device)
    if refusal:
        raise refusal
    if refused:
        raise RunError(FAILED)
