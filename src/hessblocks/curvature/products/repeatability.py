"""Check a model before work is wasted: the same outputs twice, and rows that are independent.

Curvature is computed in evaluation mode from batches that are the same for every product, so most
causes of chance are removed; what that changes is said, and what cannot be removed is refused.

A batch that is cut into pieces must give the same outputs. Rows may depend on each other at any
distance (experts with room for some rows alone, a norm over the batch), and an entry of the batch
may be cut though its first axis only happens to be as long as the batch.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from hessblocks.curvature.losses import Batch, Readout
from hessblocks.errors import ArgumentError, RunError, out_of_memory
from hessblocks.linalg import working_dtype

SAME = 1e-4
"""Largest change between two passes, as a share of the largest logit, that rounding may explain."""
MOVED = 1e-2
"""Share by which parameters are moved for a second look: a tie of rounding between two experts is
gone there."""
Parameters = Mapping[str, Float[Tensor, "..."]]


class RepeatabilityWarning(UserWarning):
    """Warning that something random or changing was set aside; the message says what."""


def notice_randomness(model: nn.Module, batches: Any) -> None:
    """Warn of what is switched off, so that a result can be understood and repeated.

    Args:
        model: as it was given; its modules may be in training mode.
        batches: as they were given, before they are read.
    """
    for message in (*_model_notices(model), *_loader_notices(batches)):
        warnings.warn(f"curvature: {message}", RepeatabilityWarning, stacklevel=3)


def check_same(first: Readout, second: Readout) -> None:
    """Refuse a model whose logits differ between two passes over the same rows.

    Raises:
        RunError: they differ by more than rounding.
    """
    scale = change = 0.0
    for one, other in zip(first.pieces(), second.pieces(), strict=True):
        scale = max(scale, float(one.abs().max()))
        change = max(change, float((one - other).abs().max()))
    if change > SAME * scale:
        raise RunError(
            f"curvature: two passes over the same row differ by {change:.2g} (largest logit "
            f"{scale:.2g}) although the model is in evaluation mode, so nothing computed from it "
            "can be repeated; look for torch.nn.functional.dropout without training=self.training, "
            "or other random numbers"
        )


def _model_notices(model: nn.Module) -> Iterator[str]:
    training = [(name, module) for name, module in model.named_modules() if module.training]
    if dropout := [name for name, module in training if _dropped(module) > 0]:
        yield (
            f"dropout is switched off ({_some(dropout)} in training mode); "
            "the loss is that of model.eval()"
        )
    if norms := [name for name, module in training if isinstance(module, _BatchNorm)]:
        yield (
            f"batch norm uses its running statistics ({_some(norms)} in training mode), "
            "since those of a batch would tie its rows together"
        )


def _dropped(module: nn.Module) -> float:
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):  # dropout is a number of theirs
        return module.dropout
    return module.p if isinstance(module, _DropoutNd) else 0


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0] or 'the model'}{more}"


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
class Comparison:
    """Outputs of a batch's rows among all rows, against those among their piece."""

    problem: Any
    """Model and batches."""
    twice: bool
    """Whether passes are those of second derivatives."""
    most: Callable[[int], int]
    """Rows per piece may have, from the rows of its batch."""
    fitting: int
    """Rows that fit the memory together without a graph; where a batch has more, so many stand for
    it."""
    dtype: torch.dtype
    """The narrowest that the model computes in."""

    def outputs(self, batch: Batch, point: Parameters) -> Float[Tensor, "..."]:
        """Compute logits at some parameters, or the hidden states that the last layer reads."""
        with torch.no_grad():
            readout: Readout = self.problem.forward(batch, point, twice=self.twice)[0]
        return readout.hidden

    def cuts(self, rows: int) -> bool:
        """Tell whether a batch of so many rows is cut."""
        return rows > self._piece(rows)

    def passes(self, rows: int) -> int:
        """Count the forward passes that comparing a batch of so many rows takes."""
        return math.ceil(rows / self._company(rows)) + math.ceil(rows / self._piece(rows))

    def refusal(self, batch: Batch, *, again: bool) -> ArgumentError | None:
        """Say why a batch must not be cut.

        A token at a tie between two experts may go to the one in the whole batch and to the other
        in a piece, by rounding alone. Such tokens are others at other parameters, rows that depend
        on each other are the same.

        Args:
            batch: one that is cut.
            again: whether to look a second time, at moved parameters, before it is refused.

        Returns:
            A sentence, or None where it may be cut.
        """
        points = [self.problem.parameters]
        try:
            change = self._change(batch, points)
            if again and change > self._bound:
                change = self._change(batch, [*points, _moved(self.problem.parameters)])
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
        """Largest relative change that kernels of other shapes explain: 3e-4 in float32."""
        return math.sqrt(torch.finfo(self.dtype).eps)

    def _piece(self, rows: int) -> int:
        return max(1, self.most(rows))

    def _company(self, rows: int) -> int:
        """Count the rows that stand for the whole: whole pieces, at least two of them."""
        piece = self._piece(rows)
        return max(2, self.fitting // piece) * piece

    def _change(self, batch: Batch, points: Sequence[Parameters]) -> float:
        """Compute the root mean square of the rows' relative changes."""
        squares = 0.0
        pieces = iter(batch.split(self._piece(batch.rows)))
        for whole in batch.split(self._company(batch.rows)):
            own = list(islice(pieces, math.ceil(whole.rows / self._piece(batch.rows))))
            changes = [self._changes(whole, own, point) for point in points]
            squares += float(torch.stack(changes).amin(0).square().sum())
        return math.sqrt(squares / batch.rows)

    def _changes(
        self, whole: Batch, pieces: Sequence[Batch], point: Parameters
    ) -> Float[Tensor, "rows entries"]:
        """Compute each output's change relative to its row's norm; NaN for another count."""
        together = self.outputs(whole, point).flatten()
        other_number = together.new_full((whole.rows, 1), math.nan)
        if together.numel() % whole.rows:
            return other_number
        together = _finite(together).view(whole.rows, -1)
        norms = together.norm(dim=1, keepdim=True)
        scale = norms.maximum(norms.median()).clamp(min=torch.finfo(norms.dtype).tiny)
        found, start = torch.empty_like(together), 0
        for piece in pieces:
            rows = slice(start, start := start + piece.rows)
            alone = self.outputs(piece, point).flatten()
            if alone.numel() != together[rows].numel():
                return other_number
            change = (_finite(alone).view(piece.rows, -1) - together[rows]).abs()
            found[rows] = change / scale[rows]
        return found

    def _sentence(self, batch: Batch, what: str) -> ArgumentError:
        rows = self._piece(batch.rows)
        return ArgumentError(
            f"batches: batch {batch.number} (counted from 0) whole and in pieces of {rows} "
            f"row{'s' * (rows > 1)} {what}, so that its rows depend on each other; batches are cut "
            "here, and every entry along its first axis where that has as many entries as the "
            "batch has rows: give an entry that is not of the rows, such as a bias (heads, T, T), "
            "an axis of one in front; where the model itself mixes rows, a loss that is a "
            "callable, without memory_limit, leaves batches whole"
        )


def _finite(outputs: Tensor) -> Tensor:
    """Replace values that are not finite by zeros: masked classes have logits of -inf."""
    return outputs.to(working_dtype(outputs.dtype)).nan_to_num(nan=0, posinf=0, neginf=0)


def _moved(parameters: Parameters) -> Parameters:
    draw = torch.Generator().manual_seed(0)
    return {
        name: p * (1 + MOVED * torch.randn(p.shape, generator=draw)).to(p)
        for name, p in parameters.items()
    }


def check_rows(comparison: Comparison) -> None:
    """Refuse to cut batches whose rows depend on each other.

    Every batch that is cut is compared, each by one of the processes that share them.

    Args:
        comparison: how they are cut.

    Raises:
        ArgumentError: they do.
        RunError: those of another process do.

    Cost: two forward passes of what is cut, once.
    """
    problem = comparison.problem
    batches, processes, device = problem.batches, problem.processes, problem.device
    numbers = [i for i, rows in enumerate(batches.rows) if comparison.cuts(rows)]
    own = set(numbers[processes.turns])
    idle = processes.idle(sum(comparison.passes(batches.rows[number]) for number in own), device)
    refusal: ArgumentError | None = None
    for number, batch in enumerate(batches) if own else ():
        if number in own:
            found = comparison.refusal(batch, again=not processes.sharded)
            refusal = refusal or found
        if refusal and not processes.sharded:
            break
    for _ in range(idle):
        comparison.outputs(replace(batches.widest_row, idle=True), problem.parameters)
    refused = processes.least(-int(refusal is not None), device)
    if refusal:
        raise refusal
    if refused:
        raise RunError("curvature: another process failed; its own message says why")
