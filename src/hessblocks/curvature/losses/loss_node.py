"""Loss φ as the last node of the autograd graph, a function of the logits or of h, W and b.

The gradient of φ and its Hessian-vector products are closed forms. If the logits are h Wᵀ + b, each
product recomputes them a few rows at a time, so that no tensor of tokens × classes is in memory.
Rows with an ignored label are skipped.

Letters: f logits, r = ∂φ/∂f, H_ℓ = ∂²φ/∂f², p probabilities, N rows that are not ignored, V
classes, D width of h, K directions in a batch; a, Z, z directions of h, W and b,
u = a Wᵀ + h Zᵀ + z.

The derivatives of the gradient (r W, rᵀ h, Σ r) in the direction (a, Z, z) are

- full: (q W + r Z, qᵀ h + rᵀ a, Σ q) with q = H_ℓ u
- outer: the terms with q; functional: the terms with r.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import Function

from hessblocks.conventions import Part
from hessblocks.curvature.closed import Sum, sum_of, wanted
from hessblocks.curvature.losses.batch_loss import BatchLoss
from hessblocks.curvature.losses.lazy_logits import Readout, rows_together
from hessblocks.curvature.losses.row_losses import CrossEntropy

WORDS = 1 << 10
"""Classes per matrix product on a CPU; all classes at once took 1.6 times as long (measured)."""

Directions = Sequence[Float[Tensor, "K ..."] | None]
"""K directions for each input, (K, *shape); None means zeros."""
Sums = Sequence[Sum | None]
Products = list[Float[Tensor, "K ..."] | None]


class LossNode:
    """Loss φ as a function of computed logits, with its Hessian-vector products at one point."""

    def __init__(self, readout: Readout, loss: BatchLoss, share: float) -> None:
        """Store the inputs of φ, with their autograd graph.

        Args:
            readout: inputs of the last layer, or the logits.
            loss: loss of the batch.
            share: factor of the loss.
        """
        self.inputs = tuple(t for t in readout.inputs if t is not None)
        self.present: Sequence[bool] = ()
        """For each input, whether its latest product is a nonzero tensor that autograd returns."""
        self._logits, self._loss, self._share = readout.hidden.detach(), loss, share

    def total(self) -> float:
        """Compute φ."""
        return self._loss.total(self._logits) * self._share

    def start(self) -> tuple[float, Float[Tensor, "..."]]:
        """Compute φ and its gradient by the first input; call it before any product."""
        derivatives = self._loss.derivatives(self._logits, self._share)
        self._curvature = derivatives.curvature
        return derivatives.total, derivatives.gradient

    def products(
        self, part: Part, directions: Directions, wanted: Sequence[bool], sums: Sums = ()
    ) -> Products:
        """Multiply the Hessian of φ, or one part of it, with directions.

        Args:
            part: `full`; `functional`, the Hessian of ⟨r, f⟩ with r fixed; or `outer`, the rest.
            directions: directions of each input, not all None.
            wanted: for each input, whether its product is computed.
            sums: sums that accumulate some inputs' products; for K = 1 only.

        Returns:
            The product of each input; None where it is zero, not wanted or added to its sum.
        """
        (u,) = directions
        if part == "functional" or u is None:
            return [None]
        return [self._curvature(u[0])[None] if len(u) == 1 else torch.vmap(self._curvature)(u)]

    def attach(self, part: Part) -> tuple[float, tuple[Float[Tensor, "..."], ...]]:
        """Return φ and its gradient as a graph node whose derivative is one part of the Hessian.

        Returns:
            φ, and the gradient by each input. Only the first has values; nobody reads the others.
        """
        total, first = self.start()
        gradients: tuple[Tensor, ...] = _LossGradient.apply(self, part, first, *self.inputs)
        return total, gradients


def make_loss_node(
    readout: Readout, loss: BatchLoss, share: float, *, keep: bool = False
) -> LossNode:
    """Make the last node of a graph.

    Args:
        readout: inputs of the last layer, or the logits.
        loss: loss of the batch.
        share: factor of the loss.
        keep: whether to cache probabilities and residuals, so that products need no logits.

    Returns:
        φ as a function of h, W and b, or of the logits if these were computed.
    """
    if readout.weight is None:
        return LossNode(readout, loss, share)
    assert isinstance(loss, CrossEntropy)
    return _OfHidden(readout, loss, share, keep=keep)


_LossPiece = tuple[slice, Tensor, Callable[[Tensor], Tensor]]
"""Slice of rows, their r and their u ↦ H_ℓ u."""


class _OfHidden(LossNode):
    def __init__(self, readout: Readout, loss: CrossEntropy, share: float, *, keep: bool) -> None:
        super().__init__(readout, loss, share)
        self._kept: list[_LossPiece] | None = [] if keep else None
        hidden, self._weight, *bias = (tensor.detach() for tensor in self.inputs)
        self._bias = bias[0] if bias else None
        self._rows = loss.counted_rows(tuple(hidden.shape[:-1]), readout.classes)
        self._counting = loss.of_rows(self._rows)
        self._hidden, self._shape = self._counted(hidden[None])[0], hidden.shape

    def _counted(self, hidden: Tensor) -> Tensor:
        """Select the rows that are not ignored, (K, N, D)."""
        return hidden.flatten(1, -2)[:, self._rows]

    def _spread(self, rows: Tensor) -> Tensor:
        """Scatter (K, N, D) back to (K, *shape of h), with zeros in ignored rows."""
        hidden = rows.new_zeros(len(rows), *self._shape)
        hidden.flatten(1, -2).index_copy_(1, self._rows, rows)
        return hidden

    def _by_rows(self) -> Iterator[tuple[slice, CrossEntropy, Tensor]]:
        """Yield a slice of rows at a time, with its loss and its logits."""
        for rows in _cut(len(self._rows), rows_together(len(self._weight))):
            shift = None if self._bias is None else self._bias[None]
            logits = self._pushed(self._hidden[None, rows], shift=shift)[0]
            yield rows, self._counting.of_rows(rows), logits

    def _pieces(self) -> Iterator[_LossPiece]:
        """Yield a slice of rows at a time with its derivatives, from the cache if there is one."""
        if self._kept:
            yield from self._kept
            return
        for rows, loss, logits in self._by_rows():
            yield (rows, *loss.derivatives_in_place(logits, self._share)[1:])

    def total(self) -> float:
        return sum(loss.total(logits) for _, loss, logits in self._by_rows()) * self._share

    def start(self) -> tuple[float, Tensor]:
        total, gradient = 0.0, torch.empty_like(self._hidden)
        for rows, loss, logits in self._by_rows():
            share, residual, curvature = loss.derivatives_in_place(logits, self._share)
            total += share
            torch.mm(residual, self._weight, out=gradient[rows])
            if self._kept is not None:
                self._kept.append((rows, residual, curvature))
        return total, self._spread(gradient[None])[0]

    def products(
        self, part: Part, directions: Directions, wanted: Sequence[bool], sums: Sums = ()
    ) -> Products:
        """Multiply by slices of rows and directions; all directions share a row's logits."""
        a, changes, shifts = (*directions, None)[:3]
        together = next(len(d) for d in directions if d is not None)
        a = None if a is None else self._counted(a)
        shapes = (self._hidden.shape, *(t.shape for t in self.inputs[1:]))
        curves = part != "functional"
        moves = (curves or changes is not None, curves or a is not None, curves)
        sums = (*sums, None, None, None)[: len(shapes)]
        results: list[Tensor | None] = [
            None
            if not (want and move)
            else self._hidden.new_zeros(together, *shape)
            if total is None
            else total.started()[None]
            for shape, want, move, total in zip(shapes, wanted, moves, sums, strict=False)
        ]
        for rows, residual, curvature in self._pieces():
            for block in _cut(together, rows_together(residual.numel())):
                into = [None if t is None else t[block] for t in (*results, None)[:3]]
                if into[0] is not None:
                    into[0] = into[0][:, rows]
                at = self._hidden[rows].expand(len(range(together)[block]), -1, -1)
                to, change, shift = (None if t is None else t[block] for t in (a, changes, shifts))
                to = None if to is None else to[:, rows]
                if curves:
                    curved = curvature(self._pushed(to, at, change, shift))
                    self._add(into, curved, at, self._weight.expand(len(at), -1, -1))
                    if into[2] is not None:
                        into[2] += curved.sum(1)
                if part != "outer":
                    self._add(into, residual.expand(len(at), -1, -1), to, change)
        if results[0] is not None:
            results[0] = self._spread(results[0])
        return [None if total is not None else t for t, total in zip(results, sums, strict=True)]

    def _pushed(
        self,
        to: Tensor | None = None,
        at: Tensor | None = None,
        change: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> Tensor:
        """Compute u, (K, rows, V), `WORDS` classes at a time, which is faster on a CPU."""
        like = at if to is None else to
        assert like is not None
        words = len(self._weight)
        u = (like.new_zeros if to is None else like.new_empty)(*like.shape[:-1], words)
        for chunk in _cut(words, WORDS if u.device.type == "cpu" else words):
            if to is not None:
                torch.mm(to.flatten(0, 1), self._weight[chunk].T, out=u.view(-1, words)[:, chunk])
            if at is not None and change is not None:
                u[..., chunk].baddbmm_(at, change[:, chunk].mT)
        return u if shift is None else u.add_(shift[:, None])

    @staticmethod
    def _add(
        into: Sequence[Tensor | None], rows: Tensor, hidden: Tensor | None, weight: Tensor | None
    ) -> None:
        """Add `rows` @ `weight` to the product of h, and `rows`ᵀ @ `hidden` to that of W."""
        if into[0] is not None and weight is not None:
            into[0].baddbmm_(rows, weight)
        if into[1] is not None and hidden is not None:
            into[1].baddbmm_(rows.mT, hidden)


def _cut(size: int, limit: int) -> Iterator[slice]:
    """Split `size` into slices of nearly equal length, none longer than `limit`."""
    pieces = -(-size // max(1, limit))
    step = -(-size // max(1, pieces))
    return (slice(start, start + step) for start in range(0, size, max(1, step)))


class _LossGradient(Function):
    """Gradient of φ in its inputs."""

    @staticmethod
    def forward(
        ctx: Any, end: LossNode, part: Part, first: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.end, ctx.part = end, part
        ctx.set_materialize_grads(False)
        # nobody reads the other gradients' values: one expanded zero takes no memory
        return (first.view_as(first), *(t.new_zeros(()).expand_as(t) for t in inputs[1:]))

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:
        values = iter(_LossProducts.apply(ctx.end, ctx.part, *directions))
        return None, None, None, *(next(values) if there else None for there in ctx.end.present)


class _LossProducts(Function):
    """`LossNode.products` as an autograd function with a rule for `torch.vmap`."""

    # our rule computes the logits once for all directions; a generated rule repeats them
    generate_vmap_rule = False

    @staticmethod
    def forward(end: LossNode, part: Part, *directions: Tensor | None) -> tuple[Tensor, ...]:
        single = [None if d is None else d[None] for d in directions]
        sums = [sum_of(id(t)) for t in end.inputs]
        return tuple(t[0] for t in _present(end, part, single, sums))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing, since there is no third derivative."""

    @staticmethod
    def vmap(
        info: Any, axes: Sequence[int | None], end: LossNode, part: Part, *directions: Tensor | None
    ) -> tuple[tuple[Tensor, ...], int]:
        def in_front(d: Tensor, axis: int | None) -> Tensor:
            return d.expand(info.batch_size, *d.shape) if axis is None else d.movedim(axis, 0)

        pairs = zip(directions, axes[2:], strict=True)
        together = [None if d is None else in_front(d, axis) for d, axis in pairs]
        return tuple(_present(end, part, together)), 0


def _present(
    end: LossNode, part: Part, directions: Directions, sums: Sequence[Sum | None] = ()
) -> list[Tensor]:
    values = end.products(part, directions, [wanted(id(t)) for t in end.inputs], sums)
    end.present = [t is not None for t in values]
    return [t for t in values if t is not None]
