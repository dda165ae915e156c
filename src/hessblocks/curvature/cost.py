"""Estimate the cost of norms and maps, and choose between probes and samples.

Letters: K probes, G groups. Each of the K products of a group costs about one gradient. With 4 K
sampled gradients, each 2/3 of a gradient, all groups get the same error (docs/products.md).
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from hessblocks.conventions import Part
from hessblocks.curvature.groups import ParameterGroup, merge
from hessblocks.curvature.products import Problem
from hessblocks.curvature.sampled import Sampling, plan_samples, root_is_known
from hessblocks.errors import ArgumentError, check_name, in_units
from hessblocks.linalg import FEWEST_SAMPLES

Way = Literal["probes", "sampled"]
BlockChoice = Literal["all", "diagonal"]
METHODS = ("auto", "probes", "sampled")
BLOCKS: tuple[BlockChoice, ...] = ("all", "diagonal")
SAMPLES_A_PROBE = 4
"""Samples with the same error for every group as one probe per group (see docs/products.md)."""
PRODUCT = {"all": 1.0, "diagonal": 0.5}
"""Cost of a product of H_o in gradients, by kind of blocks; mean over the columns of a deep model
(measured)."""
WHOLE_PRODUCT = 1.7
"""Cost of a product with H over all parameters in gradients (measured)."""
SECOND_ORDER = 1.24
"""Cost of a product with H, H_f or all parts at once, in products with H_o (measured)."""
SAMPLE = 0.7
"""Cost of a sample in gradients."""
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
    gradients: float
    """Estimated time in gradients of the loss."""
    bytes: int
    """Estimated peak memory in bytes, besides model and data."""

    def __str__(self) -> str:
        """Show all fields in one line."""
        drawn = f"{self.count} probes in each of {self.groups} groups"
        if self.method == "sampled":
            drawn = f"{self.count} sampled gradients for all {self.groups} groups"
        products = f"{self.products} products, about {self.gradients:.0f} gradients"
        return f"{drawn}: {products}, {in_units(self.bytes)}"


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
    blocks: BlockChoice
    """Kind of blocks to compute."""

    def products(self, probes: int, names: Iterable[str] | None = None) -> int:
        """Count the products of all columns or some; a column needs at most its size."""
        return sum(min(probes, self.groups[name].size) for name in names or self.groups)

    @property
    def gradients_a_product(self) -> float:
        """Cost of a product with all parts, in gradients."""
        return PRODUCT[self.blocks] * (1.0 if list(self.parts) == ["outer"] else SECOND_ORDER)


def decide(
    work: Work, *, probes: int, method: str, tell: Tell | None = None
) -> tuple[Cost, Sampling | None]:
    """Choose the method, and report the estimated cost.

    Args:
        work: norms or map to compute.
        probes: K; the sampled method uses 4 K samples.
        method: probes, sampled, or auto for the cheaper one.
        tell: called with the cost before the work starts; None: log the cost, at level INFO.

    Returns:
        The cost, and the plan of samples if the method is `sampled`.

    Raises:
        ArgumentError: an unknown method or kind of blocks, or `sampled` for another part than H_o
            or for a callable loss.
    """
    check_name("method", method, METHODS)
    check_name("blocks", work.blocks, BLOCKS)
    if method == "sampled" and list(work.parts) != ["outer"]:
        raise ArgumentError(
            "method: 'sampled' measures H_o alone, since a sample mixes the blocks of H_f and H; "
            f"ask for part 'outer' or use method='probes' (asked for: {', '.join(work.parts)})"
        )
    sampling = None
    if method == "sampled" or (method == "auto" and _sampling_is_cheaper(work, probes)):
        # if samples do not fit the memory, `auto` uses probes, `sampled` raises the error
        with nullcontext() if method == "sampled" else suppress(ArgumentError):
            sampling = plan_samples(work.problem, work.groups, SAMPLES_A_PROBE * probes)
    count = sampling.batches * sampling.size if sampling else probes
    products = len(sampling.pieces) * count if sampling else work.products(count)
    cost = Cost(
        method="sampled" if sampling else "probes",
        count=count,
        groups=len(work.groups),
        products=products,
        gradients=products * (SAMPLE if sampling else work.gradients_a_product),
        bytes=sampling.bytes if sampling else _bytes_of_probes(work),
    )
    (tell or partial(LOG.info, "%s"))(cost)
    return cost, sampling


def _sampling_is_cheaper(work: Work, probes: int) -> bool:
    """Tell whether 4 K samples cost less than the products of K probes per group."""
    if list(work.parts) != ["outer"] or not root_is_known(work.problem):
        return False
    samples = max(FEWEST_SAMPLES, SAMPLES_A_PROBE * probes)
    return SAMPLE * samples < PRODUCT[work.blocks] * work.products(probes)


def _bytes_of_probes(work: Work) -> int:
    """Estimate the peak memory of the first column, with the vectors processed together."""
    problem, groups = work.problem, list(work.groups.values())
    rows = merge("rows", groups if work.blocks == "all" else groups[:1])
    itemsize = problem.parameters[rows.parameters[0]].element_size()
    vectors = (1 + len(work.parts)) * rows.size * problem.plan.together * itemsize
    return problem.plan.peak + vectors
