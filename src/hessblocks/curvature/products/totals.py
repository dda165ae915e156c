"""Sum products of a block with vectors (matvecs) over passes and processes.

Letters: K vectors multiplied together.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import Part
from hessblocks.curvature.closed import Sum
from hessblocks.curvature.groups import ParameterGroup, merge
from hessblocks.curvature.model_state import exclusive
from hessblocks.curvature.products.graph import BatchGraph, Tensors
from hessblocks.curvature.products.problem import Problem
from hessblocks.curvature.sharding import OwnEntries, all_or_none
from hessblocks.curvature.witness import readable_errors
from hessblocks.errors import RunError
from hessblocks.linalg import unit_of, working_dtype

ROUNDING = 1e-12
"""Difference between H and H_o + H_f, as a share, that float64 may explain."""


SQUARED = 1e-150
"""Size of products below which their squares leave float64."""
HALVES = {torch.bfloat16, torch.float16}


class PrecisionWarning(UserWarning):
    """Warning about the model's precision; the message says what it costs.

    A model in float64 computes parts in less, or weights are in half precision.
    """


@dataclass(frozen=True, kw_only=True)
class Block:
    """Block of the Hessian that vectors are multiplied with."""

    rows: ParameterGroup
    """Group whose rows of the products are wanted."""
    columns: ParameterGroup
    """That the vectors lie in."""
    parts: Sequence[Part]
    """Parts H_o, H_f and H to compute."""
    later: Sequence[str] = ()
    """Parameters that further products will involve; where graphs are held, they are built once for
    all."""


def total_products(
    problem: Problem, vectors: Float[Tensor, "K columns"], block: Block
) -> dict[Part, Float[Tensor, "K rows"]]:
    """Multiply a block of H_o, H_f or H with vectors; the result is whole on every process.

    Args:
        problem: the function; where its work is shared between processes, all of them must ask for
            the same products.
        vectors: (K, columns.size).
        block: what they are multiplied with.

    Returns:
        (K, rows.size) for each part.

    Raises:
        RunError: a loss or a product is not finite, or the memory is full.
    """
    if not problem.cuts:
        return own_products(problem, vectors, block)
    own, wanted = (OwnEntries.of(group, problem.cuts) for group in (block.columns, block.rows))
    mine = replace(block, rows=wanted.group, columns=own.group)
    found = own_products(problem, own.read(vectors), mine)
    return {part: wanted.together(product) for part, product in found.items()}


def squared_products(
    problem: Problem,
    vectors: Float[Tensor, "K columns"],
    groups: Sequence[ParameterGroup],
    block: Block,
) -> dict[Part, Float[Tensor, "K groups"]]:
    """Compute ‖·‖² of the result of `total_products` by group; no process holds it whole.

    The squares are in float64.

    Args:
        problem: as there.
        vectors: (K, columns.size).
        groups: that the block's rows are merged of.
        block: as there.

    Returns:
        (K, groups) for each part.

    Raises:
        RunError: a loss or a product is not finite, or the memory is full.
    """
    if problem.cuts:
        own = OwnEntries.of(block.columns, problem.cuts)
        groups = [OwnEntries.of(group, problem.cuts).group for group in groups]
        vectors = own.read(vectors)
        block = replace(block, rows=merge("rows", groups), columns=own.group)
    found = own_products(problem, vectors, block)
    squares = {part: _squares(total, [g.size for g in groups]) for part, total in found.items()}
    if problem.cuts:
        for each in squares.values():
            problem.processes.total(each)
    return squares


def _squares(products: Tensor, sizes: Sequence[int]) -> Tensor:
    """Compute ‖·‖² of each piece of (K, all rows), as (K, pieces) in float64."""
    pieces = products.split(list(sizes), dim=1)
    if products.dtype == torch.float64 and min(map(unit_of, pieces)) < SQUARED:
        warnings.warn(
            f"curvature: a block's products are below {SQUARED:.0e}, whose squares float64 does "
            "not hold; its norm reads too small, or 0. Scale the loss up",
            stacklevel=2,
        )
    norms = [torch.linalg.vector_norm(piece, dim=1, dtype=torch.float64) for piece in pieces]
    return torch.stack(norms, dim=1).square()


def own_products(
    problem: Problem, vectors: Float[Tensor, "K columns"], block: Block
) -> dict[Part, Float[Tensor, "K rows"]]:
    """Multiply as `total_products`, but return this process's entries of a sharded model.

    Groups, vectors and products are this process's entries.

    Args:
        problem: as `total_products` takes it.
        vectors: (K, columns.size).
        block: as `total_products` takes it.

    Returns:
        (K, rows.size) for each part.

    Raises:
        RunError: a loss or a product is not finite, or the memory is full.
    """
    try:
        with exclusive(problem.model), readable_errors():
            problem.follow()
            held = problem.held
            say_precision(problem)
            found = _add_up(problem, vectors, block)
            with all_or_none(problem.device) if problem.cuts else nullcontext():
                check_products(vectors, block.rows, found)
            if held is None or held is not problem.held:
                problem.note_form()  # a pass may have changed what it keeps of itself
            return found
    except Exception:
        problem.held = None
        raise


def say_precision(problem: Problem, *, twice: bool = True) -> None:
    """Warn once of half precision and of casts below float64, with their cost on the first pass.

    Args:
        problem: the function.
        twice: whether products are taken, so that their cost is measured; if not, of gradients
            half precision alone is said.
    """
    half = HALVES & {parameter.dtype for parameter in problem.parameters.values()}
    casts = twice and (half or problem.plan.narrower) and problem.plan.passes
    if problem.precision_known or not (casts or (half and not twice)):
        return
    # cut weights are gathered by all or by none
    gap = _gap(problem) if casts and not (half and problem.cuts) else 0.0
    said = None
    if half:
        share = max(gap, *(torch.finfo(dtype).eps for dtype in half))
        said = (
            f"parameters are {' and '.join(map(str, half))}, whose rounding changes a product by "
            f"{share:.1e} of itself; no result is more exact than that, whatever its error bar. "
            "Measure a copy: model.float()"
        )
    elif gap > ROUNDING:
        said = (
            "the parameters are float64, but parts of the model compute in "
            f"{problem.plan.narrower}: H and H_o + H_f differ by {gap:.1e} of a product, and no "
            "result is more exact"
        )
    if said:
        warnings.warn(f"curvature: {said}", PrecisionWarning, stacklevel=4)
    problem.precision_known = True


def _gap(problem: Problem) -> float:
    """Compare H with H_o + H_f on the first pass, as a share of a product."""
    first, names = next(iter(problem.plan.passes)), tuple(problem.parameters)
    draw = torch.Generator().manual_seed(0)
    vectors = {
        name: torch.randn(1, *p.shape, generator=draw, dtype=p.dtype).to(p.device)
        for name, p in problem.parameters.items()
    }
    full = BatchGraph(problem, first, names, split=False).full(vectors, names)
    split = BatchGraph(problem, first, names).split(vectors, names, ["full"])["full"]

    def in_line(found: Tensors) -> Tensor:
        present = (0 * vectors[n] if t is None else t for n, t in found.items())
        return torch.cat([t.double().flatten() for t in present])

    whole, parts = in_line(full), in_line(split)
    scale, gap = float(whole.norm()), float((whole - parts).norm())
    return gap / (scale or gap or 1.0)


def _add_up(problem: Problem, vectors: Tensor, block: Block) -> dict[Part, Tensor]:
    later = block.later if problem.plan.hold else ()
    involved = tuple(dict.fromkeys((*later, *block.rows.parameters, *block.columns.parameters)))
    own = problem.processes.own_vectors(len(vectors))
    mine = vectors[own].contiguous()
    shape = len(block.parts), len(vectors), block.rows.size
    # bfloat16 would lose the small shares of many passes
    total = torch.empty(shape, dtype=working_dtype(vectors.dtype), device=vectors.device)
    if own != slice(0, len(vectors)) or not problem.plan.passes:
        total.zero_()
    try:
        if own.start < own.stop:
            for number, graph in enumerate(_graphs(problem, involved, block.parts)):
                _collect(total[:, own], graph, mine, block, add=number > 0)
    except Exception:
        if not problem.cuts:
            problem.processes.fail(total)
        raise
    if not problem.cuts:  # else the sums are taken where weights are gathered
        problem.processes.total(total)
    return dict(zip(block.parts, total.to(vectors.dtype), strict=True))


def _graphs(
    problem: Problem, names: tuple[str, ...], parts: Sequence[Part]
) -> Iterable[BatchGraph]:
    """Yield the graph of each pass for these parts.

    Where the plan allows it they are held until others are asked for or the weights change, so that
    a sequence of products (Lanczos) builds them once; else there is one at a time.

    Returns:
        One graph per pass; a list where they are held.
    """
    split = list(parts) != ["full"]  # H alone needs no fixed r
    fresh = (BatchGraph(problem, batch, names, split=split) for batch in problem.plan.passes)
    if not problem.plan.hold:
        return fresh
    key = (names, split, problem.state)
    if problem.held is None or problem.held[0] != key:
        problem.held = None
        problem.held = (key, list(fresh))
    held: list[BatchGraph] = problem.held[1]
    return held


def _collect(total: Tensor, graph: BatchGraph, vectors: Tensor, block: Block, *, add: bool) -> None:
    """Write one pass's share into (parts, K, rows.size), or add it."""
    rows, parts = block.rows, block.parts
    for start in range(0, len(vectors), graph.together):
        some = slice(start, start + graph.together)
        tensors = block.columns.scatter(vectors[some], graph.parameters)
        if list(parts) == ["full"]:
            into = total[0, some]
            own = rows.whole(into, graph.parameters) if len(into) == 1 else {}
            sums = {name: Sum(place[0], fresh=not add) for name, place in own.items()}
            products: dict[Part, Tensors] = {"full": graph.full(tensors, rows.parameters, sums)}
        else:
            products = graph.split(tensors, rows.parameters, parts)
        for index, part in enumerate(parts):
            rows.collect(products[part], total[index, some], add=add)


def check_products(
    vectors: Float[Tensor, "K columns"],
    rows: ParameterGroup,
    products: Mapping[Part, Float[Tensor, "K rows"]],
) -> None:
    """Refuse products that are not finite although the loss and the vectors are.

    Args:
        vectors: that were multiplied.
        rows: group of the products' entries.
        products: by part.

    Raises:
        RunError: an entry is not finite; the message names the first parameter that has one.
    """
    for part, found in products.items():
        if found.sum().isfinite() or found.isfinite().all() or not vectors.isfinite().all():
            continue
        sizes = [view.size for view in rows.views]
        pieces = zip(rows.views, found.split(sizes, dim=1), strict=True)
        name = next(view.parameter for view, piece in pieces if not piece.isfinite().all())
        kind = "NaN" if found.isnan().any() else "infinite"
        raise RunError(
            f"curvature: the loss is finite, but its second derivative is {kind} ({part} part, "
            f"rows of {name!r}): a root, norm, power or logarithm at 0 has none, also where "
            "torch.where hides its value; keep its argument away from 0 before it, torch.where(x > "
            "0, x, 1.0).sqrt()"
        )
