"""Compare gradient and Hessian-vector product with central differences, on some batches.

`check_guard` does so before products if the graph alone cannot prove the derivatives right. A
user's autograd Function may use weights that are not among its inputs (a reentrant checkpoint, a
reversible block). Its backward pass may have no derivative. A parameter that is used without a
graph (detach, int8) wrongly gets the derivative 0. One row is compared, for φ(θ) = ⟨c, f(θ)⟩ with
random c, so that no logit has a zero gradient. Other models cost only a walk through the graph,
which the plan needs anyway.

Letters: f logits, c random numbers of the shape of f, g = ∇φ, H = ∇²φ, z a parameter direction.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from hessblocks.curvature import witness
from hessblocks.curvature.losses import Batch, Differentiated, make_loss_node
from hessblocks.curvature.products.forward import backward_pass, differentiable_once, put_in
from hessblocks.curvature.products.graph import BatchGraph
from hessblocks.curvature.products.passes import Guard
from hessblocks.errors import ArgumentError, HessblocksError, RunError, main_memory, out_of_memory

COPIES = 16
"""Number of float64 copies of the parameters that finite differences need at once."""

MISSING_SUFFIX = "NotImplemented"
"""Suffix of the names of graph nodes that torch inserts where a derivative is missing."""

FIRST = (
    "autograd's gradient is not that of the logits, {:.4g} along a random direction where finite "
    "differences give {:.4g}: weights that it uses without autograd (a checkpoint of another "
    "library, a reversible block), a straight-through or reversed gradient, or numpy; "
)
SECOND = (
    "the derivative of its backward pass is wrong, H z by {!r} is off differences of the gradient "
    "by {:.2g} of its norm: a backward that is once_differentiable, keeps intermediates without "
    "ctx.save_for_backward, or leaves torch (numpy, a kernel), is right once alone; "
)


class DerivativeWarning(UserWarning):
    """Warning that finite differences are too inaccurate to judge the derivatives."""


class NotFiniteError(RunError):
    """Error: a derivative is not finite, so that a comparison is impossible."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Comparisons of first and second derivatives with central differences, by name."""

    first: Mapping[str, witness.Agreement]
    """⟨g, z⟩ for each of several z."""
    second: Mapping[str, witness.Agreement]
    """Norms of some rows of H z, for one z."""
    dtype: torch.dtype
    """Dtype of the comparison."""

    def names(self, verdict: str) -> list[str]:
        """List the names of the comparisons with this verdict, first derivatives first."""
        both = [*self.first.items(), *self.second.items()]
        return [name for name, comparison in both if comparison.verdict == verdict]


def compare_derivatives(
    problem: Any,
    batches: Sequence[Batch],
    along: witness.ByName,
    slopes: Mapping[str, witness.ByName],
    rows: Mapping[str, Callable[[witness.ByName], Float[Tensor, "..."]]],
    *,
    twice: bool = True,
) -> Compared:
    """Compare ⟨g, z⟩ and H z with differences; in float64 where the model's dtype is inconclusive.

    Args:
        problem: model and loss; its plan has no guard.
        batches: batches of φ.
        along: z of the second derivatives, by parameter name.
        slopes: name → z of a first derivative.
        rows: name → function that selects the compared entries of H z, as one vector.
        twice: whether the model runs as for second derivatives, or as for a gradient.

    Returns:
        The comparisons.

    Raises:
        NotFiniteError: a derivative is not finite.
        RunError: a loss is not finite, or a part cannot be differentiated.

    Cost: four gradients, two products and four values for each slope; more if several steps are
        tried.
    """
    compared = _compare(problem, batches, along, slopes, rows, twice)
    if not compared.names("wrong") and not compared.names("unclear"):
        return compared
    wider = _in_float64(problem, batches)
    if wider is None:
        return compared

    def wide(tensors: witness.ByName) -> witness.ByName:
        return {name: _wide(tensor) for name, tensor in tensors.items()}

    try:
        return _compare(*wider, wide(along), {n: wide(z) for n, z in slopes.items()}, rows, twice)
    except Exception as error:  # some part supports only its own dtype
        if out_of_memory(error):
            raise
        return compared


