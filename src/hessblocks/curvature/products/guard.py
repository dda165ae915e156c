"""Compare derivatives with finite differences if the graph alone cannot prove them right.

A user's autograd Function may use weights that are not among its inputs (a reentrant checkpoint, a
reversible block). Its backward pass may have no derivative. A parameter that is used without a
graph (detach, int8) wrongly gets the derivative 0. Both cases are checked on one row, for
φ(θ) = ⟨c, f(θ)⟩ with random c, so that no logit has a zero gradient. Other models cost only a walk
through the graph, which the plan needs anyway.

Letters: f logits, c random numbers of the shape of f, g = ∇φ, H = ∇²φ, z a parameter direction.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from hessblocks.curvature import witness
from hessblocks.curvature.losses import Batch
from hessblocks.curvature.products.evaluation import PAIRING, Evaluated, in_float64
from hessblocks.errors import ArgumentError, HessblocksError, RunError, out_of_memory

WAY_OUT = (
    "use torch.utils.checkpoint with use_reentrant=False "
    '(gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})), '
    "switch checkpointing or reversible layers off, or write this part in operations of torch"
)

WITHOUT = "NotImplemented"
"""Suffix of the names of graph nodes that torch inserts where a derivative is missing."""

FIRST = (
    "autograd's gradient is not that of the logits, {:.4g} along a random direction where "
    "differences say {:.4g}: weights that it uses without autograd (a checkpoint of another "
    "library, a reversible block), a straight-through or reversed gradient, or numpy; "
)
SECOND = (
    "the derivative of its backward pass is wrong, H z by {!r} is off differences of the gradient "
    "by {:.2g} of its norm: a backward that is once_differentiable, keeps intermediates without "
    "ctx.save_for_backward, or leaves torch (numpy, a kernel), is right once alone; "
)


class DerivativeWarning(UserWarning):
    """Warning that finite differences are too inaccurate to judge the derivatives."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Comparison of one row's derivatives with finite differences, and its outcomes so far."""

    row: Batch
    """A row of the batch with the most tokens per row."""
    functions: tuple[str, ...]
    """Names of the users' autograd Functions in the graph of the logits."""
    unreached: frozenset[str]
    """Trainable parameters that autograd does not reach from the logits."""
    outcomes: dict[tuple[frozenset[str], bool], HessblocksError | None] = field(
        default_factory=dict
    )
    """Error of each comparison so far, None if it passed; the key is (names, `twice`)."""

    def check(self, problem: Any, names: Sequence[str], *, twice: bool = True) -> None:
        """Check these parameters' derivatives against finite differences; once per set of names.

        Args:
            problem: model, batches and loss.
            names: names of the parameters to differentiate by.
            twice: whether second derivatives are checked, too.

        Raises:
            ArgumentError: first or second derivatives differ from finite differences.
            RunError: a part cannot be differentiated twice.
        """
        every = frozenset(problem.parameters)
        if self._outcome(problem, every, twice=twice) is None:
            return
        if error := self._outcome(problem, frozenset(names), twice=twice):
            raise error

    def _outcome(
        self, problem: Any, names: frozenset[str], *, twice: bool
    ) -> HessblocksError | None:
        """Return the error of these parameters' derivatives, None if they are right."""
        if (names, twice) not in self.outcomes:
            try:
                self._check_unreached(problem, sorted(self.unreached & names), twice=twice)
                self._check_reached(problem, names - self.unreached, twice=twice)
                self.outcomes[names, twice] = None
            except HessblocksError as error:
                self.outcomes[names, twice] = error.with_traceback(None)
            except _NotFiniteError:  # the products raise it; not stored, for other weights may do
                return None
        return self.outcomes[names, twice]

    def _check_unreached(self, problem: Any, names: Sequence[str], *, twice: bool) -> None:
        """Raise an error if the logits change with a parameter that autograd does not reach."""
        if not names:
            return
        parameters = problem.parameters
        plain = problem.without_lazy_logits()

        def logits(at: witness.Tensors) -> Tensor:
            with torch.no_grad():
                found: Tensor = plain.forward(self.row, at, twice=twice)[0].hidden.detach()
            return found

        _check_finite([base := logits(parameters)])
        noise = max(float((logits(parameters) - base).abs().max()) for _ in range(2))
        # a step so short that it hardly changes a discrete choice, such as an expert
        short = witness.epsilon(parameters) ** 0.5 / 2

        def change(some: Sequence[str]) -> bool:
            along = witness.direction(parameters, dict.fromkeys(some), seed=0)
            moves = logits(witness.moved(parameters, along, short)) - base
            return float(moves.abs().max()) > witness.ROUNDED * noise

        if not change(names) or not (hidden := [name for name in names if change([name])]):
            return
        through = ", ".join(self.functions)
        of = f" (the logits go through the autograd Function {through})" if through else ""
        raise ArgumentError(
            f"model: the logits change with {hidden[0]!r}, but autograd finds no way to it{of}, so "
            "that every derivative by it would be 0: a part that is detached, quantised or run "
            f"without a graph; {WAY_OUT}, or freeze it by requires_grad_(False)"
        )

    def _check_reached(self, problem: Any, some: frozenset[str], *, twice: bool) -> None:
        """Compare g and H z with differences in the model's dtype; if they differ, in float64."""
        names = [name for name in problem.parameters if name in some]
        if not (names and self.functions):
            return
        function = Evaluated(problem, [], names, loss=PAIRING, twice=twice)
        graph = function.graph(self.row, problem.parameters, names)
        functions = witness.walk_graph([graph[0].hidden]).functions
        if not functions:
            return
        what = f"the autograd Function {', '.join(functions)}"
        if any(name.endswith(WITHOUT) for name in functions):
            raise ArgumentError(
                f"model: {what} stands for an operation that torch has no derivative of (int8 "
                "layers, an operator of an extension), which counts as 0 in every derivative; "
                "use the model in floating point, or freeze what lies below by "
                "requires_grad_(False)"
            )
        with named_in_errors(functions):
            verdict, message = _compare(problem, self.row, names, twice=twice)
        if verdict != "right" and (wider := in_float64(problem, [self.row])):
            other, (row,) = wider
            try:
                verdict, message = _compare(other, row, names, twice=twice)
            except Exception as error:  # some part supports only float32
                if out_of_memory(error):
                    raise
        if verdict == "wrong":
            raise ArgumentError(f"model: {what}: {message}")
        if verdict == "unclear":
            warnings.warn(
                f"curvature: {what}: differences are too rough in this dtype to tell whether its "
                "derivatives are right; hessblocks.check_derivatives(problem) of a float64 model "
                "tells more",
                DerivativeWarning,
                stacklevel=2,
            )


