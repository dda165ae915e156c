"""Estimate the cost of norms and maps, and choose between probes and samples.

Letters: K probes, G groups. Each of the K products of a group costs about one gradient. With 4 K
sampled gradients, each 2/3 of a gradient, all groups get the same error (docs/products.md).
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from hessblocks.conventions import Part
from hessblocks.curvature.columns import rows_of
from hessblocks.curvature.groups import ParameterGroup, merge
from hessblocks.curvature.products import Block, Hessian, Problem, total_products
from hessblocks.curvature.sampled import Sampling, gram_matrices, plan_samples, root_is_known
from hessblocks.errors import ArgumentError, check_name, duration, in_units
from hessblocks.linalg import FEWEST_PROBES, FEWEST_SAMPLES, keeping

Way = Literal["probes", "sampled"]
Blocks = Literal["all", "triangle", "diagonal"]
METHODS = ("auto", "probes", "sampled")
BLOCKS: tuple[Blocks, ...] = ("all", "triangle", "diagonal")
SAMPLES_A_PROBE = 4
"""Samples with the same error for every group as one probe per group (see docs/products.md)."""
PRODUCT = {"all": 1.0, "triangle": 0.6, "diagonal": 0.5}
"""Cost of a product of H_o in gradients, by kind of blocks; mean over the columns of a deep model
(measured)."""
SAMPLE = 0.7
"""Cost of a sample in gradients."""
FORWARD = 1 / 3
"""Share of the forward pass in the time of the first sample."""
TIMED = 2
"""Number of timed samples; the estimate from 1 was half the time of 64 (135M parameters)."""
MOST = 1024
"""Upper bound on the probes or samples for a budget."""
LONG = 60.0
"""Work that takes more seconds is announced, even if nobody asked for its cost."""
LOG = logging.getLogger("hessblocks.curvature")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Estimated cost of norms or of a map."""

    method: Way
    """`probes` (products with random vectors in each group) or `sampled` (random gradients, for H_o
    only)."""
    count: int
    """Probes per group, or total number of samples."""
    groups: int
    """G."""
    products: int
    """Total number of products, or of backward passes."""
    seconds: float | None
    """Seconds, extrapolated from one product; None if not estimated."""
    bytes: int
    """Estimated peak memory in bytes, besides model and data."""

    def __str__(self) -> str:
        """Show all fields in one line."""
        each = f"{self.count} probes in each of {self.groups} groups"
        if self.method == "sampled":
            each = f"{self.count} sampled gradients for all {self.groups} groups"
        took = "" if self.seconds is None else f", about {duration(self.seconds)}"
        return f"{each}: {self.products} products{took}, {in_units(self.bytes)}"


