"""Fisher matrices as operators, empirical and Monte-Carlo, and their sampled gradients.

A datum is one label with its row of logits: a predicted token, a classified row, a row of targets
(along the last axis). Let N be the denominator of the mean loss, and g_n the gradient of datum n's
loss.

- Empirical: F = Σ_n g_n g_nᵀ / N with the given labels.
- Monte-Carlo: the mean of S such matrices with labels drawn from the model's distribution;
  E F = H_o.

g_n = Jᵀ r_n with r_n the gradient by the datum's logits. So F is H_o with H_ℓ replaced by
Σ r_n r_nᵀ, and its products are computed like those of H_o.

Letters: N data (in a vector's shape, its size), S sets of labels, V classes, p probabilities, u a
direction in logit space.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessblocks.conventions import IGNORED
from hessblocks.curvature import losses
from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.products import CurvatureOperator, OuterProduct, Problem, check_problem
from hessblocks.curvature.sampled.one_pass import SampledPass, draws, plan_passes, sampled_passes
from hessblocks.errors import ArgumentError, check_whole
from hessblocks.linalg import factor_samples

Curvature = Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
"""u ↦ Σ r_n ⟨r_n, u_n⟩, times `share`."""
Noise = Callable[[Float[Tensor, "..."], Float[Tensor, "S ..."]], Float[Tensor, "S ..."]]
"""Maps logits and S random numbers per logit to the gradients r of S sets of labels."""


class EmpiricalFisher(CurvatureOperator):
    """Empirical Fisher Σ_n g_n g_nᵀ / N over labels n, g_n the gradient of the loss of label n.

    A label is a predicted token, a classified row, or a row of targets (its last axis). N is the
    denominator of the mean loss, 1 with `reduction="sum"`. This is curvlinops' `EFLinearOperator`.
    The loss of a label includes its class weight. Ignored labels have no gradient.

    Cost: as `OuterProduct`.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.ones(2, 1)
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> F = hb.EmpiricalFisher(hb.Problem(model, [(x, y)], "regression"))
        >>> F.dense().tolist()  # mean of g gᵀ, with g = −2x here; the Hessian is diag(1, 4)
        [[2.0, 0.0], [0.0, 8.0]]
    """

    part = "outer"

    def __init__(
        self,
        problem: Problem,
        group: ParameterGroup | None = None,
        *,
        rows: ParameterGroup | None = None,
        columns: ParameterGroup | None = None,
    ) -> None:
        """Choose the rows and columns of the block.

        Args:
            problem: model, batches and loss; the loss is not a callable.
            group: see `Hessian`.
            rows: see `Hessian`.
            columns: see `Hessian`.

        Raises:
            ArgumentError: see `Hessian`; or the loss is a callable, which returns no loss per
                label.
        """
        check_problem(problem)
        super().__init__(problem.with_losses(_given), group, rows=rows, columns=columns)


class MonteCarloFisher(CurvatureOperator):
    """Monte-Carlo Fisher: mean of `samples` empirical Fishers with labels drawn from the model.

    The loss is −log density of the labels' distribution: softmax (cross-entropy), Bernoulli (binary
    cross-entropy) or normal with variance ½ (squared error). The expectation is H_o. This is
    curvlinops' `FisherMCLinearOperator`. With the same seed, batches and weights, every product
    uses the same labels, whatever the memory limit. The given labels only mark ignored ones.

    Cost: as `OuterProduct`; besides, each product stores `samples` numbers per label for
        cross-entropy, `samples` times the logits for other losses. The memory limit does not count
        these.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> problem = hb.Problem(torch.nn.Linear(2, 1, bias=False), [(x, y)], "regression")
        >>> F = hb.MonteCarloFisher(problem, samples=1000)
        >>> torch.allclose(F.dense(), hb.OuterProduct(problem).dense(), rtol=0.3, atol=0.3)
        True
    """

    part = "outer"

    def __init__(
        self,
        problem: Problem,
        group: ParameterGroup | None = None,
        *,
        samples: int = 1,
        seed: int = 0,
        rows: ParameterGroup | None = None,
        columns: ParameterGroup | None = None,
    ) -> None:
        """Choose the block and the seed.

        Args:
            problem: model, batches and loss: cross-entropy (by name, or `nn.CrossEntropyLoss` of
                one class per row), squared error or `nn.BCEWithLogitsLoss`, without weights or
                label smoothing.
            group: see `Hessian`.
            samples: number of labels drawn for each datum.
            seed: seed of the draws.
            rows: see `Hessian`.
            columns: see `Hessian`.

        Raises:
            ArgumentError: see `Hessian`; or there are no samples, or the loss's distribution is
                unknown.
        """
        check_problem(problem)
        check_whole(1, samples=samples)
        check_whole(seed=seed)

        def drawn(loss: losses.BatchLoss, batch: losses.Batch) -> losses.BatchLoss:
            if isinstance(loss, losses.CrossEntropy):
                shape = torch.Size((*loss.targets.shape, samples))
                return _Classes(loss, draws(torch.rand, batch, shape, seed))
            draw, noise = _distribution(loss)

            def sets(logits: Tensor) -> Tensor:
                shape = torch.Size((*logits.shape, samples))
                entries = noise(logits, draws(draw, batch, shape, seed).movedim(-1, 0))
                return entries.to(logits) / math.sqrt(samples)

            return _Entries(loss, sets, samples)

        super().__init__(problem.with_losses(drawn), group, rows=rows, columns=columns)


def _given(loss: losses.BatchLoss, batch: losses.Batch) -> losses.BatchLoss:
    """Return the loss with the empirical Fisher of the given labels as its curvature."""
    return _Classes(loss) if isinstance(loss, losses.CrossEntropy) else _Entries(loss)


class _Classes(losses.CrossEntropy):
    """Cross-entropy with curvature Σ_y (p − e_y)(p − e_y)ᵀ per row, the Fisher of labels y."""

    def __init__(
        self, loss: losses.CrossEntropy, uniform: Float[Tensor, "... S"] | None = None
    ) -> None:
        """Store uniform random numbers in [0, 1] that select labels; None: the loss's labels."""
        super().__init__(loss.targets)
        self._uniform = uniform

    def of_rows(self, rows: slice | Int[Tensor, " N"]) -> Self:
        uniform = None if self._uniform is None else self._uniform.flatten(0, -2)[rows]
        return type(self)(losses.CrossEntropy(self.targets.flatten()[rows]), uniform)

    def derivatives_in_place(
        self, logits: Float[Tensor, "... V"], share: float
    ) -> tuple[float, Float[Tensor, "... V"], Curvature]:
        probabilities, targets = logits.softmax(-1), self.targets[..., None]
        labels = targets.clamp(min=0) if self._uniform is None else self._labels(probabilities)
        weight = share / labels.shape[-1] * (targets != IGNORED).to(logits.dtype)

        def curvature(direction: Tensor) -> Tensor:
            chosen = labels.expand(*direction.shape[:-1], labels.shape[-1])
            mean = (probabilities * direction).sum(-1, keepdim=True)
            inner = (mean - direction.gather(-1, chosen)) * weight
            product = probabilities * inner.sum(-1, keepdim=True)
            return product.scatter_add(-1, chosen, -inner)

        return *super().derivatives_in_place(logits, share)[:2], curvature

    def root(self, logits: Float[Tensor, "... V"], share: float) -> losses.Root:
        """Return ε ↦ Σ_y (p − e_y) ε_y of each row, with one sign per label."""
        probabilities, targets = logits.softmax(-1), self.targets[..., None]
        labels = targets.clamp(min=0) if self._uniform is None else self._labels(probabilities)
        weight = math.sqrt(share / labels.shape[-1]) * (targets != IGNORED).to(logits.dtype)

        def times_root(signs: Tensor) -> Tensor:
            weighted = weight * signs
            product = probabilities * weighted.sum(-1, keepdim=True)
            return product.scatter_add_(-1, labels, -weighted)

        return times_root

    def noise_shape(self, logits: Float[Tensor, "... V"]) -> torch.Size:
        """See `BatchLoss`; one sign per label."""
        labels = 1 if self._uniform is None else self._uniform.shape[-1]
        return torch.Size((*logits.shape[:-1], labels))

    def _labels(self, probabilities: Tensor) -> Tensor:
        """Sample classes from the probabilities by inverting their cumulative sums."""
        assert self._uniform is not None
        ends = probabilities.cumsum(-1, dtype=torch.float64)
        labels = torch.searchsorted(ends, self._uniform * ends[..., -1:], right=True)
        return labels.clamp(max=ends.shape[-1] - 1)


