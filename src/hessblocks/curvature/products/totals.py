"""Sum a Hessian block's products with vectors over microbatches and processes.

Letters: K vectors in a batch.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import Part
from hessblocks.curvature.closed import Sum, Unplanned
from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.products.derivatives import check_guard
from hessblocks.curvature.products.graph import BatchGraph, Pulled
from hessblocks.curvature.products.problem import Problem
from hessblocks.curvature.products.single import ForwardMode, whole_graphs
from hessblocks.errors import RunError
from hessblocks.linalg import unit_of, working_dtype

ROUNDING = 1e-12
"""Largest relative difference between H and H_o + H_f that is rounding in float64."""


SQUARED = 1e-150
"""Products below this size have squares that underflow in float64."""
HALVES = {torch.bfloat16, torch.float16}


class PrecisionWarning(UserWarning):
    """Warning that precision is lost; the message says how much.

    A part of a float64 model computes in a narrower dtype, or weights are in half precision.
    """


@dataclass(frozen=True, kw_only=True)
class HessianBlock:
    """Block of the Hessian between two parameter groups."""

    rows: ParameterGroup
    """Group of the block's rows, that of the products."""
    columns: ParameterGroup
    """Group of the block's columns, that of the vectors."""
    parts: Sequence[Part]
    """Parts to compute, of H_o, H_f and H."""
    later: Sequence[str] = ()
    """Parameters of further products; cached graphs are built once, for these too."""


def total_products(
    problem: Problem, vectors: Float[Tensor, "K columns"], block: HessianBlock
) -> dict[Part, Float[Tensor, "K rows"]]:
    """Multiply a block of H_o, H_f or H with vectors; every process gets the whole result.

    Args:
        problem: model, batches and loss. If processes share the work, all of them must call this
            with the same arguments.
        vectors: (K, columns.size).
        block: block of the Hessian.

    Returns:
        (K, rows.size) for each part.

    Raises:
        RunError: a loss or a product is not finite, or the memory is full.
    """
    with problem.computing():
        with suppress(Unplanned):
            return _add_up(problem, vectors, block, planned=False)
        say_precision(problem)
        return _add_up(problem, vectors, block)


def squared_products(
    problem: Problem,
    vectors: Float[Tensor, "K columns"],
    groups: Sequence[ParameterGroup],
    block: HessianBlock,
) -> dict[Part, Float[Tensor, "K groups"]]:
    """Compute ‖·‖² of products per group, in float64.

    Args:
        problem: see `total_products`.
        vectors: (K, columns.size).
        groups: groups whose concatenation is the group of the block's rows.
        block: see `total_products`.

    Returns:
        (K, groups) for each part.

    Raises:
        RunError: a loss or a product is not finite, or the memory is full.
    """
    sizes = [group.size for group in groups]
    products = total_products(problem, vectors, block)
    return {part: _squares(total, sizes) for part, total in products.items()}


def _squares(products: Tensor, sizes: Sequence[int]) -> Tensor:
    """Split (K, Σ sizes) into pieces of these sizes; return their ‖·‖², (K, pieces) in float64."""
    pieces = products.split(list(sizes), dim=1)
    if products.dtype == torch.float64 and min(map(unit_of, pieces)) < SQUARED:
        warnings.warn(
            f"curvature: a block's products are below {SQUARED:.0e}, whose squares float64 does "
            "not hold; its norm reads too small, or 0. Scale the loss up",
            stacklevel=2,
        )
    norms = [torch.linalg.vector_norm(piece, dim=1, dtype=torch.float64) for piece in pieces]
    return torch.stack(norms, dim=1).square()


def say_precision(problem: Problem, *, twice: bool = True) -> None:
    """Warn once of half precision and of casts below float64, with the error on the first pass.

    Args:
        problem: model, batches and loss.
        twice: whether products are computed, so that their error is measured; for gradients, warn
            of half precision only.
    """
    dtypes = {parameter.dtype for parameter in problem.parameters.values()}
    half = HALVES & dtypes
    casts = twice and (half or problem.plan.narrower) and problem.plan.passes
    if problem.warned_of_precision == dtypes or not (casts or (half and not twice)):
        return
    gap = _gap(problem) if casts else 0.0
    message = None
    if half:
        share = max(gap, *(torch.finfo(dtype).eps for dtype in half))
        message = (
            f"parameters are {' and '.join(map(str, half))}, whose rounding changes a product by "
            f"{share:.1e} of itself; no result is more exact than that, whatever its error bar. "
            "Measure a copy: model.float()"
        )
    elif gap > ROUNDING:
        message = (
            "the parameters are float64, but parts of the model compute in "
            f"{problem.plan.narrower}: H and H_o + H_f differ by {gap:.1e} of a product, and no "
            "result is more exact"
        )
    if message:
        warnings.warn(f"curvature: {message}", PrecisionWarning, stacklevel=4)
    problem.warned_of_precision = dtypes