Tell = Callable[[Cost], object]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Description of norms or a map to compute."""

    problem: Problem
    """Model, batches and loss."""
    groups: Mapping[str, ParameterGroup]
    """Groups by name."""
    parts: Sequence[Part]
    """Parts H_o, H_f and H to measure."""
    blocks: Blocks
    """Kind of blocks to compute."""

    def products(self, probes: int, names: Iterable[str] | None = None) -> int:
        """Count the products of all columns or some; a column needs at most its size."""
        return sum(min(probes, self.groups[name].size) for name in names or self.groups)


def decide(
    work: Work, *, probes: int, method: str, budget: float | None, tell: Tell | None
) -> tuple[Cost, Sampling | None]:
    """Choose the method and its number of probes or samples, and report the estimated cost.

    Args:
        work: norms or map to compute.
        probes: K; the sampled method uses 4 K samples.
        method: probes, sampled, or auto for the cheaper one.
        budget: minutes; determines the number of probes or samples instead of `probes`.
        tell: called with the cost before the work starts; None: log the cost, at level INFO.

    Returns:
        The cost, and the plan of samples if the method is `sampled`.

    Raises:
        ArgumentError: an unknown method or kind of blocks, `sampled` for another part than H_o or
            for a callable loss, or a budget that is too small.
    """
    check_name("method", method, METHODS)
    check_name("blocks", work.blocks, BLOCKS)
    if budget is not None and not (isinstance(budget, float | int) and 0 < budget < math.inf):
        raise ArgumentError(f"budget: expected minutes above 0, got {budget!r}")
    if method == "sampled" and list(work.parts) != ["outer"]:
        raise ArgumentError(
            "method: 'sampled' measures H_o alone, since a sample mixes the blocks of H_f and H; "
            f"ask for part 'outer' or use method='probes' (asked for: {', '.join(work.parts)})"
        )
    started, measured = time.perf_counter(), bool(budget or tell or LOG.isEnabledFor(logging.INFO))
    sampling = None
    if method == "sampled" or (method == "auto" and _sampling_is_cheaper(work, probes)):
        # if samples do not fit the memory, `auto` uses probes, `sampled` raises the error
        with nullcontext() if method == "sampled" else suppress(ArgumentError):
            sampling = plan_samples(work.problem, work.groups, SAMPLES_A_PROBE * probes)
    price = _of_samples(work, sampling, measured) if sampling else _of_probes(work, measured)
    fixed, each, peak = price
    count = sampling.batches * sampling.size if sampling else probes
    if budget is not None:
        left = 60 * budget - (time.perf_counter() - started)
        count = _affordable(work, sampling is not None, fixed, each, left)
        if sampling:
            sampling = plan_samples(work.problem, work.groups, count)
            count, peak = sampling.batches * sampling.size, sampling.bytes
    passes = len(sampling.pieces) * count if sampling else work.products(count)
    cost = Cost(
        method="sampled" if sampling else "probes",
        count=count,
        groups=len(work.groups),
        products=passes,
        seconds=fixed + each * (count if sampling else passes) if measured else None,
        bytes=peak,
    )
    if measured:
        (tell or LOG.info)(cost if tell else str(cost))  # type: ignore[arg-type]
    return cost, sampling


def _sampling_is_cheaper(work: Work, probes: int) -> bool:
    """Tell whether 4 K samples cost less than the products of K probes per group."""
    if list(work.parts) != ["outer"] or not root_is_known(work.problem):
        return False
    samples = max(FEWEST_SAMPLES, SAMPLES_A_PROBE * probes)
    return SAMPLE * samples < PRODUCT[work.blocks] * work.products(probes)


def _of_samples(work: Work, sampling: Sampling, measured: bool) -> tuple[float, float, int]:
    """Estimate fixed seconds, seconds per sample, and bytes."""
    some = replace(sampling, batches=1, size=TIMED)
    problem = work.problem
    if not measured:
        return 0.0, 0.0, sampling.bytes
    seconds = _clocked(lambda: gram_matrices(problem, work.groups, some), problem.device)
    one = seconds / (TIMED * (1 - FORWARD) + FORWARD)
    return 0.0, (1 - FORWARD + FORWARD / sampling.size) * one, sampling.bytes


def _of_probes(work: Work, measured: bool) -> tuple[float, float, int]:
    """Estimate fixed seconds, seconds per probe in the most expensive column, and bytes."""
    problem, groups = work.problem, work.groups
    name, group = next(iter(groups.items()))
    rows = merge("rows", [groups[one] for one in rows_of(list(groups), name, work.blocks)])
    later = [one for known in groups.values() for one in known.parameters]
    block = Block(rows=rows, columns=group, parts=work.parts, later=later)
    like = problem.parameters[group.parameters[0]]
    vector = torch.ones(1, group.size, dtype=like.dtype, device=like.device)
    fixed = each = 0.0
    if measured:
        each = _clocked(partial(total_products, problem, vector, block), problem.device)
        if problem.plan.hold:  # the first product builds the cached graphs
            fixed, each = (
                each,
                _clocked(partial(total_products, problem, vector, block), problem.device),
            )
    vectors = (1 + len(work.parts)) * rows.size * problem.plan.together * like.element_size()
    return fixed, each, problem.plan.peak + vectors


def _affordable(work: Work, sampled: bool, fixed: float, each: float, seconds: float) -> int:
    """Compute the number of probes or samples for a time of `seconds`, equal in all processes.

    Returns:
        The number.

    Raises:
        ArgumentError: it is too small for an error bar.
    """
    least = FEWEST_SAMPLES if sampled else FEWEST_PROBES
    products = least if sampled else work.products(least)
    at_once = 1 if sampled else len(work.groups)
    count = min(MOST, int((seconds - fixed) / max(each * at_once, 1e-9)))
    count = work.problem.processes.least(max(count, 0), work.problem.device)
    if count < least:
        needed = fixed + each * products
        raise ArgumentError(
            f"budget: too small; {products} products, the fewest for an error bar, take about "
            f"{duration(needed)} ({each:.2g} s each): give that much, or choose fewer groups"
        )
    return count


def _clocked(run: Callable[[], object], device: torch.device) -> float:
    """Measure the seconds of one call, including the work on the device."""
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


@keeping
def product_seconds(problem: Problem, group: ParameterGroup) -> float:
    """Measure the seconds of a Hessian-vector product, once the graphs are built.

    Args:
        problem: model, batches and loss.
        group: group of the Hessian's rows and columns.

    Returns:
        Seconds of one product.

    Raises:
        ArgumentError: one row of a batch does not fit the memory.
        RunError: the product is not finite, or there is no second derivative.
    """
    op = Hessian(problem, group)
    vector = torch.ones(group.size, 1, dtype=op.dtype, device=op.device)
    held = problem.plan.hold  # then the first product builds the graphs
    return [_clocked(lambda: op @ vector, problem.device) for _ in range(1 + held)][-1]


class Forecast:
    """Logs one WARNING if work without a reported cost will take long.

    It times the work's products; fixed costs end with the first report.
    """

    def __init__(self, cost: Cost, passes: int = 1) -> None:
        """Start the clock.

        Args:
            cost: cost from `decide`; if it has seconds, it was reported already.
            passes: passes over the data per product, of which only the first is reported.
        """
        self._cost, self._total = cost, cost.products * passes
        self._said = cost.seconds is not None
        self._start = time.perf_counter()
        self._first: tuple[int, float] | None = None

    def __call__(self, done: int) -> None:
        """Extrapolate the time so far, after `done` products; warn if the total is long."""
        now = time.perf_counter()
        if self._first is None:
            self._first = done, now
            return
        before, then = self._first
        seconds = then - self._start + (now - then) / (done - before) * (self._total - before)
        if seconds > LONG and not self._said:
            self._said = True
            LOG.warning("%s; budget=MINUTES bounds it", replace(self._cost, seconds=seconds))
