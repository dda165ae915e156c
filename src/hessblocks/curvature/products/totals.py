"""Products of a block with vectors, added up over passes and processes.

Letters: K vectors multiplied together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import Part
from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.products.full_memory import said_when_full
from hessblocks.curvature.products.graph import BatchGraph
from hessblocks.curvature.products.problem import Problem
from hessblocks.linalg import working_dtype


def total_products(
    problem: Problem,
    vectors: Float[Tensor, "K columns"],
    rows: ParameterGroup,
    columns: ParameterGroup,
    parts: Sequence[Part],
    *,
    later: Sequence[str] = (),
) -> dict[Part, Float[Tensor, "K rows"]]:
    """Products of a block of H_o, H_f or H with vectors.

    Args:
        problem: the function; where its work is shared between processes, all of them must ask for
            the same products.
        vectors: (K, columns.size).
        rows: group whose rows are wanted.
        columns: group that the vectors lie in.
        parts: which of H_o, H_f and H.
        later: parameters that further products will involve; where graphs are held, they are built
            once for all.

    Returns:
        (K, rows.size) for each part.

    Raises:
        RunError: a loss is not finite, or the memory is full.
    """
    try:
        with said_when_full():
            return _add_up(problem, vectors, rows, columns, parts, later)
    except Exception:
        problem.held = None
        raise


def _add_up(
    problem: Problem,
    vectors: Tensor,
    rows: ParameterGroup,
    columns: ParameterGroup,
    parts: Sequence[Part],
    later: Sequence[str],
) -> dict[Part, Tensor]:
    names = (*(later if problem.plan.hold else ()), *rows.parameters, *columns.parameters)
    involved = tuple(dict.fromkeys(names))
    own = problem.processes.own_vectors(vectors.shape[0])
    mine = vectors[own].contiguous()
    shape = (
        len(parts),
        vectors.shape[0],
        rows.size,
    )  # bfloat16 would lose the small shares of many passes
    total = torch.empty(shape, dtype=working_dtype(vectors.dtype), device=vectors.device)
    if own != slice(0, vectors.shape[0]) or not problem.plan.passes:
        total.zero_()
    try:
        if own.start < own.stop:
            with said_when_full():
                for number, graph in enumerate(_graphs(problem, involved, parts)):
                    _collect(total[:, own], graph, mine, rows, columns, parts, add=number > 0)
    except Exception:
        problem.processes.fail(total)
        raise
    found = problem.processes.total(total).to(vectors.dtype)
    return dict(zip(parts, found, strict=True))


def _graphs(
    problem: Problem, names: tuple[str, ...], parts: Sequence[Part]
) -> Iterable[BatchGraph]:
    """The graph of each pass for these parts.

    Where the plan allows it they are held until others are asked for or the weights change, so that
    a sequence of products (Lanczos) builds them once; else there is one at a time.

    Returns:
        One graph a pass; a list where they are held.
    """
    split = _needs_split(parts)
    fresh = (BatchGraph(problem, batch, names, split=split) for batch in problem.plan.passes)
    if not problem.plan.hold:
        return fresh
    key = (names, split, problem.state)
    if problem.held is None or problem.held[0] != key:
        problem.held = None
        problem.held = (key, list(fresh))
    held: list[BatchGraph] = problem.held[1]
    return held


def _needs_split(parts: Sequence[Part]) -> bool:
    """Whether anything besides H itself is asked for."""
    return list(parts) != ["full"]


def _collect(
    total: Tensor,
    graph: BatchGraph,
    vectors: Tensor,
    rows: ParameterGroup,
    columns: ParameterGroup,
    parts: Sequence[Part],
    *,
    add: bool,
) -> None:
    """Write one pass's share into (parts, K, rows.size), or add it."""
    for start in range(0, vectors.shape[0], graph.together):
        some = slice(start, start + graph.together)
        tensors = columns.scatter(vectors[some], graph.parameters)
        products = (
            graph.split(tensors, rows.parameters, parts)
            if _needs_split(parts)
            else {"full": graph.full(tensors, rows.parameters)}
        )
        for index, part in enumerate(parts):
            rows.collect(products[part], total[index, some], add=add)
