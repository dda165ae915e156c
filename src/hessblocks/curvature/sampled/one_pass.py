"""Sample gradients with covariance H_o from one forward pass, with a backward pass per sample.

Let L Lᵀ = H_ℓ and ε be random signs. Then g = Jᵀ L ε has E g gᵀ = Jᵀ L Lᵀ J = H_o.
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
"""If samples share the memory with passes, a pass has 1 / SHARE of the rows that fit."""
Gradients = dict[str, Float[Tensor, "..."] | None]
"""Gradients by parameter name; None means zeros."""


class SampledPass:
    """Logits of some rows with their graph; each sample is a backward pass through it.

    `leaves` holds the tensors to differentiate by: parameters, or others of the graph put there.
    """

    def __init__(self, problem: products.Problem, rows: Batch, names: Iterable[str]) -> None:
        """Run the forward pass of the rows.

        Args:
            problem: model and loss.
            rows: a microbatch of the problem.
            names: names of the parameters to differentiate by.

        Raises:
            ArgumentError: L is not known for the loss.
            RunError: the loss is not finite.
        """
        self._problem, self.rows = problem, rows
        parameters = problem.parameters
        self.leaves: dict[str, Tensor] = {n: parameters[n].requires_grad_() for n in names}
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
            number: index of the sample, which determines its signs together with `seed`.
            seed: seed of the run.
            keep: whether to keep the graph for another sample.
            of: factors of the cotangent of the logits, such as 0 to leave rows out; None: 1.

        Returns:
            The sample.
        """
        drawn = signs(self.rows, self._noise, self.values.device, seed=seed, sample=number)
        return self._pulled_back(self._root(drawn), keep, of)

    def gradient(self, *, keep: bool, of: Float[Tensor, "..."] | None = None) -> Gradients:
        """Compute the gradient of these rows' share of the loss; see `sample`."""
        derivatives = self.loss.derivatives(self.values, 1 / self._problem.valid)
        return self._pulled_back(derivatives.gradient, keep, of)

    def _pulled_back(self, direction: Tensor, keep: bool, of: Tensor | None) -> Gradients:
        if not self._logits.requires_grad:
            return dict.fromkeys(self.leaves)
        direction = (direction if of is None else direction * of).to(self._logits.dtype)
        if self._problem.sharded:
            model = self._problem.model
            with products.readable_errors():
                return {
                    **products.gradients(model, self._logits, direction, self.leaves, keep=keep)
                }
        leaves = [*self.leaves.values()]
        with products.differentiable_once(self._problem.model), products.readable_errors():
            gradients = torch.autograd.grad(
                self._logits, leaves, direction, retain_graph=keep, allow_unused=True
            )
        return dict(zip(self.leaves, gradients, strict=True))


def plan_passes(
    problem: products.Problem, names: Iterable[str], *, spare: int = 0, most_rows: int | None = None
) -> products.PassPlan:
    """Plan passes for samples that are used one at a time.

    Args:
        problem: model, batches and loss.
        names: names of the parameters to differentiate by.
        spare: bytes that the caller needs.
        most_rows: upper bound on the rows per pass, if batches can be split.

    Returns:
        The plan.

    Raises:
        ArgumentError: processes divide the rows, no row fits the memory, or autograd's derivatives
            of the logits are wrong.
    """
    if problem.processes.shard:
        raise ArgumentError("problem: samples are drawn of all rows at once; leave shard out")
    products.say_precision(problem, twice=False)
    with exclusive(problem.model), products.readable_errors():
        plan = products.make_plan(
            problem, twice=False, spare=spare, most_rows=most_rows, share=SHARE
        )
        products.check_guard(problem, plan.guard, names, twice=False)
    return plan


def sampled_passes(
    problem: products.Problem, plan: products.PassPlan, names: Iterable[str]
) -> Iterator[SampledPass]:
    """Yield the forward pass of each microbatch; draw all its samples before the next one."""
    names = [*names]
    with problem.computing():
        for rows in plan.passes:
            yield SampledPass(problem, rows, names)


BITS = 8


def signs(
    batch: Batch, shape: torch.Size, device: torch.device, *, seed: int, sample: int
) -> Int[Tensor, "..."]:
    """Draw ±1 (Rademacher) for each logit of a microbatch.

    Args:
        batch: the microbatch, which its number and first row identify.
        shape: shape of the signs, rows first.
        device: device of the signs.
        seed: seed of the run.
        sample: index of the sample.

    Returns:
        Signs as int8, of that shape.
    """
    table = torch.arange(1 << BITS)[:, None].bitwise_right_shift(torch.arange(BITS)) & 1
    table = table.to(device, torch.int8) * 2 - 1
    rows = _rows(batch, shape)
    entries = shape.numel() // rows
    drawn = []
    for generator in _generators(batch, rows, f"signs {seed} {sample} 0"):
        size = (-(-entries // BITS),)
        packed = torch.randint(1 << BITS, size, generator=generator, dtype=torch.uint8)
        drawn.append(table[packed.to(device).int()].flatten()[:entries])
    return torch.stack(drawn).view(shape)


def draws(
    draw: Callable[..., Float[Tensor, "..."]], batch: Batch, shape: torch.Size, seed: int
) -> Float[Tensor, "..."]:
    """Draw uniform or normal random numbers for each row of a microbatch.

    Args:
        draw: torch.rand or torch.randn.
        batch: see `signs`.
        shape: shape of the numbers, rows first.
        seed: see `signs`.

    Returns:
        Numbers in float64, of that shape, on the batch's device.
    """
    rows = _rows(batch, shape)
    size = (shape.numel() // rows,)
    values = [
        draw(size, generator=generator, dtype=torch.float64)
        for generator in _generators(batch, rows, f"labels {seed} 0")
    ]
    return torch.stack(values).view(shape).to(batch.inputs.device)


def _rows(batch: Batch, shape: torch.Size) -> int:
    """Count the rows with separate random generators."""
    return batch.rows if shape[0] == batch.rows else 1


def _generators(batch: Batch, rows: int, label: str) -> Iterator[torch.Generator]:
    """Make a random generator for each row of a microbatch."""
    for row in range(batch.first, batch.first + rows):
        text = f"{label} {batch.number} {row}".encode()
        # hashed, since consecutive seeds may give correlated streams
        seed = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
        # on the CPU, since a GPU's generator draws other numbers
        yield torch.Generator().manual_seed(seed)