def _compare(
    problem: Any,
    batches: Sequence[Batch],
    along: witness.ByName,
    slopes: Mapping[str, witness.ByName],
    rows: Mapping[str, Callable[[witness.ByName], Tensor]],
    twice: bool,
) -> Compared:
    parameters, plain = problem.parameters, problem.without_lazy_logits()
    at = partial(_evaluate, plain, batches, tuple(along), twice)
    steps = partial(witness.compare_at_steps, at, parameters)
    value, gradient = at(parameters, True)
    product = _product(problem, batches, along) if rows else {}
    derivatives = (*gradient.values(), *product.values())
    if not (math.isfinite(value) and all(bool(t.isfinite().all()) for t in derivatives)):
        raise NotFiniteError("curvature: the loss is finite, but a derivative of it is not")

    def second(differences: witness.Differences) -> list[witness.Agreement]:
        return [
            witness.compare_rows(entries, product, gradient, differences)
            for entries in rows.values()
        ]

    def first(z: witness.ByName) -> witness.Agreement:
        slope = witness.inner(gradient, z)
        return steps(z, lambda d: [witness.compare_slopes(slope, d)], gradients=False)[0]

    seconds = steps(along, second, gradients=True) if rows else []
    return Compared(
        first={name: first(z) for name, z in slopes.items()},
        second=dict(zip(rows, seconds, strict=True)),
        dtype=next(iter(parameters.values())).dtype,
    )


def _evaluate(
    problem: Any,
    batches: Iterable[Batch],
    names: Sequence[str],
    twice: bool,
    parameters: witness.ByName,
    gradient: bool,
) -> tuple[float, witness.Gradient]:
    """Compute φ and, if `gradient`, g by parameter name, by `torch.autograd.grad` of all logits."""
    names = names if gradient else ()
    total, sums = 0.0, {name: torch.zeros_like(parameters[name]) for name in names}
    settled = backward_pass if twice else differentiable_once
    for batch in batches:
        leaves = {name: parameters[name].detach().requires_grad_() for name in names}
        with torch.enable_grad():
            readout, loss = problem.forward(batch, {**parameters, **leaves}, twice=twice)
        value, cotangent = make_loss_node(readout, loss, 1 / problem.valid).start()
        total += value
        if leaves and readout.requires_grad:
            # checkpointed parts are recomputed at these parameters
            with settled(problem.model):
                put_in(problem.model, {**parameters, **leaves})
                pulled = torch.autograd.grad(
                    readout.hidden, list(leaves.values()), cotangent, materialize_grads=True
                )
            for name, slope in zip(leaves, pulled, strict=True):
                sums[name] += slope
    return total, sums


def _product(problem: Any, batches: Iterable[Batch], along: witness.ByName) -> witness.Gradient:
    """Compute H z by parameter name, in float64, with the graphs of the operators."""
    sums = {name: torch.zeros_like(z, dtype=torch.float64) for name, z in along.items()}
    vectors = {name: z[None] for name, z in along.items()}
    for batch in batches:
        graph = BatchGraph(problem, batch, tuple(along), split=False)
        for name, rows in graph.full(vectors, tuple(along)).items():
            if rows is not None:
                sums[name] += rows[0]
    return sums


