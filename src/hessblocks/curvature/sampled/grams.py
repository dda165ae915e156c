"""Sample gradients whose covariance is the Gauss-Newton matrix H_o; compute their Gram matrices.

Letters: G groups, B batches of samples, S samples per batch, N entries of several groups.

Let L Lᵀ = H_ℓ and ε be random signs. Then g = Jᵀ L ε has E g gᵀ = Jᵀ L Lᵀ J = H_o, and costs one
ordinary backward pass. The samples of a batch are in memory together, in the dtype of the
parameters or float32. Only their S × S inner products per group are kept. If even a small batch
does not fit, the same samples are drawn again for each piece, a subset of the groups.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.curvature.groups import ParameterGroup, merge
from hessblocks.curvature.products import (
    LocalEntries,
    PassPlan,
    Problem,
    check_guard,
    make_plan,
    readable_errors,
    say_precision,
)
from hessblocks.curvature.sampled.one_pass import SHARE, SampledPass
from hessblocks.errors import ArgumentError, RunError, check_whole, in_units
from hessblocks.linalg import FEWEST_SAMPLES, default_limit, keeping, unit_of

AT_ONCE = 1 << 18
"""Entries per partial inner product; partial products are summed in float64."""
MILD = (1e-12, 1e24)
"""Range of squared norms in which float32 products neither overflow nor underflow."""
OnSample = Callable[[int], object]
"""Callback with the number of samples drawn so far."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Plan of batches of samples and pieces of groups."""

    plan: PassPlan
    """The passes over the data."""
    batches: int
    """B, the number of batches of samples."""
    size: int
    """S, the number of samples per batch; pairs are formed within a batch."""
    pieces: tuple[tuple[str, ...], ...]
    """Names of the groups in each piece; each piece needs separate backward passes."""
    bytes: int
    """Peak memory in bytes, besides model and data."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GramMatrices:
    """Inner products of the samples, per group."""

    products: Float[Tensor, "G B S S"]
    """g_sⁱ·g_tⁱ for group i and samples s, t, in float64 on the CPU."""


def root_is_known(problem: Problem) -> bool:
    """Tell whether L with L Lᵀ = H_ℓ is known for the loss: for all but callables."""
    return not callable(problem.loss) or isinstance(problem.loss, nn.Module)


def plan_samples(
    problem: Problem, groups: Mapping[str, ParameterGroup], samples: int, batches: int | None = None
) -> Sampling:
    """Choose the fewest pieces and batches of samples that fit the memory.

    Args:
        problem: model, batches and loss; its memory limit, by default a quarter of the machine's
            memory, applies.
        groups: groups whose entries the samples contain.
        samples: lower bound on the number of samples; each batch has the same number.
        batches: number of batches of an earlier plan, to draw the same samples; None: the smallest
            that fits.

    Returns:
        The plan.

    Raises:
        ArgumentError: fewer than 8 samples, 8 samples of the largest group do not fit, or the loss
            is a callable.
    """
    check_whole(FEWEST_SAMPLES, samples=samples)
    if not root_is_known(problem):
        raise ArgumentError(
            "loss: method='sampled' needs a formula for the loss's curvature, which a callable "
            "has not; use a loss by name, a loss module of torch, or method='probes'"
        )
    limit = problem.memory_limit or default_limit(problem.device)
    itemsize, ranks = _dtype(problem).itemsize, problem.processes.count if problem.sharded else 1
    sizes = {name: -(-group.size * itemsize // ranks) for name, group in groups.items()}
    least = FEWEST_SAMPLES if batches is None else -(-samples // batches)
    plan, spare = _plan(problem, least, [sum(sizes.values()), max(sizes.values())])
    fixed = plan.peak - spare
    room = problem.processes.least(limit - fixed, problem.device)
    pieces = _pieces(sizes, room // least)
    largest = max(sum(sizes[name] for name in piece) for piece in pieces)
    batches = batches or -(-samples // max(least, min(samples, room // largest)))
    size = max(FEWEST_SAMPLES, -(-samples // batches))
    nbytes = fixed + size * largest
    return Sampling(plan=plan, batches=batches, size=size, pieces=pieces, bytes=nbytes)


def _plan(problem: Problem, count: int, sizes: Sequence[int]) -> tuple[PassPlan, int]:
    """Plan passes with memory left for `count` samples of the first size in `sizes` that fits."""
    for size, share in zip(sizes, (1, SHARE), strict=True):
        spare = count * size
        try:
            with readable_errors():
                return make_plan(problem, twice=False, spare=spare, share=share), spare
        except ArgumentError as error:
            refused = error
    raise ArgumentError(
        f"{refused}, or choose smaller groups: {count} sampled gradients of the largest, "
        f"{in_units(spare)}, are held together"
    ) from refused


def _pieces(sizes: Mapping[str, int], room: int) -> tuple[tuple[str, ...], ...]:
    """Split groups into the fewest runs; each has at most `room` bytes or is one group."""
    pieces: list[list[str]] = []
    left = 0
    for name, size in sizes.items():
        if not pieces or size > left:
            pieces.append([])
            left = room
        pieces[-1].append(name)
        left -= size
    return tuple(map(tuple, pieces))


@keeping
def gram_matrices(
    problem: Problem,
    groups: Mapping[str, ParameterGroup],
    sampling: Sampling,
    *,
    seed: int = 0,
    step: OnSample | None = None,
) -> GramMatrices:
    """Draw samples of H_o and compute their inner products, per group.

    Args:
        problem: model, batches and loss.
        groups: groups by name.
        sampling: plan from `plan_samples`.
        seed: seed of the signs.
        step: called after each sample with the number of samples drawn.

    Returns:
        The inner products; `norms_from_pairs` computes the norms of all blocks from them.

    Raises:
        ArgumentError: autograd's derivatives of the logits are wrong; see `Guard`.
        RunError: a loss or a gradient is not finite, or the memory is full.

    Cost: for each piece, a forward pass per batch of samples, and a backward pass per sample.
    """
    say_precision(problem, twice=False)
    with readable_errors():
        every = merge("samples", list(groups.values()))
        check_guard(problem, sampling.plan.guard, every.parameters, twice=False)
    blocks = []
    for number, names in enumerate(sampling.pieces):
        members = [groups[name] for name in names]
        drawn = number * sampling.batches * sampling.size
        blocks.append(_of_piece(problem, members, sampling, seed, step, drawn))
    products = torch.cat(blocks)
    if not torch.isfinite(products).all():
        raise RunError(
            "curvature: sampled gradients of H_o are not finite; look at the weights, or use "
            "float64 parameters"
        )
    return GramMatrices(products=products)


def _of_piece(
    problem: Problem,
    groups: Sequence[ParameterGroup],
    sampling: Sampling,
    seed: int,
    step: OnSample | None,
    drawn: int,
) -> Float[Tensor, "G B S S"]:
    """Compute inner products for a piece of the groups."""
    every, sizes = merge("samples", groups), [group.size for group in groups]
    local = LocalEntries(groups, problem.model) if problem.sharded else None
    sizes = local.sizes if local else sizes
    blocks = []
    report = None if step is None else lambda count: step(drawn + count)
    # one tensor for all batches, since a new one costs as much time as a sample
    with readable_errors():
        vectors = torch.empty(
            sampling.size, sum(sizes), dtype=_dtype(problem), device=problem.device
        )
    for batch in range(sampling.batches):
        with problem.computing():
            samples = _samples(problem, every, sampling, batch, seed, report, vectors, local)
            blocks.append(problem.sum_over_rows(_inner_products(samples, sizes)).cpu())
    return torch.stack(blocks, dim=1)


def _samples(
    problem: Problem,
    every: ParameterGroup,
    sampling: Sampling,
    batch: int,
    seed: int,
    step: OnSample | None,
    vectors: Float[Tensor, "S N"],
    local: LocalEntries | None = None,
) -> Float[Tensor, "S N"]:
    """Draw one batch of samples into `vectors`, over the N (local) entries of the group `every`."""
    vectors.zero_()
    before = batch * sampling.size
    try:
        for number, rows in enumerate(sampling.plan.passes):
            passed = SampledPass(problem, rows, every.parameters)
            for sample, vector in enumerate(vectors):
                last = sample + 1 == len(vectors)  # its backward pass frees the graph
                gradients = passed.sample(before + sample, seed, keep=not last)
                if local:
                    local.add_to(vector, gradients)
                else:
                    tensors = {n: None if g is None else g[None] for n, g in gradients.items()}
                    every.collect(tensors, vector[None], add=True)
                if step and not number:
                    step(before + sample + 1)
    except Exception:
        problem.processes.fail(vectors)
        raise
    return problem.processes.total(vectors)


def _inner_products(vectors: Float[Tensor, "S N"], sizes: Sequence[int]) -> Float[Tensor, "G S S"]:
    """Compute the Gram matrix of each group's entries, in float64."""
    blocks = []
    for piece in vectors.split(list(sizes), dim=1):
        products = _products(piece, 1.0)
        squares = products.diagonal()
        if not ((squares > MILD[0]) & (squares < MILD[1])).all():
            products = _products(piece, unit_of(piece))
        blocks.append(products)
    return torch.stack(blocks)


def _products(vectors: Float[Tensor, "S N"], unit: float) -> Float[Tensor, "S S"]:
    """Compute the Gram matrix of `vectors` / `unit`, times `unit`², to avoid overflow."""
    total = torch.zeros(2 * (len(vectors),), dtype=torch.float64, device=vectors.device)
    for chunk in vectors.split(AT_ONCE, dim=1):
        scaled = chunk if unit == 1.0 else chunk / unit
        total += scaled @ scaled.mT
    return total * unit**2


def _dtype(problem: Problem) -> torch.dtype:
    """Choose the dtype of samples: at least float32."""
    dtypes = (parameter.dtype for parameter in problem.parameters.values())
    return functools.reduce(torch.promote_types, dtypes, torch.float32)
