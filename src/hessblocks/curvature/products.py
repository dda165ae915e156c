"""Products of H, H_o and H_f with blocks of vectors, one batch at a time.

Letters: f logits, r = ∂ℓ/∂f, J = ∂f/∂θ, z a vector in parameter space, u = J z, K vectors together.

The graph of the pullback g(θ, r) = J(θ)ᵀ r is built once. Replaying it backwards for z gives at the
same time ∂⟨g, z⟩/∂θ = H_f z (with r held fixed) and ∂⟨g, z⟩/∂r = J z; then H_o z = Jᵀ H_ℓ (J z).
Neither is ever formed by subtraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.problem import Problem, check_finite

Part = Literal["outer", "functional", "full"]
PARTS: tuple[Part, ...] = ("outer", "functional", "full")
Tensors = dict[str, Tensor | None]
"""By parameter name, (K, *shape); None stands for zeros."""


class BatchGraph:
    """The differentiated loss of one batch, kept so that products only replay it."""

    def __init__(self, problem: Problem, index: int, names: Sequence[str]) -> None:
        """Run the model forwards and backwards once.

        Args:
            problem: the function.
            index: which batch.
            names: parameters that products may involve; the graph ends at them, so the layers
                below the lowest are never passed again.
        """
        parameters = problem.parameters
        self._leaves = {name: parameters[name].requires_grad_() for name in names}
        self._scale = 1.0 / problem.valid
        batch = problem.batches[index]
        with torch.enable_grad():
            self._logits, self._loss = problem.forward(batch, parameters | self._leaves)
            check_finite(float(self._loss.total(self._logits.detach())), index)
            detached = self._loss.gradient(self._logits).detach() * self._scale
            self._residual = detached.requires_grad_()
            self._pullback = self._pull(create_graph=True)

    def _pull(self, *, create_graph: bool) -> Tensors:
        if not self._logits.requires_grad:
            return dict.fromkeys(self._leaves)
        pulled = torch.autograd.grad(
            self._logits,
            list(self._leaves.values()),
            self._residual,
            create_graph=create_graph,
            allow_unused=True,
        )
        return dict(zip(self._leaves, pulled, strict=True))

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters at which the graph ends."""
        return self._leaves

    @property
    def gradient(self) -> Tensors:
        """∂L/∂θ of this batch's share, (1, *shape) each."""
        return {
            name: None if value is None else value.detach()[None]
            for name, value in self._pullback.items()
        }

    def products(
        self, vectors: Mapping[str, Tensor], rows: Sequence[str], parts: Sequence[Part]
    ) -> dict[Part, Tensors]:
        """This batch's share of the products.

        Args:
            vectors: z by parameter name, (K, *shape) each; parameters left out are zero.
            rows: names of the parameters whose rows are wanted.
            parts: which of H_o, H_f and H.

        Returns:
            By part and parameter name, (K, *shape).
        """
        wants_functional = "functional" in parts or "full" in parts
        functional, pushed = self._replay(vectors, rows if wants_functional else ())
        found: dict[Part, Tensors] = {"functional": functional}
        if "outer" in parts or "full" in parts:
            found["outer"] = self._pull_back_curvature(pushed, rows)
        if "full" in parts:
            found["full"] = {name: _add(found["outer"][name], functional[name]) for name in rows}
        return {part: found[part] for part in parts}

    def _replay(
        self, vectors: Mapping[str, Tensor], rows: Sequence[str]
    ) -> tuple[Tensors, Tensor | None]:
        """H_f z and J z."""
        pulled = {
            name: value
            for name in vectors
            if (value := self._pullback[name]) is not None and value.requires_grad
        }
        if not pulled:
            return dict.fromkeys(rows), None
        *functional, pushed = torch.autograd.grad(
            list(pulled.values()),
            [*(self._leaves[name] for name in rows), self._residual],
            [vectors[name] for name in pulled],
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
        return dict(zip(rows, functional, strict=True)), pushed

    def _pull_back_curvature(self, pushed: Tensor | None, rows: Sequence[str]) -> Tensors:
        """Jᵀ H_ℓ u."""
        if pushed is None:
            return dict.fromkeys(rows)
        curved = self._loss.curvature(self._logits, pushed) * self._scale
        pulled = torch.autograd.grad(
            self._logits,
            [self._leaves[name] for name in rows],
            curved,
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
        return dict(zip(rows, pulled, strict=True))


def graphs(problem: Problem, names: Sequence[str]) -> Iterator[BatchGraph]:
    """The graph of each batch, one held at a time."""
    for index in range(len(problem.batches)):
        yield BatchGraph(problem, index, names)


def block_products(
    graph: BatchGraph,
    vectors: Tensor,
    rows: ParameterGroup,
    columns: ParameterGroup,
    parts: Sequence[Part],
) -> dict[Part, Tensor]:
    """One batch's share of the products of a block with vectors.

    Args:
        graph: of the batch; it must hold the parameters of both groups.
        vectors: (K, columns.size).
        rows: group whose rows are wanted.
        columns: group that the vectors lie in.
        parts: which of H_o, H_f and H.

    Returns:
        (K, rows.size) for each part.
    """
    like = graph.parameters
    products = graph.products(columns.scatter(vectors, like), rows.parameters, parts)
    return {
        part: rows.gather(tensors, like, vectors.shape[0]) for part, tensors in products.items()
    }


def _add(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right