def _in_float64(problem: Any, batches: Iterable[Batch]) -> tuple[Any, list[Batch]] | None:
    """Copy a model and batches into float64.

    Returns:
        The problem with the copied model, and the batches; None if the model is float64 already,
        cannot be copied, or the copies need more than a quarter of the memory.
    """
    weights = problem.weights.values()
    wide = all(p.dtype == torch.float64 for p in weights)
    if wide or COPIES * 8 * sum(p.numel() for p in weights) > main_memory() // 4:
        return None
    wider = copy.copy(problem)
    try:
        wider.move_to(copy.deepcopy(problem.model).double())
    except Exception:  # the model holds something that cannot be copied
        return None

    def widened(batch: Batch) -> Batch:
        fields = {name: getattr(batch, name) for name in ("raw", "arguments", "keywords", "labels")}
        return replace(batch, **tree_map(_wide, fields))

    return wider, [widened(batch) for batch in batches]


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def check_guard(
    problem: Any, guard: Guard | None, names: Iterable[str], *, twice: bool = True
) -> None:
    """Check some parameters' derivatives against finite differences; once per set of names.

    Args:
        problem: model, batches and loss.
        guard: what the plan found; None: nothing needs a check.
        names: names of the parameters to differentiate by.
        twice: whether second derivatives are checked, too.

    Raises:
        ArgumentError: first or second derivatives differ from finite differences.
        RunError: a part cannot be differentiated twice.
    """
    if guard is None:
        return
    refusal: HessblocksError | None = None
    for chosen in (frozenset(problem.parameters), frozenset(names)):
        if (chosen, twice) not in guard.outcomes:
            try:
                _check_row(problem, guard, chosen, twice)
                guard.outcomes[chosen, twice] = None
            except NotFiniteError:
                return  # the products raise it; not stored, for other weights may do
            except HessblocksError as error:
                guard.outcomes[chosen, twice] = error.with_traceback(None)
        if (refusal := guard.outcomes[chosen, twice]) is None:
            return
    if refusal:
        raise refusal


def _check_row(problem: Any, guard: Guard, chosen: frozenset[str], twice: bool) -> None:
    """Raise an error if a derivative of the guard's row is wrong; warn if that is unclear."""
    paired, parameters = problem.with_loss(PAIRING), problem.parameters
    every = witness.direction(parameters, {n: None for n in parameters if n in chosen}, seed=1)
    hidden = {name: every[name] for name in sorted(guard.unreached & chosen)}
    along = {name: z for name, z in every.items() if name not in guard.unreached}
    compare = partial(compare_derivatives, paired, [guard.row], twice=twice)
    if hidden and compare({}, {"": hidden}, {}).names("wrong"):
        through = ", ".join(guard.functions)
        passing = f" (the logits go through the autograd Function {through})" if through else ""
        alone = compare({}, {name: {name: z} for name, z in hidden.items()}, {}).names("wrong")
        raise ArgumentError(
            f"model: the logits change with {[*alone, *hidden][0]!r}, but autograd finds no way to "
            f"it{passing}, and its derivatives would all be 0: a part of the model is detached, "
            f"quantised or run without a graph; {witness.OTHER_OPERATIONS}, or freeze it by "
            "requires_grad_(False)"
        )
    if not (along and guard.functions):
        return
    with torch.enable_grad():
        leaves = {name: parameters[name].requires_grad_() for name in along}
        readout, _ = paired.forward(guard.row, {**parameters, **leaves}, twice=twice)
    if not (functions := witness.walk_graph([readout.hidden]).functions):
        return
    subject = f"the autograd Function {', '.join(functions)}"
    if any(name.endswith(MISSING_SUFFIX) for name in functions):
        raise ArgumentError(
            f"model: {subject} is the output of an operation (an int8 layer, an extension's) "
            "whose derivative torch does not know and takes to be 0; use the model in floating "
            "point, or freeze the layers before it by requires_grad_(False)"
        )
    with witness.named_in_errors(functions):
        rows = {name: itemgetter(name) for name in along} if twice else {}
        compared = compare(along, {"": along}, rows)
    if wrong := compared.names("wrong"):
        worst = {**compared.second, **compared.first}[wrong[0]]
        first = FIRST.format(worst.found, worst.expected)
        reason = SECOND.format(wrong[0], worst.gap / worst.scale) if wrong[0] else first
        raise ArgumentError(f"model: {subject}: {reason}{witness.OTHER_OPERATIONS}")
    largest = max(compared.second.values(), key=attrgetter("scale"), default=compared.first[""])
    if "unclear" in (compared.first[""].verdict, largest.verdict):
        warnings.warn(
            f"curvature: {subject}: finite differences are too inexact in this dtype to check its "
            "derivatives; call hessblocks.check_derivatives(problem) with a float64 model",
            DerivativeWarning,
            stacklevel=2,
        )


def _weighted(logits: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(logits.shape, generator=draw, dtype=torch.float64).to(logits)
    return weights.double() * logits.double()


PAIRING = Differentiated(_weighted, lambda: 1)
"""Loss ⟨c, f⟩ with random c: linear in the logits, so that no logit has a zero gradient."""
