"""Estimate the cost of norms and maps, and choose between probes and samples.

Letters: K probes, G groups. A group's K products cost about a gradient each; 4 K sampled gradients,
two thirds of one each, give the same error for all groups together (docs/products.md).
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
from hessblocks.linalg import FEWEST_PROBES, FEWEST_SAMPLES

Way = Literal["probes", "sampled"]
Blocks = Literal["all", "triangle", "diagonal"]
METHODS = ("auto", "probes", "sampled")
BLOCKS: tuple[Blocks, ...] = ("all", "triangle", "diagonal")
SAMPLES_A_PROBE = 4
"""Samples that tell as much of every group as a probe in each (derived in docs/products.md)."""
PRODUCT = {"all": 1.0, "triangle": 0.6, "diagonal": 0.5}
"""Gradients that a product of H_o costs, by the blocks that are read; mean over the columns of a
deep model (measured)."""
SAMPLE = 0.7
"""Gradients that a sample costs."""
FORWARD = 1 / 3
"""Share of the forward pass in the first sample."""
TIMED = 2
"""Samples that are timed; from one the estimate was half of what 64 took (135M parameters)."""
MOST = 1024
"""Probes or samples that a budget buys at most."""
LONG = 60.0
"""Seconds from which on work is announced though nobody asked what it costs."""
LOG = logging.getLogger("hessblocks.curvature")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Estimated cost of norms or of a map."""

    method: Way
    """probes (products with random vectors in each group) or sampled (random gradients, for H_o
    alone)."""
    count: int
    """Probes per group, or samples in all."""
    groups: int
    """G."""
    products: int
    """Products, or backward passes, in all."""
    seconds: float | None
    """Seconds, from one product; None where it was not asked for."""
    bytes: int
    """At the worst moment, besides model and data, as far as was counted."""

    def __str__(self) -> str:
        """Say all of it in one line."""
        each = f"{self.count} probes in each of {self.groups} groups"
        if self.method == "sampled":
            each = f"{self.count} sampled gradients for all {self.groups} groups"
        took = "" if self.seconds is None else f", about {duration(self.seconds)}"
        return f"{each}: {self.products} products{took}, {in_units(self.bytes)}"


Tell = Callable[[Cost], object]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Norms or a map that somebody asks for."""

    problem: Problem
    """Model, batches and loss."""
    groups: Mapping[str, ParameterGroup]
    """By name."""
    parts: Sequence[Part]
    """Parts H_o, H_f and H to measure."""
    blocks: Blocks
    """Kind of blocks to read."""

    def products(self, probes: int, names: Iterable[str] | None = None) -> int:
        """Count the products of all columns, or of some; none needs more than it has entries."""
        return sum(min(probes, self.groups[name].size) for name in names or self.groups)


def decide(
    work: Work, *, probes: int, method: str, budget: float | None, tell: Tell | None
) -> tuple[Cost, Sampling | None]:
    """Choose method and count, and tell the cost before anything is spent.

    Args:
        work: what is asked for.
        probes: K; 4 K samples stand for them.
        method: probes, sampled, or auto for what is cheaper.
        budget: minutes that take the place of `probes`.
        tell: called with the cost before the work starts; None: it goes to the log, at level INFO.

    Returns:
        The cost, and how samples are drawn where they are.

    Raises:
        ArgumentError: an unknown method or kind of blocks, `sampled` for another part than H_o or
            for a loss that does not tell a root, or a budget that is too small.
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
        # samples that do not fit the memory are refused where somebody insists on them
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
    """Estimate seconds spent once, seconds of each sample, and bytes."""
    some = replace(sampling, batches=1, size=TIMED)
    problem = work.problem
    if not measured:
        return 0.0, 0.0, sampling.bytes
    seconds = _clocked(lambda: gram_matrices(problem, work.groups, some), problem.device)
    one = seconds / (TIMED * (1 - FORWARD) + FORWARD)
    return 0.0, (1 - FORWARD + FORWARD / sampling.size) * one, sampling.bytes


def _of_probes(work: Work, measured: bool) -> tuple[float, float, int]:
    """Estimate seconds spent once, seconds of each probe in the dearest column, and bytes."""
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
        if problem.plan.hold:  # the first has built the graphs
            fixed, each = (
                each,
                _clocked(partial(total_products, problem, vector, block), problem.device),
            )
    vectors = (1 + len(work.parts)) * rows.size * problem.plan.together * like.element_size()
    return fixed, each, problem.plan.peak + vectors


def _affordable(work: Work, sampled: bool, fixed: float, each: float, seconds: float) -> int:
    """Count the probes or samples that so many seconds allow; the same in every process.

    Returns:
        The count.

    Raises:
        ArgumentError: fewer than an error bar needs.
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
    """Measure the seconds of one call, the device's work included."""
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def product_seconds(problem: Problem, group: ParameterGroup) -> float:
    """Measure the seconds of a Hessian-vector product, once the graphs are built.

    Args:
        problem: model, batches and loss.
        group: whose Hessian is multiplied.

    Returns:
        Seconds of one product.

    Raises:
        ArgumentError: not even one row fits the memory.
        RunError: the product is not finite, or there is no second derivative.
    """
    op = Hessian(problem, group)
    vector = torch.ones(group.size, 1, dtype=op.dtype, device=op.device)
    held = problem.plan.hold  # the first product builds the graphs then
    return [_clocked(lambda: op @ vector, problem.device) for _ in range(1 + held)][-1]


class Forecast:
    """Say once, at level WARNING, that work which nobody asked the cost of takes long.

    Its own products are timed: from the second report on, so that what is spent once counts once.
    """

    def __init__(self, cost: Cost, passes: int = 1) -> None:
        """Start the clock.

        Args:
            cost: what was decided; where its seconds are known, they were told already.
            passes: over the data for a product, of which the first alone is reported.
        """
        self._cost, self._total = cost, cost.products * passes
        self._said = cost.seconds is not None
        self._start = time.perf_counter()
        self._first: tuple[int, float] | None = None

    def __call__(self, done: int) -> None:
        """Compare the time so far with the forecast, after so many products."""
        now = time.perf_counter()
        if self._first is None:
            self._first = done, now
            return
        before, then = self._first
        seconds = then - self._start + (now - then) / (done - before) * (self._total - before)
        if seconds > LONG and not self._said:
            self._said = True
            LOG.warning("%s; budget=MINUTES bounds it", replace(self._cost, seconds=seconds))
