"""Multiply sampled gradients with changes; only the products are kept, not the gradients.

Letters: U pieces of the data, D samples, J changes, M pairs of samples, g sampled gradient, Δ
change, n tokens of a part.

Each sample is computed on one piece of the data, of one or several rows. If there are fewer than
four such pieces, they are cut further by tokens, although tokens of a row are alike. So the spread
over pieces contains both the error over samples and the error over text. A sample on the whole text
would cost as much, and would show nothing about other text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.bill.changes import Change
from hessblocks.bill.prices import FEWEST_PIECES
from hessblocks.conventions import IGNORED
from hessblocks.curvature import (
    BatchLoss,
    CrossEntropy,
    Differentiated,
    Gradients,
    Problem,
    SampledPass,
    plan_passes,
    root_is_known,
    sampled_passes,
)
from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg import default_limit, working_dtype

HELD = 4, 8
"""Fewest and most gradients held at once; each change is computed once for all of them."""
AT_ONCE = 1 << 14
"""Entries multiplied at a time, few enough for a processor's cache."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """Products of sampled gradients and changes, for all forecasts; float64 on the CPU."""

    shares: Float[Tensor, " U"]
    """Share of the tokens in each piece; the sum is 1."""
    pieces: Int[Tensor, " D"]
    """Index of the piece that each sample is computed on."""
    along: Float[Tensor, "D J"]
    """g·Δ; the expectation of its square, summed over pieces, is ΔᵀH_oΔ."""
    squares: Float[Tensor, "D J"]
    """Σ g² Δ²; its expectation, summed over pieces, is Σ diag(H_o) Δ²."""
    pairs: Float[Tensor, "M J"]
    """Σ g g' Δ² of pairs of samples; its square estimates Σ (Δ_i H_ij Δ_j)² over pieces."""
    slopes: Float[Tensor, "U J"]
    """∇L·Δ, with L the share of each piece in the loss."""

    def by_piece(self, values: Float[Tensor, " D"]) -> Float[Tensor, " U"]:
        """Average over the samples of each piece."""
        sums = torch.zeros_like(self.shares).index_add_(0, self.pieces, values)
        return sums / self.pieces.bincount(minlength=len(sums))

    def signs(self, columns: Sequence[int]) -> float:
        """Estimate ½ Σ (Δ_i H_ij Δ_j)²: the variance of ½ ΔᵀH_oΔ over random signs of Δ."""
        pairs = self.pairs[:, columns].sum(1).square()
        return float(pairs.mean()) * len(self.shares) ** 2 / 2 if len(pairs) else 0.0


def parts_of(
    loss: BatchLoss, logits: Float[Tensor, "..."], most: int
) -> Iterator[tuple[Int[Tensor, " n"], float]]:
    """Cut the data of a pass into consecutive parts of equal size.

    Args:
        loss: loss of the pass.
        logits: logits of the pass.
        most: most parts.

    Yields:
        Indices of the part's tokens (of its rows if the loss is not cross-entropy), and the number
        of them that count in the mean loss.
    """
    if isinstance(loss, CrossEntropy):
        places = (loss.targets.flatten() != IGNORED).nonzero()[:, 0]
    else:
        single = logits.ndim == 1 and isinstance(loss, Differentiated) and bool(loss.classes)
        places = torch.arange(1 if single else len(logits))
    for part in places.tensor_split(max(1, min(most, len(places)))):
        if len(part):
            yield part, loss.valid * len(part) / len(places)


def _mask(part: Tensor, loss: BatchLoss, logits: Tensor) -> Float[Tensor, "..."]:
    """Make a mask: 1 at the logits of a part, 0 elsewhere; it broadcasts over the last axes."""
    rows = loss.targets.shape if isinstance(loss, CrossEntropy) else logits.shape[:1]
    mask = torch.zeros(math.prod(rows), dtype=logits.dtype, device=logits.device)
    mask[part.to(mask.device)] = 1.0
    return mask.view(*rows, *[1] * (logits.ndim - len(rows)))


