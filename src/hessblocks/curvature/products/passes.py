"""Split batches into microbatches (passes) that fit the memory and the caches.

The loss is a sum over rows, so that the split changes results only by rounding.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm

from hessblocks.curvature.closed import Unplanned, graph_only
from hessblocks.curvature.losses import Batch, Batches, rows_together
from hessblocks.curvature.model_state import form_of, unwritten
from hessblocks.curvature.products.repeatability import RowComparison, check_rows, check_same
from hessblocks.curvature.witness import check_bypass, named_in_errors, walk_graph
from hessblocks.errors import ArgumentError, HessblocksError, in_units
from hessblocks.linalg import default_limit

FULL_CPU_WORK = 1 << 36
"""Multiplications per forward pass from which more rows do not speed up a CPU (measured)."""

BATCHED_WORK = 1 << 24
"""Multiplications per forward pass below which batches of vectors pay off (docs/products.md)."""

REPLAY = 2.3
"""Peak memory of building and replaying a graph, relative to its saved tensors (measured)."""

LOGITS_ARRAYS = 5
"""Further arrays in memory, each as large as the logits: probabilities, residual, direction,
product (counted)."""

FORWARD_ARRAYS = 10
"""Arrays in memory during a forward pass without a graph, each as large as the largest tensor that
a graph would save (counted)."""

LOGITS_SHARE = 4
"""Probabilities and residuals are cached if they fit in 1 / LOGITS_SHARE of the memory."""

VECTORS_HELD = 4
"""Arrays in memory, each as large as the parameters: gradient, vector, product and its copy
(counted)."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Microbatches of this process; an iteration reads them again, one at a time on the device."""

    batches: Batches
    """Batches that are split into microbatches."""
    rows_per_pass: Callable[[int], int]
    """Maps the number of rows of a batch to the most rows of its microbatches."""
    turns: slice
    """Selects this process's microbatches from those of all processes."""

    def sizes(self) -> list[int]:
        """List the number of rows of each microbatch of all processes."""
        sizes = []
        for rows in self.batches.rows:
            limit = max(1, self.rows_per_pass(rows))
            sizes += [min(limit, rows - start) for start in range(0, max(1, rows), limit)]
        return sizes

    def __len__(self) -> int:
        """Count this process's passes."""
        return len(self.sizes()[self.turns])

    def __iter__(self) -> Iterator[Batch]:
        """Read and split the batches; yield this process's microbatches."""
        pieces = (
            piece for batch in self.batches for piece in batch.split(self.rows_per_pass(batch.rows))
        )
        yield from islice(pieces, self.turns.start, None, self.turns.step)


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What a graph leaves unproved of the derivatives, and what finite differences said of it."""

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


@dataclass(frozen=True, kw_only=True)
class PassPlan:
    """Choice of rows per pass and of vectors per product."""

    passes: Sequence[Batch] | Passes
    """Microbatches, one per forward pass."""
    hold: bool
    """Whether the graphs of all passes fit the memory at the same time."""
    keep_logits: bool
    """Whether probabilities and residuals of all tokens fit beside these graphs."""
    together: int
    """Number of vectors per replay."""
    peak: int = 0
    """Estimated peak memory in bytes, without model and data."""
    narrower: torch.dtype | None = None
    """Narrower dtype that parts of a float64 model compute in; None if no part does."""
    guard: Guard | None = None
    """Check of derivatives by finite differences; None if the graph alone proves them right."""


class SavedTensors(saved_tensors_hooks):
    """Counts what graphs save beside the weights, while they are built in this context."""

    def __init__(
        self,
        weights: Iterable[Float[Tensor, "..."]],
        dtypes: Iterable[torch.dtype],
        limit: float = math.inf,
    ) -> None:
        """Start at 0.

        Args:
            weights: the model's weights, which do not count.
            dtypes: dtypes of the trainable parameters.
            limit: bytes beyond which the construction raises `Unplanned`.
        """
        self._weights = {p.untyped_storage().data_ptr() for p in weights}
        self._sizes: dict[int, int] = {}
        self._limit, self.nbytes = limit, 0
        self.dtypes = {*dtypes}
        """Dtypes of the real tensors, and of the trainable parameters."""
        super().__init__(self._note, lambda tensor: tensor)

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor; 0 if nothing was saved."""
        return max(self._sizes.values(), default=0)

    @property
    def narrowest(self) -> torch.dtype:
        """Narrowest of `dtypes`."""
        narrowest: torch.dtype = min(self.dtypes, key=lambda dtype: dtype.itemsize)
        return narrowest

    def _note(self, tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            self.dtypes.add(tensor.dtype)
        storage = tensor.untyped_storage()
        if (key := storage.data_ptr()) not in self._weights:
            self.nbytes += storage.nbytes() - self._sizes.get(key, 0)
            self._sizes[key] = storage.nbytes()
        if self.nbytes > self._limit:
            raise Unplanned
        return tensor.detach()  # a node that saves its own output would be a reference cycle


@dataclass(frozen=True, kw_only=True)
class RowCost:
    """Work and memory of one row (one sequence) of the widest batch."""

    work: int
    """Approximate multiplications of the forward pass: tokens · parameters."""
    graph: int
    """Bytes of the tensors that the graph saves."""
    logits: int
    """Bytes of probabilities and residuals; 0 if the graph saves the logits."""
    peak: int
    """Peak bytes of one product, without arrays of the size of the parameters."""
    bare: int
    """Approximate peak bytes of a forward pass without a graph."""
    narrowest: torch.dtype
    """Narrowest dtype that parts of the model compute in."""
    guard: Guard | None
    """See `PassPlan`."""


def make_plan(
    problem: Any,
    *,
    twice: bool = True,
    spare: int = 0,
    most_rows: int | None = None,
    share: int = 1,
) -> PassPlan:
    """Choose the number of rows per pass and of vectors per replay.

    Args:
        problem: `memory_limit` bounds the memory besides model and data. If it is None, the bound
            is a quarter of the machine's memory, and batches with a callable loss are not split.
            Of a sharded model, passes are the batches as they are given.
        twice: whether second derivatives will be computed; if not, only gradients.
        spare: bytes that the caller needs besides the passes.
        most_rows: upper bound on the rows per pass, if batches can be split.
        share: use 1 / `share` of the rows that fit, so that the caller has the rest of the memory.

    Returns:
        The plan of this process.

    Raises:
        ArgumentError: one row does not fit, `memory_limit` is set for batches that cannot be split,
            rows of a batch to be split depend on each other, or the graph of the logits does not
            contain the parameters.
        RunError: the model is random even in evaluation mode.
    """
    processes, device = problem.processes, problem.device
    if problem.sharded:
        return _plan_of_sharded(problem, spare, most_rows, twice=twice)
    parameters = sum(p.numel() * p.element_size() for p in problem.parameters.values())
    double = all(p.dtype == torch.float64 for p in problem.parameters.values())
    cost = _row_cost(problem, twice=twice)
    fixed = VECTORS_HELD * parameters + spare
    rest = (problem.memory_limit or default_limit(device)) - fixed
    rows = processes.least(rest // cost.peak, device)  # passes are divided by their numbers
    if rows < 1:
        raise ArgumentError(
            f"memory_limit: one row of a batch needs about {in_units(fixed + cost.peak)}, the "
            f"limit is {in_units(fixed + rest)}; raise the limit or shorten the sequences"
        )
    rows = max(1, rows // share)
    if device.type == "cpu":
        rows = min(rows, max(1, FULL_CPU_WORK // cost.work))
    rows = min(rows, most_rows or rows)
    passes = _cut(problem, rows, rest // cost.bare, cost.narrowest, twice=twice)
    sizes = passes.sizes()
    widest, own_rows = max(sizes), max(sum(share) for share in processes.shares(sizes))
    graphs, logits = own_rows * cost.graph, own_rows * cost.logits
    spent = graphs + widest * (cost.peak - cost.graph)
    hold = spent <= rest
    keep = hold and twice and logits <= min(rest - spent, rest // LOGITS_SHARE)
    return PassPlan(
        passes=passes,
        hold=hold,
        keep_logits=keep,
        peak=fixed + (graphs if hold and twice else 0) + keep * logits + widest * cost.peak,
        together=_together(rest, parameters, widest, cost),
        narrower=cost.narrowest if double and cost.narrowest != torch.float64 else None,
        guard=cost.guard,
    )


def _plan_of_sharded(problem: Any, spare: int, most_rows: int | None, *, twice: bool) -> PassPlan:
    """Plan passes over whole batches, or over at most `most_rows` rows of a batch."""
    row, parameters = problem.batches.widest_row, problem.parameters
    with torch.no_grad():
        first, second = (problem.forward(row, parameters, twice=twice)[0] for _ in range(2))
    check_same(first, second)
    dtypes = {first.hidden.dtype, *(parameter.dtype for parameter in parameters.values())}
    narrowest = min(dtypes, key=lambda dtype: dtype.itemsize)
    rows = most_rows or max(problem.batches.rows)
    passes = _cut(problem, rows, rows, narrowest, twice=twice)
    return PassPlan(passes=passes, hold=False, keep_logits=False, together=1, peak=spare)


def _cut(
    problem: Any, rows: int, rows_that_fit: int, narrowest: torch.dtype, *, twice: bool
) -> Passes:
    """Split the batches into passes of at most `rows` rows; check that rows are independent.

    Args:
        problem: problem with the batches.
        rows: upper bound on the rows per pass.
        rows_that_fit: number of rows that fit the memory in a forward pass without a graph.
        narrowest: narrowest dtype that the model computes in.
        twice: whether second derivatives will be computed.

    Returns:
        The passes of this process.
    """
    batches, processes = problem.batches, problem.processes
    # rows of a callable loss may depend on each other; with memory_limit the user excludes that
    custom = callable(problem.loss) and not isinstance(problem.loss, nn.Module)
    uncut = _batch_norm_ties_rows(problem) or (custom and problem.memory_limit is None)
    passes = Passes(
        batches=batches,
        rows_per_pass=lambda count: count if uncut else min(rows, processes.rows_each(count)),
        turns=processes.turns,
    )
    # a model that has changed may make rows depend on each other
    cut, key = len(passes.sizes()) > len(batches), (rows, form_of(problem.model))
    if cut and key not in batches.compared:
        comparison = RowComparison(
            problem=problem,
            twice=twice,
            rows_per_pass=passes.rows_per_pass,
            rows_that_fit=rows_that_fit,
            dtype=narrowest,
        )
        check_rows(comparison)
        batches.compared.add(key)
    return passes


def _batch_norm_ties_rows(problem: Any) -> bool:
    """Tell whether batch norm makes rows depend on each other, so that batches stay whole."""
    norms = [m for m in problem.model.modules() if isinstance(m, _BatchNorm)]
    tied = any(norm.running_mean is None for norm in norms)
    if tied and problem.memory_limit is not None:
        raise ArgumentError(
            "memory_limit: batch norm without running statistics mixes the rows of a batch, which "
            "cannot be cut then; leave the limit out, or set track_running_stats=True"
        )
    return tied


def _together(rest: int, parameters: int, rows: int, cost: RowCost) -> int:
    """Choose the vectors per replay: several if a pass is small, one if it fills the processor."""
    worth = max(1, BATCHED_WORK // (rows * cost.work))
    rows_that_fit = rest // (rows * cost.peak + VECTORS_HELD * parameters)
    return max(1, min(worth, rows_that_fit))


def _row_cost(problem: Any, *, twice: bool) -> RowCost:
    """Measure work and memory with one row of the batch that has the most tokens per row."""
    row = problem.batches.widest_row
    leaves = {name: p.requires_grad_() for name, p in problem.parameters.items()}
    inputs = list(leaves.values())
    saved = SavedTensors(problem.weights.values(), {p.dtype for p in inputs})
    with unwritten(problem.model), torch.enable_grad(), saved:
        readout, _ = problem.forward(row, leaves, twice=twice)
        reached = walk_graph(readout.inputs)
        check_bypass(problem.model, reached)
        check_same(readout, problem.forward(row, problem.parameters, twice=twice)[0])
        if twice and readout.hidden.requires_grad:  # the graph of the gradient saves more tensors
            ones = torch.ones_like(readout.hidden, requires_grad=True)
            with graph_only(inputs), problem.backward(), named_in_errors(reached.functions):
                torch.autograd.grad(
                    readout.hidden, inputs, ones, create_graph=True, allow_unused=True
                )
    unreached = frozenset(name for name, leaf in leaves.items() if id(leaf) not in reached.leaves)
    guard = Guard(row=row, functions=reached.functions, unreached=unreached)
    graph = saved.nbytes
    itemsize = readout.hidden.element_size()
    size = readout.hidden.numel() * itemsize
    temporary = min(rows_together(readout.classes), readout.tokens) * readout.classes * itemsize
    # tokens: the number of token ids; for other inputs, the rows of logits
    tokens = max(readout.tokens, 1 if row.inputs.is_floating_point() else row.inputs.numel())
    return RowCost(
        work=tokens * sum(p.numel() for p in inputs),
        graph=graph + 2 * size,
        logits=0 if readout.weight is None else 2 * readout.tokens * readout.classes * itemsize,
        bare=FORWARD_ARRAYS * max(size, saved.largest),  # a model of one layer saves nothing
        narrowest=saved.narrowest,
        peak=int(REPLAY * graph) + LOGITS_ARRAYS * (size if readout.weight is None else temporary),
        guard=guard if guard.functions or guard.unreached else None,
    )
