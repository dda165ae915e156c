"""Graphs for one product alone: of whole batches, without a plan.

A plan and its checks cost about as much as a product, which pays off for several. A product alone
takes each batch whole while its graph fits the memory, and runs the model once. It falls back to a
plan, which compares two passes, if the pass drew random numbers, took numbers from outside of
torch, or could write a parameter unseen (`closed.Unplanned`).

H_o z = Jᵀ H_ℓ J z needs no second derivative: u = J z is one forward pass in forward mode, which is
compared with that of Jᵀ, one backward pass with the model's own kernels. Where an operation has
no forward mode, or attention is long, J z comes from a graph of Jᵀ r, as H z does.

Letters: K vectors that are multiplied at once.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
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

ENTRIES = 1000
"""A graph saves less than tokens × (entries of all parameters + `ENTRIES`) numbers, by far, so that
it need not be counted where so many fit the memory."""

ROUNDED = 16
"""Rounding error of an inner product, in units of ε ‖a‖ ‖b‖."""


def needs_plan(problem: Any, vectors: int) -> bool:
    """Tell whether products need a plan: several, a limit, processes, other devices or dtypes."""
    if vectors > 1 or problem.planned or problem.memory_limit or problem.processes.count > 1:
        return True
    if problem.device.type not in ("cpu", "cuda"):  # whose random numbers may not tell their state
        return True
    dtypes = {parameter.dtype for parameter in problem.parameters.values()}
    return len(dtypes) > 1 or not dtypes <= set(DTYPES)


def whole_graphs(
    problem: Any, names: Sequence[str], parts: Sequence[Part]
) -> Iterator["BatchGraph | ForwardMode"]:
    """Build the graph of each whole batch, one after another.

    Args:
        problem: model, batches and loss.
        names: see `BatchGraph`.
        parts: parts of the Hessian that the products need.

    Yields:
        Each batch's graph.

    Raises:
        Unplanned: a graph does not fit the memory, its derivatives need a check by differences, or
            a part computes in a narrower dtype than the parameters.
        ArgumentError: the forward pass bypasses the modules' parameters.
        RunError: the model is random, or writes its parameters.
    """
    device, weights = problem.device, problem.weights.values()
    itemsize, entries = max(p.element_size() for p in weights), sum(p.numel() for p in weights)
    room = default_limit(device) - VECTORS_HELD * itemsize * entries
    classes = max(len(p) for p in weights if p.ndim)
    for batch in problem.batches:
        tokens = batch.inputs.numel()
        keep = 2 * tokens * classes * itemsize <= room // LOGITS_SHARE
        plan = PassPlan(passes=(), hold=False, keep_logits=keep, together=1)
        pushes = list(parts) == ["outer"] and keep and problem.pushes
        pushes = pushes and tokens < LONG * batch.rows
        numbers = _random_states(device)
        fits = tokens * (entries + ENTRIES) * itemsize <= room
        counting = nullcontext() if fits else SavedTensors(problem, room / REPLAY)
        with unwritten(problem.model, versions_tell=not pushes), counting:
            graph: BatchGraph | ForwardMode = (
                ForwardMode(problem, batch, names, plan)
                if pushes
                else BatchGraph(problem, batch, names, split=[*parts] != ["full"], plan=plan)
            )
        if not pushes and _random_states(device) != numbers:
            raise Unplanned
        _check(problem, graph)
        yield graph


def _random_states(device: torch.device) -> list[object]:
    """Return the states of the random numbers that a forward pass may draw."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    state_of_numpy: Any = np.random.get_state()
    _, keys, position, *_ = state_of_numpy
    in_torch = [state.numpy().tobytes() for state in states]
    return [*in_torch, keys.tobytes(), position]


def _check(problem: Any, graph: "BatchGraph | ForwardMode") -> None:
    """Look at what a graph reaches, and whether it casts."""
    reached = walk_graph(graph.readout.inputs)
    missing = {id(leaf) for leaf in graph.parameters.values()} - reached.leaves
    if reached.functions or missing or reached.casts:
        raise Unplanned
    check_bypass(problem.model, reached)


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
            graph = BatchGraph(self._problem, self._batch, self._names, plan=self._plan)
            return graph.split(vectors, rows, parts)
        check_same(Readout(self.readout.hidden.detach()), Readout(logits))
        derivatives = self._loss.derivatives(self.readout.hidden.detach(), 1 / self._problem.valid)
        self._problem.check_finite(derivatives.total, self._batch)
        if pushed is None:
            return {"outer": dict.fromkeys(rows)}
        curved = derivatives.curvature(pushed)
        names = [*dict.fromkeys((*rows, *vectors))]
        leaves = [self.parameters[name] for name in names]
        tensors = torch.autograd.grad(self.readout.hidden, leaves, curved, allow_unused=True)
        pulled = dict(zip(names, tensors, strict=True))
        self._check_transposed(pushed, curved, vectors, pulled)
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
