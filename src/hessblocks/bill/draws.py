"""Multiply sampled gradients with changes; only the products are kept, not the gradients.

Letters: U pieces of the data, R of them, D samples, J changes, S steps, M pairs of samples, P
columns of squares, K columns of products, N samples or pairs, g sampled gradient, Δ change, n
tokens of a part.

Each sample is computed on one piece of the data, of one or several rows. If there are fewer than
four such pieces, they are cut further by tokens, although tokens of a row are alike. So the spread
over pieces contains both the error over samples and the error over text. A sample on the whole text
would cost as much, and would show nothing about other text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
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

AT_ONCE = 1 << 14
"""Entries multiplied at a time, few enough for a processor's cache."""

NEAR, FAR = 0.05, 1e9
"""Relative distance of two forecasts for the slope of the divergence, and of one beyond all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """Products of sampled gradients and changes, for all forecasts; float64 on the CPU."""

    shares: Float[Tensor, " U"]
    """Share of the tokens in each piece; the sum is 1."""
    pieces: Int[Tensor, " D"]
    """Index of the piece that each sample is computed on."""
    along: Float[Tensor, "D K"]
    """g·Δ; the expectation of its square, summed over pieces, is ΔᵀH_oΔ. K is J; 0 for
    references."""
    squares: Float[Tensor, "D P"]
    """Σ g² Δ²; its expectation, summed over pieces, is Σ diag(H_o) Δ². P is J, or the number of
    references."""
    pairs: Float[Tensor, "M P"]
    """Σ g g' Δ² of pairs of samples; its square estimates Σ (Δ_i H_ij Δ_j)² over pieces."""
    slopes: Float[Tensor, "U K"]
    """∇L·Δ, with L the share of each piece in the loss."""
    scales: Float[Tensor, "J P"] | None = None
    """Diagonal of each change over that of each reference; None if all changes are multiplied."""
    measured: Bool[Tensor, "U J"] | None = None
    """Where `squares` are twice the divergence measured on a piece; None: of weights."""
    shaped: Float[Tensor, "D J"] | None = None
    """`squares` as forecasts of activations have them; None: of weights."""
    growth: Float[Tensor, "J 3 S"] | None = None
    """Forecasts, the divergence at each, which leaves its quadratic, and its error; None: of
    weights."""

    def by_piece(self, values: Float[Tensor, "D ..."]) -> Float[Tensor, "U ..."]:
        """Average over the samples of each piece."""
        zeros = values.new_zeros(len(self.shares), *values.shape[1:])
        sums = zeros.index_add_(0, self.pieces, values)
        counts = self.pieces.bincount(minlength=len(sums))
        return sums / counts.view(-1, *[1] * (values.ndim - 1))

    @property
    def forecasts(self) -> Float[Tensor, "D P"]:
        """The squares that forecasts add up."""
        return self.squares if self.shaped is None else self.shaped

    def together(self, values: Float[Tensor, "N P"], columns: Sequence[int]) -> Float[Tensor, " N"]:
        """Sum `squares` or `pairs` over changes."""
        if self.scales is not None:
            return values @ self.scales[list(columns)].sum(0)
        return values[:, columns].sum(1)

    def grown(self, columns: Sequence[int]) -> tuple[float, float, float]:
        """Interpolate the divergence of changes made together.

        Returns:
            Divergence and slope, both over the quadratic, and the error of the divergence.
        """
        if self.growth is None or self.measured is None:
            return 1.0, 1.0, 0.0
        measured, parts = self.measured[:, columns], self.by_piece(self.forecasts[:, columns]) / 2
        total, quadratics = float(parts.sum()), (parts * ~measured).sum(0)
        left = float(quadratics.sum())
        fixed = total - left  # what is measured has grown
        if not left:
            return 1.0, 1.0, 0.0
        text = 1 - float((self.shares @ measured.to(parts)) @ quadratics) / left
        quadratic = left / text
        points = quadratic * np.array([1.0, 1 - NEAR, 1 + NEAR])
        rows = []
        for x, *curves in self.growth[columns].tolist():
            ends = [0, *x, FAR * x[-1]]  # beyond the last, in proportion
            costs, errors = ([0, *curve, FAR * curve[-1]] for curve in curves)
            cost, below, above = np.interp(points, ends, costs)
            rows.append((cost, (above - below) / (2 * NEAR), np.interp(quadratic, ends, errors)))
        cost, slope, error = (quadratics @ torch.tensor(rows, dtype=parts.dtype)).tolist()
        whole = total * quadratic
        return fixed / total + cost / whole, fixed / total + slope / whole, error / quadratic

    def signs(self, columns: Sequence[int]) -> float:
        """Estimate ½ Σ (Δ_i H_ij Δ_j)²: the variance of ½ ΔᵀH_oΔ over random signs of Δ."""
        pairs = self.together(self.pairs, columns).square()
        return float(pairs.mean()) * len(self.shares) ** 2 / 2 if len(pairs) else 0.0