def _second(
    function: Evaluated, row: Batch, parameters: witness.Tensors, along: witness.Tensors
) -> tuple[witness.Gradient, witness.Gradient]:
    """Differentiate φ twice; return g and H z by name, where z is `along`."""
    _, leaves, found = function.pulled(row, parameters, list(along), create_graph=True)
    pairs = [(g, along[name]) for name, g in found.items() if g.requires_grad]
    first = {name: g.detach() for name, g in found.items()}
    if not pairs:
        return first, {name: torch.zeros_like(g) for name, g in first.items()}
    with function.backward({**parameters, **leaves}):
        gradients, directions = zip(*pairs, strict=True)
        rows = torch.autograd.grad(
            gradients, list(leaves.values()), directions, materialize_grads=True
        )
    return first, dict(zip(leaves, rows, strict=True))


def _compare(problem: Any, row: Batch, names: Sequence[str], *, twice: bool) -> tuple[str, str]:
    """Compare ⟨g, z⟩, and H z per parameter; return the verdict, with a message if `wrong`."""
    parameters = problem.parameters
    along = witness.direction(parameters, dict.fromkeys(names), seed=1)
    function = Evaluated(problem, [row], names, loss=PAIRING, twice=twice)
    if twice:
        gradient, rows = _second(function, row, parameters, along)
    else:
        gradient, rows = function.at(parameters, True)[1], {}
    _check_finite([*gradient.values(), *rows.values()])
    slope = witness.inner(gradient, along)

    def compare(seen: witness.Differences) -> list[witness.Comparison]:
        second = [witness.compare_rows(itemgetter(name), rows, gradient, seen) for name in rows]
        return [witness.compare_slopes(slope, seen), *second]

    first, *second = witness.compare_at_steps(
        function.at, parameters, along, compare, gradients=twice
    )
    if first.verdict == "wrong":
        return "wrong", FIRST.format(first.found, first.expected) + WAY_OUT
    for name, one in zip(rows, second, strict=True):
        if one.verdict == "wrong":
            return "wrong", SECOND.format(name, one.gap / one.scale) + WAY_OUT
    largest = max(second, key=lambda one: one.scale, default=first)
    return ("unclear" if "unclear" in (first.verdict, largest.verdict) else "right"), ""


class _NotFiniteError(Exception):
    """Signal that a value is not finite, so that a comparison is impossible."""


def _check_finite(tensors: Iterable[Tensor]) -> None:
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise _NotFiniteError


@contextmanager
def named_in_errors(functions: Sequence[str]) -> Iterator[None]:
    """Re-raise an error of a derivative as a RunError that names the users' autograd Functions.

    Args:
        functions: names of these Functions; if empty, errors are not changed.

    Raises:
        RunError: a derivative failed.
    """
    try:
        yield
    except (HessblocksError, _NotFiniteError):
        raise
    except Exception as error:
        if not functions or out_of_memory(error):
            raise
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"curvature: the autograd Function {', '.join(functions)} cannot be differentiated as "
            f"curvature needs it ({first}); {WAY_OUT}"
        ) from error