def _gap(problem: Problem) -> float:
    """Compute ‖H z − (H_o + H_f) z‖ / ‖H z‖ for a random z on the first microbatch."""
    first, names = next(iter(problem.plan.passes)), tuple(problem.parameters)
    draw = torch.Generator().manual_seed(0)
    vectors = {
        name: torch.randn(1, *p.shape, generator=draw, dtype=p.dtype).to(p.device)
        for name, p in problem.parameters.items()
    }
    full = BatchGraph(problem, first, names, split=False).full(vectors, names)
    split = BatchGraph(problem, first, names).split(vectors, names, ["full"])["full"]

    def in_line(tensors: Pulled) -> Tensor:
        present = (0 * vectors[n] if t is None else t for n, t in tensors.items())
        return torch.cat([t.double().flatten() for t in present])

    direct, parts = in_line(full), in_line(split)
    scale, gap = float(direct.norm()), float((direct - parts).norm())
    return gap / (scale or gap or 1.0)


def _add_up(
    problem: Problem, vectors: Tensor, block: HessianBlock, *, planned: bool = True
) -> dict[Part, Tensor]:
    later = block.later if problem.keeps_graphs else ()
    involved = tuple(dict.fromkeys((*later, *block.rows.parameters, *block.columns.parameters)))
    shape = len(block.parts), len(vectors), block.rows.size
    # a sum in bfloat16 would lose the small terms of many passes
    total = torch.empty(shape, dtype=working_dtype(vectors.dtype), device=vectors.device)
    if planned and not problem.plan.passes:
        total.zero_()
    try:
        graphs: Iterable[BatchGraph | ForwardMode]
        if planned:
            names = {*block.rows.parameters, *block.columns.parameters}
            check_guard(problem, problem.plan.guard, names)
            split = list(block.parts) != ["full"]  # only H_o and H_f need a constant r
            fresh = (BatchGraph(problem, b, involved, split=split) for b in problem.plan.passes)
            graphs = problem.graphs((involved, split), fresh)
        else:
            graphs = whole_graphs(problem, involved, block.parts, len(vectors))
        for number, graph in enumerate(graphs):
            _collect(total, graph, vectors.contiguous(), block, add=number > 0)
    except Exception:
        problem.processes.fail(total)
        raise
    problem.processes.total(total)
    products = dict(zip(block.parts, total.to(vectors.dtype), strict=True))
    check_products(vectors, block.rows, products)
    return products


def _collect(
    total: Tensor,
    graph: BatchGraph | ForwardMode,
    vectors: Tensor,
    block: HessianBlock,
    *,
    add: bool,
) -> None:
    """Write one microbatch's products into `total`, (parts, K, rows.size), or add them."""
    rows, parts = block.rows, block.parts
    for start in range(0, len(vectors), graph.together):
        chunk = slice(start, start + graph.together)
        tensors = block.columns.scatter(vectors[chunk], graph.parameters)
        if list(parts) == ["full"]:
            assert not isinstance(graph, ForwardMode), "forward mode is for the outer product alone"
            into = total[0, chunk]
            views = rows.whole(into, graph.parameters) if len(into) == 1 else {}
            sums = {name: Sum(view[0], fresh=not add) for name, view in views.items()}
            products: dict[Part, Pulled] = {"full": graph.full(tensors, rows.parameters, sums)}
        else:
            products = graph.split(tensors, rows.parameters, parts)
        for index, part in enumerate(parts):
            rows.collect(products[part], total[index, chunk], add=add)


def check_products(
    vectors: Float[Tensor, "K columns"],
    rows: ParameterGroup,
    products: Mapping[Part, Float[Tensor, "K rows"]],
) -> None:
    """Check that products of finite vectors are finite.

    Args:
        vectors: (K, columns).
        rows: group of the products' entries.
        products: products by part, (K, rows) each.

    Raises:
        RunError: an entry is not finite; the message names the first parameter that has one.
    """
    for part, product in products.items():
        if product.sum().isfinite() or product.isfinite().all() or not vectors.isfinite().all():
            continue
        sizes = [view.size for view in rows.views]
        pieces = zip(rows.views, product.split(sizes, dim=1), strict=True)
        name = next(view.parameter for view, piece in pieces if not piece.isfinite().all())
        kind = "NaN" if product.isnan().any() else "infinite"
        raise RunError(
            f"curvature: the loss is finite, but its second derivative is {kind} ({part} part, "
            f"rows of {name!r}): a root, norm, power or logarithm at 0 has none, also where "
            "torch.where hides its value; keep its argument away from 0 before it, torch.where(x > "
            "0, x, 1.0).sqrt()"
        )
