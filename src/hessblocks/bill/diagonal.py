"""Keep the diagonal of H_o as a tensor: it then prices any number of roundings in one pass.

One pass of sampled gradients g gives D, the mean of g² for each entry, and ½ Σ D Δ² is the price of
a rounding Δ. Its error is that of a reference, Δ = w, for which the products with every sample are
kept: gradients fluctuate alike, whatever the rounding. Letters: P parameters, J changes, D samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from hessblocks.bill.changes import Change
from hessblocks.bill.draws import Draws, Ledger, collect
from hessblocks.curvature import Gradients, Problem
from hessblocks.linalg import working_dtype
from hessblocks.malloc import return_freed_memory

OFTEN = 1 << 24
"""Entries of gradients or changes between two returns of freed memory."""


class Diagonal(Ledger):
    """Mean squares of sampled gradients, by parameter, and mean squared inputs of its columns."""

    slopes = False
    fewest, most = 2, 2  # gradients held: the last one, and a new one

    def __init__(
        self, problem: Problem, names: Iterable[str], *, samples: int, seed: int, moments: bool
    ) -> None:
        """Draw the samples.

        Args:
            problem: model, batches and loss.
            names: names of the parameters.
            samples: fewest samples.
            seed: seed of the signs.
            moments: whether to measure the second moments of inputs of linear layers too.

        Raises:
            ArgumentError: the loss is a callable, there are several processes, or a single row.
            RunError: a loss or a gradient is not finite.
        """
        super().__init__()
        self.problem = problem
        parameters = {name: problem.parameters[name] for name in names}
        self.squares = {  # squares of float16 would vanish
            name: torch.zeros_like(weight, dtype=working_dtype(weight.dtype))
            for name, weight in parameters.items()
        }
        self._last: dict[str, Tensor] = {}
        self._freed = 0  # entries since memory was returned
        self._inputs = Inputs(problem.model, moments=moments)
        collect(problem, [*self.squares], self, samples=samples, seed=seed)

    @contextmanager
    def watching(self, problem: Problem) -> Iterator[None]:
        """Look at the inputs of linear layers along with the samples."""
        with self._inputs.watched():
            yield

    def add(self, piece: int, gradients: Gradients, *, slope: bool, share: float) -> None:
        """Add the squares of a sample, and multiply it with the reference."""
        parameters, numbers, pairs = self.problem.parameters, [], []
        for name, square in self.squares.items():
            sampled = gradients.pop(name)
            gradient = torch.zeros_like(square) if sampled is None else sampled.to(square.dtype)
            square.addcmul_(gradient, gradient, value=share)
            product = gradient.mul(parameters[name].detach())
            numbers.append(float(product.flatten() @ product.flatten()))
            if name not in self._last:
                self._last[name] = product
                continue
            pairs.append(float(product.flatten() @ self._last[name].flatten()))
            self._last[name].copy_(product)  # in its place: a new tensor would leave a hole
        self.owners.append((piece, slope))
        self._freed += sum(square.numel() for square in self.squares.values())
        if self._freed > OFTEN:  # with several threads, gradients leave holes
            return_freed_memory()
            self._freed = 0
        self.squared.append(torch.tensor([numbers], dtype=torch.float64))
        if pairs:
            self.pairs.append(torch.tensor([pairs], dtype=torch.float64))

    def _cost(self, name: str, delta: Float[Tensor, "..."]) -> float:
        """Compute Σ D Δ², or the sum with moments; Δ is overwritten."""
        squares, moments = self.squares[name], self._inputs.moments.get(name)
        if moments is None:
            return float(delta.square_().mul_(squares).sum(dtype=torch.float64))
        moments = moments.to(delta)
        # D holds terms between tokens, which the moments lack: they give the weight of each row
        weights = squares.sum(1) / moments.diagonal().sum()
        return float((weights * ((delta @ moments) * delta).sum(1)).sum(dtype=torch.float64))

    def price(
        self, changes: Sequence[Change]
    ) -> tuple[tuple[Change, ...], Draws, tuple[float, ...]]:
        """Compute ½ Σ D Δ² of changes, or ½ Σ_o s_o Δ_o A Δ_oᵀ where the moments A are known.

        Args:
            changes: changes; their formats weigh errors by the importance.

        Returns:
            The changes with importance; draws of the reference, scaled to each change; ‖Δ‖ / ‖w‖
            of each change.
        """
        self._last.clear()
        return_freed_memory()  # gradients have other sizes than what follows
        parameters, means = self.problem.parameters, self._inputs.means()
        draws = self.draws()
        reference = dict(zip(self.squares, draws.by_piece(draws.squares).sum(0), strict=True))
        scales = torch.zeros(len(changes), len(self.squares), dtype=torch.float64)
        weighed, sizes, columns, computed = [], [], list(self.squares), 0
        for row, change in enumerate(changes):
            change = change.weighed(means)
            largest = 0.0
            for name, new in change.made(parameters):
                dtype = self.squares[name].dtype
                before = parameters[name].detach().to(dtype)
                delta = new.to(dtype) - before
                change.check_same(name, delta.flatten())
                largest = max(largest, float(delta.norm() / before.norm()))
                cost = self._cost(name, delta)
                scales[row, columns.index(name)] = cost / max(float(reference[name]), 1e-300)
            weighed.append(change)
            sizes.append(largest)
            computed += change.size
            if computed > OFTEN:  # tensors of many sizes leave holes
                return_freed_memory()
                computed = 0
        return tuple(weighed), replace(draws, scales=scales), tuple(sizes)


class Inputs:
    """Inputs of linear layers besides a tied head: means of squares, and weighted second moments.

    The moments are A = Σ_t |δ_t|² x_t x_tᵀ, with x_t the input and δ_t the gradient in the output
    at token t: so tokens count by what a change of their output costs.
    """

    def __init__(self, model: nn.Module, *, moments: bool) -> None:
        """Find the layers."""
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        self._names = {
            module: f"{name}.weight"
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and id(module.weight) not in tables
        }
        self._weighted = moments
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self.moments: dict[str, Float[Tensor, "width width"]] = {}

    def means(self) -> dict[str, Float[Tensor, " width"]]:
        """Return the mean squared input of each column, by name of the weight."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at all passes within."""
        handle = register_module_forward_hook(self._note)
        try:
            yield
        finally:
            handle.remove()

    def _note(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if module not in self._names:
            return
        name, rows = self._names[module], inputs[0].detach().flatten(0, -2).float()
        _add(self._sums, name, rows.square().sum(0))
        self._counts[name] = self._counts.get(name, 0) + len(rows)
        if self._weighted and output.requires_grad:

            def weigh(gradient: Tensor) -> None:
                weights = gradient.detach().flatten(0, -2).float().square().sum(1, keepdim=True)
                _add(self.moments, name, rows.T @ (weights * rows))

            output.register_hook(weigh)


def _add(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    sums[name] = sums[name] + value.cpu() if name in sums else value.cpu()