class _Entries(losses.BatchLoss):
    """Loss with the Fisher curvature Σ_n r_n r_nᵀ over its data."""

    def __init__(
        self,
        loss: losses.BatchLoss,
        sets: Callable[[Tensor], Sequence[Tensor] | Tensor] | None = None,
        count: int = 1,
    ) -> None:
        """Store `sets`, which maps logits to the gradients r of `count` sets of labels.

        None: the gradient of the loss, for its labels.
        """
        self._loss, self._sets, self._count = loss, sets, count

    @property
    def valid(self) -> float:
        return self._loss.valid

    def total(self, logits: Float[Tensor, "..."]) -> float:
        return self._loss.total(logits)

    def derivatives(self, logits: Float[Tensor, "..."], share: float) -> losses.LossDerivatives:
        derivatives = self._loss.derivatives(logits, share)
        sets = [derivatives.gradient / share] if self._sets is None else self._sets(logits)
        axis, single = self._axis(logits)

        def curvature(direction: Tensor) -> Tensor:
            total = torch.zeros_like(direction)
            for vector in sets:
                inner = vector * direction
                total = total + vector * (inner if single else inner.sum(axis, keepdim=True))
            return share * total

        return replace(derivatives, curvature=curvature)

    def root(self, logits: Float[Tensor, "..."], share: float) -> losses.Root:
        """Return ε ↦ Σ r ε of each datum, with one sign per set of labels."""
        gradient = self._loss.derivatives(logits, share).gradient / share
        sets = [gradient] if self._sets is None else self._sets(logits)

        def times_root(signs: Tensor) -> Tensor:
            pairs = zip(sets, signs.unbind(-1), strict=True)
            return math.sqrt(share) * torch.stack([vector * sign for vector, sign in pairs]).sum(0)

        return times_root

    def noise_shape(self, logits: Float[Tensor, "..."]) -> torch.Size:
        """See `BatchLoss`; one sign per datum and set of labels; the sets are the last axis."""
        axis, single = self._axis(logits)
        rows = list(logits.shape)
        if not single:
            rows[axis] = 1
        return torch.Size((*rows, self._count))

    def _axis(self, logits: Tensor) -> tuple[int, bool]:
        """Find the axis of a datum's entries, and whether each entry is a datum."""
        classes = isinstance(self._loss, losses.Differentiated) and self._loss.classes
        axis = min(1, logits.ndim - 1) if classes else -1
        return axis, logits.ndim == 1 and not classes