def parts_of(
    loss: BatchLoss, logits: Float[Tensor, "..."], count: int
) -> Iterator[tuple[Int[Tensor, " n"], float]]:
    """Cut the data of a pass into consecutive parts of equal size.

    Args:
        loss: loss of the pass.
        logits: logits of the pass.
        count: largest number of parts.

    Yields:
        Indices of the part's tokens (of its rows if the loss is not cross-entropy), and the number
        of them that count in the mean loss.
    """
    if isinstance(loss, CrossEntropy):
        places = (loss.targets.flatten() != IGNORED).nonzero()[:, 0]
    else:
        single = logits.ndim == 1 and isinstance(loss, Differentiated) and bool(loss.classes)
        places = torch.arange(1 if single else len(logits))
    for part in places.tensor_split(max(1, min(count, len(places)))):
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
    names = dict.fromkeys(name for change in changes for name in change.new)
    ledger = _Products(problem, changes)
    collect(problem, [*names], ledger, samples=samples, seed=seed)
    if ledger.held:
        ledger.settle()
    return ledger.draws()


class Ledger:
    """Where samples go, and products with them."""

    slopes = True
    """Whether the gradient of each piece is computed too."""
    fewest, most = 4, 8
    """Fewest and most gradients held at once."""

    def __init__(self) -> None:
        """Begin without samples."""
        self.counts: list[float] = []
        self.owners: list[tuple[int, bool]] = []
        self.along: list[Tensor] = []
        self.squared: list[Tensor] = []
        self.pairs: list[Tensor] = []

    def add(self, piece: int, gradients: Gradients, *, slope: bool, share: float) -> None:
        """Take a sample, or the gradient of a piece.

        Args:
            piece: index of the piece.
            gradients: gradients by parameter name.
            slope: whether it is the gradient.
            share: 1 over the number of samples of the piece.
        """
        raise NotImplementedError

    def watching(self, problem: Problem) -> AbstractContextManager[Any]:
        """Surround the passes over the data."""
        return nullcontext()

    def begin(self, passed: SampledPass) -> None:
        """Prepare for the samples of a pass."""

    def draws(self) -> Draws:
        """Return the products.

        Raises:
            ArgumentError: there is a single row.
            RunError: a gradient is not finite.
        """
        squares = torch.cat(self.squared)
        along = torch.cat(self.along) if self.along else squares.new_zeros(len(self.owners), 0)
        if not (along.isfinite().all() and squares.isfinite().all()):
            raise RunError("price: a gradient is not finite; look at the weights and the batches")
        if len(self.counts) < 2:
            raise ArgumentError("batches: one row gives no error bar over data; give several")
        pieces, slope = map(torch.tensor, zip(*self.owners, strict=True))
        counts = torch.tensor(self.counts, dtype=torch.float64)
        return Draws(
            shares=counts / counts.sum(),
            pieces=pieces[~slope],
            along=along[~slope],
            squares=squares,
            pairs=torch.cat(self.pairs),
            slopes=along[slope] if self.slopes else squares.new_zeros(len(counts), 0),
        )


