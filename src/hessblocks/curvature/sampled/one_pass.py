"""Sample gradients of H_o from one pass over some rows, as often as is asked.

With L Lᵀ the loss's curvature and ε random signs, g = Jᵀ L ε has E g gᵀ = Jᵀ L Lᵀ J = H_o.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessblocks.curvature import products
from hessblocks.curvature.losses import Batch
from hessblocks.curvature.model_state import exclusive
from hessblocks.errors import ArgumentError
from hessblocks.linalg import working_dtype

SHARE = 4
"""Passes beside which gradients are held, the more the better, have 1 / SHARE of the rows that fit.
"""
Gradients = dict[str, Float[Tensor, "..."] | None]
"""By parameter name; None stands for zeros."""


class SampledPass:
    """Logits of some rows with their graph, which is pulled back for each sample."""

    def __init__(self, problem: products.Problem, rows: Batch, names: Iterable[str]) -> None:
        """Pass the rows through the model.

        Args:
            problem: model and loss.
            rows: a piece of its batches.
            names: names of the parameters to differentiate in.

        Raises:
            ArgumentError: the loss has no root that is known.
            RunError: the loss is not finite.
        """
        self._problem, self._rows = problem, rows
        parameters = problem.parameters
        self._leaves = {name: parameters[name].requires_grad_() for name in names}
        with torch.enable_grad():
            readout, self.loss = problem.forward(rows, parameters, twice=False)
        self._logits = readout.hidden
        self.values = self._logits.detach().to(working_dtype(self._logits.dtype))
        problem.check_finite(self.loss.total(self.values) / problem.valid, rows)
        self._root = self.loss.root(self.values, 1 / problem.valid)
        self._noise = self.loss.noise_shape(self.values)

    def sample(
        self, number: int, seed: int, *, keep: bool, of: Float[Tensor, "..."] | None = None
    ) -> Gradients:
        """Draw g = Jᵀ L ε of these rows.

        Args:
            number: number of the sample; another one has other signs.
            seed: seed of the run.
            keep: whether the graph is needed again.
            of: factors of the logits, 0 for those that are left out; None: all count.

        Returns:
            The sample.
        """
        processes = self._problem.processes
        data = processes.rank if processes.shard == "own" else 0
        drawn = signs(
            self._rows, self._noise, self.values.device, seed=seed, sample=number, data=data
        )
        return self._pulled_back(self._root(drawn), keep, of)

    def gradient(self, *, keep: bool, of: Float[Tensor, "..."] | None = None) -> Gradients:
        """Compute the gradient of these rows' share of the loss; see `sample`."""
        found = self.loss.derivatives(self.values, 1 / self._problem.valid)
        return self._pulled_back(found.gradient, keep, of)

    def _pulled_back(self, direction: Tensor, keep: bool, of: Tensor | None) -> Gradients:
        if not self._logits.requires_grad:
            return dict.fromkeys(self._leaves)
        direction = direction if of is None else direction * of
        with products.differentiable_once(self._problem.model), products.readable_errors():
            found = torch.autograd.grad(
                self._logits,
                list(self._leaves.values()),
                direction.to(self._logits.dtype),
                retain_graph=keep,
                allow_unused=True,
            )
        return dict(zip(self._leaves, found, strict=True))


def plan_passes(
    problem: products.Problem, names: Iterable[str], *, spare: int = 0, most_rows: int | None = None
) -> products.Plan:
    """Plan passes for samples that are used one at a time.

    Args:
        problem: model, batches and loss.
        names: names of the parameters to differentiate in.
        spare: bytes that the caller needs.
        most_rows: rows per pass at most, where batches can be cut.

    Returns:
        The passes.

    Raises:
        ArgumentError: several processes, no row fits the memory, or autograd's derivatives are not
            those of the logits.
    """
    if problem.processes.count > 1:
        raise ArgumentError("problem: samples are drawn in one process; leave shard out")
    products.say_precision(problem, twice=False)
    with exclusive(problem.model), products.readable_errors():
        plan = products.make_plan(
            problem, twice=False, spare=spare, most_rows=most_rows, share=SHARE
        )
        if plan.guard:
            plan.guard.check(problem, [*names], twice=False)
    return plan


def sampled_passes(
    problem: products.Problem, plan: products.Plan, names: Iterable[str]
) -> Iterator[SampledPass]:
    """Pass the data through the model piece by piece; sample each before the next one."""
    names = [*names]
    problem.follow()
    with exclusive(problem.model):
        for rows in plan.passes:
            with products.readable_errors():
                passed = SampledPass(problem, rows, names)
            yield passed
    problem.note_form()


BITS = 8


def signs(
    batch: Batch, shape: torch.Size, device: torch.device, *, seed: int, sample: int, data: int
) -> Int[Tensor, "..."]:
    """Draw ±1 (Rademacher) for each logit of a pass.

    Args:
        batch: the pass; its number and first row tell it from all others.
        shape: shape of its logits.
        device: where the logits are.
        seed: seed of the run.
        sample: number of the sample.
        data: which of several sets of batches this is; processes with data of their own have one
            each.

    Returns:
        Signs as int8, of that shape.
    """
    table = torch.arange(1 << BITS)[:, None].bitwise_right_shift(torch.arange(BITS)) & 1
    table = table.to(device, torch.int8) * 2 - 1
    rows = _rows(batch, shape)
    entries = shape.numel() // rows
    drawn = []
    for generator in _generators(batch, rows, f"signs {seed} {sample} {data}"):
        size = (-(-entries // BITS),)
        packed = torch.randint(1 << BITS, size, generator=generator, dtype=torch.uint8)
        drawn.append(table[packed.to(device).int()].flatten()[:entries])
    return torch.stack(drawn).view(shape)


def draws(
    of: Callable[..., Float[Tensor, "..."]], batch: Batch, shape: torch.Size, seed: int, data: int
) -> Float[Tensor, "..."]:
    """Draw random numbers of a distribution for each row of a pass.

    Args:
        of: torch.rand or torch.randn.
        batch: see `signs`.
        shape: shape of what is drawn, rows first.
        seed: see `signs`.
        data: see `signs`.

    Returns:
        Numbers in float64, of that shape, where the batch is.
    """
    rows = _rows(batch, shape)
    size = (shape.numel() // rows,)
    found = [
        of(size, generator=generator, dtype=torch.float64)
        for generator in _generators(batch, rows, f"labels {seed} {data}")
    ]
    return torch.stack(found).view(shape).to(batch.inputs.device)


def _rows(batch: Batch, shape: torch.Size) -> int:
    """Find the rows that get their own random numbers."""
    return batch.rows if shape[0] == batch.rows else 1


def _generators(batch: Batch, rows: int, what: str) -> Iterator[torch.Generator]:
    """Make a generator for each row of a pass."""
    for row in range(batch.first, batch.first + rows):
        said = f"{what} {batch.number} {row}".encode()
        # hashed, since seeds next to each other would give related streams
        own = int.from_bytes(hashlib.sha256(said).digest()[:7], "big")
        # on the CPU: a GPU's generator gives other numbers
        yield torch.Generator().manual_seed(own)