def _distribution(loss: losses.BatchLoss) -> tuple[Any, Noise]:
    """Choose the labels' distribution, with the gradient of the loss by the logits.

    Returns:
        Function that draws random numbers, and function that maps these to gradients.

    Raises:
        ArgumentError: the distribution is unknown.
    """
    module = loss.module if isinstance(loss, losses.Differentiated) else None
    if isinstance(module, nn.MSELoss):  # gradient 2 (f − y), and y − f has variance ½
        return torch.randn, lambda logits, normal: math.sqrt(2) * normal
    if isinstance(module, nn.BCEWithLogitsLoss) and module.weight is module.pos_weight is None:
        return (
            torch.rand,
            lambda logits, uniform: logits.sigmoid() - 1.0 * (uniform < logits.sigmoid()),
        )
    raise ArgumentError(
        "loss: MonteCarloFisher draws labels for cross-entropy of one class a row, squared error "
        "and nn.BCEWithLogitsLoss, without weights or label smoothing; use one of these, or "
        "EmpiricalFisher"
    )


@factor_samples.register(OuterProduct)
@factor_samples.register(EmpiricalFisher)
@factor_samples.register(MonteCarloFisher)
def _samples(
    op: CurvatureOperator, count: int, seed: int
) -> Iterator[Iterator[Float[Tensor, " N"]]]:
    """Sample each microbatch; the expectation of Σ g gᵀ over microbatches is the whole matrix."""
    if op.rows != op.columns:
        raise ArgumentError(
            "diagonal: method='sampled' needs a group's own block, got rows "
            f"{op.rows.name!r} and columns {op.columns.name!r}"
        )
    names = op.rows.parameters
    for passed in sampled_passes(op.problem, plan_passes(op.problem, names), names):
        yield _vectors(op, passed, count, seed)


def _vectors(
    op: CurvatureOperator, passed: SampledPass, count: int, seed: int
) -> Iterator[Float[Tensor, " N"]]:
    for number in range(count):
        gradients = passed.sample(number, seed, keep=number + 1 < count)
        vector = torch.zeros(1, op.shape[0], dtype=op.dtype, device=op.device)
        tensors = {n: None if g is None else g[None] for n, g in gradients.items()}
        op.rows.collect(tensors, vector)
        yield vector[0]