def collect(
    problem: Problem, names: Sequence[str], ledger: Ledger, *, samples: int, seed: int
) -> None:
    """Draw sampled gradients, each on a piece of the data; see `draw`."""
    if not root_is_known(problem):
        raise ArgumentError(
            "loss: prices need a formula for the loss's curvature, which a callable does not have; "
            "use a loss by name or a loss module of torch"
        )
    parameters = problem.parameters
    size = sum(parameters[n].numel() * parameters[n].element_size() for n in names)
    rows = sum(problem.batches.rows)
    plan = plan_passes(
        problem, names, spare=ledger.fewest * size, most_rows=max(1, rows // samples)
    )
    limit = problem.memory_limit or default_limit(problem.device)
    room = problem.processes.least(max(0, (limit - plan.peak) // max(1, size)), problem.device)
    ledger.most = min(ledger.most, ledger.fewest + room)
    share = -(-samples // len(plan.passes))
    parts = 1 if len(plan.passes) >= FEWEST_PIECES else share  # tokens of a row are alike
    with ledger.watching(problem):
        for passed in sampled_passes(problem, plan, names):
            ledger.begin(passed)
            _draw_pass(passed, ledger, share, parts, seed)


def _draw_pass(passed: SampledPass, ledger: Ledger, samples: int, count: int, seed: int) -> None:
    """Draw the samples of one pass; they use its parts in turn, if there are fewer parts."""
    loss, logits = passed.loss, passed.values
    parts = list(parts_of(loss, logits, count))
    first = len(ledger.counts)
    ledger.counts += [count for _, count in parts]
    several = len(parts) > 1
    masks = [_mask(part, loss, logits) if several else None for part, _ in parts]
    for piece, mask in enumerate(masks if ledger.slopes else ()):
        ledger.add(first + piece, passed.gradient(keep=True, of=mask), slope=True, share=1.0)
    for number in range(samples if parts else 0):
        piece = number % len(parts)
        sample = passed.sample(number, seed, keep=number + 1 < samples, of=masks[piece])
        share = 1 / len(range(piece, samples, len(parts)))
        ledger.add(first + piece, sample, slope=False, share=share)


class _Products(Ledger):
    """Buffer of gradients; `settle` multiplies them with all changes and keeps the products."""

    def __init__(self, problem: Problem, changes: Sequence[Change]) -> None:
        super().__init__()
        self.problem, self._changes = problem, changes
        self.held: list[tuple[int, bool, Gradients]] = []

    def add(self, piece: int, gradients: Gradients, *, slope: bool, share: float) -> None:
        self.held.append((piece, slope, gradients))
        if len(self.held) == self.most:
            self.settle()

    def settle(self) -> None:
        """Compute each change once, and multiply all held gradients with it."""
        self.held.sort(key=lambda entry: entry[1])  # samples first: only they are squared
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
                at_name = [entry[2][name] for entry in self.held]
                gradients = [torch.zeros_like(delta) if g is None else g.flatten() for g in at_name]
                for part in range(0, len(delta), AT_ONCE):
                    chunk = slice(part, part + AT_ONCE)
                    stacked = torch.stack([g[chunk] for g in gradients]).to(dtype)
                    along[column] += (stacked @ delta[chunk]).cpu()
                    products = stacked[:samples] * delta[chunk]
                    grams[column] += (products @ products.T).cpu()
        self.owners += [(piece, slope) for piece, slope, _ in self.held]
        self.along.append(along.T)
        self.squared.append(grams.diagonal(dim1=1, dim2=2).T)
        among = torch.ones(samples, samples, dtype=torch.bool).triu(1)
        self.pairs.append(grams[:, among].T)
        self.held.clear()

    def draws(self) -> Draws:
        tensors = [torch.cat(listed) for listed in (self.along, self.squared, self.pairs)]
        # one sum for all: each process has multiplied its rows
        sums = self.problem.sum_over_rows(torch.cat(tensors)).split([*map(len, tensors)])
        self.along, self.squared, self.pairs = ([total] for total in sums)
        return super().draws()
