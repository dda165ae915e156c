"""Graphs for one product alone: of whole batches, without a plan.

A plan and its checks cost about as much as a product, which pays off for several. A product alone
takes each batch whole while its graph fits the memory, and compares its forward pass with another
one, the first time.

H_o z = Jᵀ H_ℓ J z needs no second derivative: u = J z is one forward pass in forward mode, which is
also the other pass, and Jᵀ one backward pass with the model's own kernels. Where an operation has
no forward mode, or attention is long, J z comes from a graph of Jᵀ r, as H z does.

Letters: K vectors that are multiplied at once.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from hessblocks.conventions import Part
from hessblocks.curvature.closed import DTYPES, LONG, Unplanned
from hessblocks.curvature.losses import Batch, Readout
from hessblocks.curvature.model_state import unwritten
from hessblocks.curvature.products.forward import plain_attention
from hessblocks.curvature.products.graph import BatchGraph, Pulled
from hessblocks.curvature.products.passes import (
    LOGITS_SHARE,
    REPLAY,
    VECTORS_HELD,
    PassPlan,
    SavedTensors,
)
from hessblocks.curvature.products.repeatability import check_same
from hessblocks.curvature.witness import check_bypass, walk_graph
from hessblocks.errors import RunError, out_of_memory
from hessblocks.linalg import default_limit

ROUNDED = 16
"""Rounding error of an inner product, in units of ε ‖a‖ ‖b‖."""


def whole_graphs(
    problem: Any, names: Sequence[str], parts: Sequence[Part], vectors: int
) -> Iterator["BatchGraph | ForwardMode"]:
    """Build the graph of each whole batch, one after another.

    Args:
        problem: model, batches and loss.
        names: see `BatchGraph`.
        parts: parts of the Hessian that the products need.
        vectors: number of vectors.

    Yields:
        Each batch's graph.

    Raises:
        Unplanned: there are several vectors, a limit, several processes or half precision; a graph
            does not fit the memory, its derivatives need a check by differences, or a part computes
            in a narrower dtype than the parameters.
        ArgumentError: the forward pass bypasses the modules' parameters.
        RunError: the model is random, or writes its parameters.
    """
    if vectors > 1 or problem.planned or problem.memory_limit or problem.processes.count > 1:
        raise Unplanned
    parameters, weights = problem.parameters, problem.weights.values()
    dtypes = {parameter.dtype for parameter in parameters.values()}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise Unplanned
    itemsize = next(iter(dtypes)).itemsize
    room = default_limit(problem.device) - VECTORS_HELD * sum(p.nbytes for p in parameters.values())
    classes = max(len(p) for p in weights if p.ndim)
    for batch in problem.batches:
        keep = 2 * batch.inputs.numel() * classes * itemsize <= room // LOGITS_SHARE
        plan = PassPlan(passes=(), hold=False, keep_logits=keep, together=1)
        saved = SavedTensors(weights, dtypes, room / REPLAY)
        pushes = list(parts) == ["outer"] and keep and problem.pushes
        pushes = pushes and batch.inputs.numel() < LONG * batch.rows
        first = frozenset(names) not in problem.checked
        with unwritten(problem.model) if first else nullcontext():
            with saved:
                graph: BatchGraph | ForwardMode = (
                    ForwardMode(problem, batch, names, plan)
                    if pushes
                    else BatchGraph(problem, batch, names, split=[*parts] != ["full"], plan=plan)
                )
            _check(problem, graph.readout, graph.parameters, saved)
            if first and not pushes:
                with torch.no_grad():
                    _compare(graph.readout, problem.forward(batch, parameters)[0].hidden)
            problem.checked.add(frozenset(names))
        yield graph


def _check(
    problem: Any, readout: Readout, leaves: Mapping[str, Tensor], saved: SavedTensors
) -> None:
    """Look at what a graph reaches, and at its dtypes."""
    reached = walk_graph(readout.inputs)
    missing = {id(leaf) for leaf in leaves.values()} - reached.leaves
    if reached.functions or missing or saved.narrowest != next(iter(leaves.values())).dtype:
        raise Unplanned
    check_bypass(problem.model, reached)


def _compare(readout: Readout, again: Tensor) -> None:
    check_same(Readout(readout.hidden.detach()), Readout(again))


class ForwardMode:
    """Jᵀ as one graph, and J by forward mode, for one product with H_o; see `BatchGraph`."""

    together = 1

    def __init__(self, problem: Any, batch: Batch, names: Sequence[str], plan: PassPlan) -> None:
        """Run the forward pass as for a gradient."""
        self._problem, self._batch, self._names, self._plan = problem, batch, names, plan
        parameters = problem.parameters
        self.parameters = {name: parameters[name].requires_grad_() for name in names}
        try:
            with torch.enable_grad():
                self.readout, self._loss = problem.forward(
                    batch, parameters | self.parameters, twice=False
                )
        except RunError as error:  # kernels of a forward pass alone may lack the dtype: the
            raise Unplanned from error  # plan's operations are others, or it tells what failed

    def split(
        self,
        vectors: Mapping[str, Float[Tensor, "K ..."]],
        rows: Sequence[str],
        parts: Sequence[Part],
    ) -> dict[Part, Pulled]:
        """Compute H_o z of one vector; see `BatchGraph.split`."""
        try:
            logits, pushed = self._push(vectors)
        except Exception as error:
            if out_of_memory(error):
                raise
            self._problem.pushes = False  # some operation has no forward mode
            raise Unplanned from error
        _compare(self.readout, logits)
        hidden = self.readout.hidden.detach()
        derivatives = self._loss.derivatives(hidden, 1 / self._problem.valid)
        self._problem.check_finite(derivatives.total, self._batch)
        pushed = torch.zeros_like(hidden) if pushed is None else pushed
        curved = derivatives.curvature(pushed)
        nothing = not pushed.any()
        if nothing:  # J z = 0, or all of it was lost: another cotangent tells
            draw = torch.Generator().manual_seed(0)
            curved = torch.randn(hidden.shape, generator=draw).to(hidden)
        names = [*dict.fromkeys((*rows, *vectors))]
        leaves = [self.parameters[name] for name in names]
        tensors = torch.autograd.grad(self.readout.hidden, leaves, curved, allow_unused=True)
        pulled = dict(zip(names, tensors, strict=True))
        self._check_transposed(pushed, curved, vectors, pulled)
        if nothing:
            return {"outer": dict.fromkeys(rows)}
        return {"outer": {n: None if (t := pulled[n]) is None else t[None] for n in rows}}

    def _check_transposed(
        self, pushed: Tensor, curved: Tensor, vectors: Mapping[str, Tensor], pulled: Any
    ) -> None:
        """Check that J is the transpose of Jᵀ: ⟨J z, w⟩ = ⟨z, Jᵀ w⟩ with w = H_ℓ J z.

        A model may detach what requires no gradient, and so lose a part of J in forward mode.

        Raises:
            Unplanned: it is not, beyond rounding.
        """
        pairs = [
            (z.flatten(), t.flatten()) for n, z in vectors.items() if (t := pulled[n]) is not None
        ]
        gap = float(torch.sum(pushed * curved)) - sum(float(z @ t) for z, t in pairs)
        eps = torch.finfo(pushed.dtype).eps
        rounding = eps * sum(float(z.norm() * t.norm()) for z, t in pairs)
        if abs(gap) > math.sqrt(eps) * float(pushed.norm() * curved.norm()) + ROUNDED * rounding:
            self._problem.pushes = False
            raise Unplanned

    def _push(self, vectors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Compute the logits and u = J z."""
        parameters = {name: p.detach() for name, p in self._problem.parameters.items()}
        with torch.no_grad(), plain_attention, forward_ad.dual_level():
            duals = {n: forward_ad.make_dual(parameters[n], z[0]) for n, z in vectors.items()}
            readout, _ = self._problem.forward(self._batch, parameters | duals, twice=False)
            logits, pushed = forward_ad.unpack_dual(readout.hidden)
        return logits, pushed