def draw(problem: Problem, changes: Sequence[Change], *, samples: int, seed: int) -> Draws:
    """Draw sampled gradients, each on a piece of the data, and multiply them with all changes.

    Args:
        problem: model, batches and loss.
        changes: changes; each is computed once for up to eight gradients.
        samples: fewest samples.
        seed: seed of the signs.

    Returns:
        The products.

    Raises:
        ArgumentError: the curvature of the loss has no known root, processes divide the rows, or
            there is a single row.
        RunError: a loss or a gradient is not finite.
    """
    if not root_is_known(problem):
        raise ArgumentError(
            "loss: a callable does not tell its curvature, which is the price; use a loss by name "
            "or a loss module of torch"
        )
    names = dict.fromkeys(name for change in changes for name in change.new)
    parameters = problem.parameters
    one = sum(parameters[n].numel() * parameters[n].element_size() for n in names)
    rows = sum(problem.batches.rows)
    fewest, most = HELD
    plan = plan_passes(problem, names, spare=fewest * one, most_rows=max(1, rows // samples))
    limit = problem.memory_limit or default_limit(problem.device)
    more = problem.processes.least(max(0, (limit - plan.peak) // one), problem.device)
    ledger = _Ledger(problem, changes, most=min(most, fewest + more))
    each = -(-samples // len(plan.passes))
    most = 1 if len(plan.passes) >= FEWEST_PIECES else each  # tokens of a row are alike
    for passed in sampled_passes(problem, plan, names):
        _draw_pass(passed, ledger, each, most, seed)
    if ledger.held:
        ledger.settle()
    return ledger.draws()


def _draw_pass(passed: SampledPass, ledger: _Ledger, each: int, most: int, seed: int) -> None:
    """Draw the samples of one pass; they use its parts in turn, if there are fewer parts."""
    loss, logits = passed.loss, passed.values
    parts = list(parts_of(loss, logits, most))
    first = len(ledger.counts)
    ledger.counts += [count for _, count in parts]
    several = len(parts) > 1
    masks = [_mask(part, loss, logits) if several else None for part, _ in parts]
    for piece, mask in enumerate(masks):
        ledger.add(first + piece, passed.gradient(keep=True, of=mask), slope=True)
    for number in range(each if parts else 0):
        piece = number % len(parts)
        found = passed.sample(number, seed, keep=number + 1 < each, of=masks[piece])
        ledger.add(first + piece, found, slope=False)


class _Ledger:
    """Buffer of gradients; `settle` multiplies them with all changes and keeps the products."""

    def __init__(self, problem: Problem, changes: Sequence[Change], *, most: int) -> None:
        self.problem, self._changes, self._most = problem, changes, most
        self.counts: list[float] = []
        self.held: list[tuple[int, bool, Gradients]] = []
        self._owners: list[tuple[int, bool]] = []
        self._along: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._pairs: list[Tensor] = []

    def add(self, piece: int, gradients: Gradients, *, slope: bool) -> None:
        self.held.append((piece, slope, gradients))
        if len(self.held) == self._most:
            self.settle()

    def settle(self) -> None:
        """Compute each change once, and multiply all held gradients with it."""
        self.held.sort(key=lambda one: one[1])  # samples first: only they are squared
        parameters = self.problem.whole_parameters
        samples = sum(not slope for _, slope, _ in self.held)
        along = torch.zeros(len(self._changes), len(self.held), dtype=torch.float64)
        grams = torch.zeros(len(self._changes), samples, samples, dtype=torch.float64)
        for column, change in enumerate(self._changes):
            for name, new in change.made(parameters):
                dtype = working_dtype(new.dtype)
                delta = (new.to(dtype) - parameters[name].to(dtype)).flatten()
                change.check_same(name, delta)
                delta = self.problem.local_rows(name, delta.view(new.shape)).flatten()
                found = [held[2][name] for held in self.held]
                gradients = [torch.zeros_like(delta) if g is None else g.flatten() for g in found]
                for part in range(0, len(delta), AT_ONCE):
                    some = slice(part, part + AT_ONCE)
                    stacked = torch.stack([g[some] for g in gradients]).to(dtype)
                    along[column] += (stacked @ delta[some]).cpu()
                    products = stacked[:samples] * delta[some]
                    grams[column] += (products @ products.T).cpu()
        self._owners += [(piece, slope) for piece, slope, _ in self.held]
        self._along.append(along.T)
        self._squares.append(grams.diagonal(dim1=1, dim2=2).T)
        among = torch.ones(samples, samples, dtype=torch.bool).triu(1)
        self._pairs.append(grams[:, among].T)
        self.held.clear()

    def draws(self) -> Draws:
        tensors = [torch.cat(each) for each in (self._along, self._squares, self._pairs)]
        # one sum for all: each process has multiplied its rows
        sums = self.problem.sum_over_rows(torch.cat(tensors))
        along, squares, pairs = sums.split([*map(len, tensors)])
        if not (along.isfinite().all() and squares.isfinite().all()):
            raise RunError("price: a gradient is not finite; look at the weights and the batches")
        if len(self.counts) < 2:
            raise ArgumentError(
                "batches: one row tells nothing of the error over data; give several"
            )
        pieces, slope = map(torch.tensor, zip(*self._owners, strict=True))
        counts = torch.tensor(self.counts, dtype=torch.float64)
        return Draws(
            shares=counts / counts.sum(),
            pieces=pieces[~slope],
            along=along[~slope],
            squares=squares,
            pairs=pairs,
            slopes=along[slope],
        )
