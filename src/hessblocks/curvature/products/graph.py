"""Hessian-vector and Gauss-Newton (GGN) products with blocks of vectors, one pass at a time.

Letters: f logits, r = ∂ℓ/∂f, J = ∂f/∂θ, z a vector in parameter space, u = J z, K vectors together.

The graph of the gradient g(θ, r) = J(θ)ᵀ r is built once. Each product is one backward pass through
this graph, a replay.

- H: if r(θ) is part of the graph, ∂⟨g, z⟩/∂θ = H z.
- H_f and H_o: if r is constant, one replay gives both ∂⟨g, z⟩/∂θ = H_f z and ∂⟨g, z⟩/∂r = J z.
  Then H_o z = Jᵀ H_ℓ (J z). Neither is computed by subtraction.

The same for one vector, with a new graph for each product (double backward):

>>> def hessian_vector_product(loss, theta, z):
...     (g,) = torch.autograd.grad(loss, theta, create_graph=True)
...     return torch.autograd.grad(g, theta, z)[0]  # ∂⟨g, z⟩/∂θ = H z
>>> def gauss_newton_product(loss_of, f, theta, z):
...     r = torch.zeros_like(f, requires_grad=True)
...     (pulled,) = torch.autograd.grad(f, theta, r, create_graph=True)  # Jᵀ r, linear in r
...     (u,) = torch.autograd.grad(pulled, r, z)  # J z
...     logits = f.detach().requires_grad_()
...     curved = hessian_vector_product(loss_of(logits), logits, u)  # H_ℓ J z
...     return torch.autograd.grad(f, theta, curved)[0]  # Jᵀ H_ℓ J z = H_o z
>>> theta, z = torch.tensor([3.0], requires_grad=True), torch.tensor([1.0])
>>> f = theta**2  # with ℓ = f²/2 the loss is θ⁴/2
>>> gauss_newton_product(lambda f: (f**2).sum() / 2, f, theta, z)  # (2 θ)²
tensor([36.])
>>> hessian_vector_product((theta**4).sum() / 2, theta, z)  # 6 θ²; H_f = 18 is the rest
tensor([54.])
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hessblocks.conventions import Part
from hessblocks.curvature.closed import Sum, adding, graph_only
from hessblocks.curvature.losses import Batch, make_loss_node
from hessblocks.curvature.products.passes import PassPlan
from hessblocks.curvature.products.problem import Problem

Pulled = dict[str, Float[Tensor, "K ..."] | None]
"""Tensors by parameter name, (K, *shape); None means zeros."""

_NOTHING: Mapping[str, Sum] = {}


class BatchGraph:
    """Autograd graph of one microbatch's gradient; each product replays it."""

    def __init__(
        self,
        problem: Problem,
        batch: Batch,
        names: Sequence[str],
        *,
        split: bool = True,
        plan: PassPlan | None = None,
    ) -> None:
        """Run the model's forward and backward pass once.

        Args:
            problem: model, batches and loss.
            batch: one of the problem's microbatches.
            names: parameters that products may involve. The graph ends at them, so that replays
                skip the layers below the lowest.
            split: whether the graph is for H_o and H_f, with r constant, or for H.
            plan: what fits the memory; None: the problem's plan.
        """
        parameters, plan = problem.parameters, plan or problem.plan
        self._backward = problem.backward
        self.parameters = {name: parameters[name].requires_grad_() for name in names}
        """Leaves of the graph, by name."""
        with torch.enable_grad():
            self.readout, loss = problem.forward(batch, parameters | self.parameters)
            readout = self.readout
            self._end = make_loss_node(readout, loss, 1 / problem.valid, keep=plan.keep_logits)
            total, gradients = self._end.attach("functional" if split else "full")
            problem.check_finite(total, batch)
            self._pullback = self._pull_back(readout.hidden, gradients)
        leaf_names = {id(leaf): name for name, leaf in self.parameters.items()}
        self._of_end = [leaf_names.get(id(tensor)) for tensor in self._end.inputs]
        self._hidden, self._residual = (
            get_gradient_edge(t) if t.requires_grad else None
            for t in (readout.hidden, gradients[0])
        )
        # parameters that are inputs of the loss node, such as the unembedding's weight
        self._pullback += [
            (name, get_gradient_edge(value))
            for name, value in zip(self._of_end, gradients, strict=True)
            if name is not None
        ]
        self.together = plan.together

    def _pull_back(
        self, hidden: Tensor, gradients: Sequence[Tensor]
    ) -> list[tuple[str, GradientEdge]]:
        """Compute the graph of Jᵀ r; return its output edge for each parameter, not the values."""
        if not hidden.requires_grad:
            return []
        leaves = list(self.parameters.values())
        with graph_only(leaves), self._backward():
            pulled = torch.autograd.grad(
                hidden, leaves, gradients[0], create_graph=True, allow_unused=True
            )
        return [
            (name, get_gradient_edge(value))
            for name, value in zip(self.parameters, pulled, strict=True)
            if value is not None and value.requires_grad
        ]

    def full(
        self,
        vectors: Mapping[str, Float[Tensor, "K ..."]],
        rows: Sequence[str],
        sums: Mapping[str, Sum] = _NOTHING,
    ) -> Pulled:
        """Compute this microbatch's share of H z; for a graph made with `split=False`.

        Args:
            vectors: z by parameter name, (K, *shape) each; missing parameters mean zeros.
            rows: names of the parameters whose rows of H z are computed.
            sums: sums to which some parameters' rows are added; for K = 1 only.

        Returns:
            Rows by name of the parameters without a sum, (K, *shape).
        """
        products = self._replay(vectors, rows, sums=sums)
        for name, total in sums.items():
            if (rest := products.pop(name)) is not None:
                total.add(rest[0])
            total.started()
        return products

    def split(
        self,
        vectors: Mapping[str, Float[Tensor, "K ..."]],
        rows: Sequence[str],
        parts: Sequence[Part],
    ) -> dict[Part, Pulled]:
        """Compute this microbatch's share of H_o z and H_f z; for a graph made with `split=True`.

        Args:
            vectors: as in `full`.
            rows: as in `full`.
            parts: parts to compute, of H_o, H_f and H.

        Returns:
            By part and parameter name, (K, *shape).
        """
        wanted = rows if "functional" in parts or "full" in parts else ()
        functional = self._replay(vectors, wanted, pushed=self._residual is not None)
        pushed = functional.pop(_PUSHED, None)
        products: dict[Part, Pulled] = {"functional": functional}
        if "outer" in parts or "full" in parts:
            products["outer"] = self._pull_back_curvature(pushed, vectors, rows)
        if "full" in parts:
            products["full"] = {
                name: _add(products["outer"][name], functional[name]) for name in rows
            }
        return {part: products[part] for part in parts}

    def _replay(
        self,
        vectors: Mapping[str, Tensor],
        rows: Sequence[str],
        *,
        pushed: bool = False,
        sums: Mapping[str, Sum] = _NOTHING,
    ) -> Pulled:
        """Differentiate ⟨g, z⟩ by the parameters in `rows` and, if `pushed`, by r, for J z."""
        names = list(rows)
        inputs: list[Any] = [self.parameters[name] for name in rows]
        if pushed:
            names, inputs = [*names, _PUSHED], [*inputs, self._residual]
        pulled = [(edge, vectors[name]) for name, edge in self._pullback if name in vectors]
        if not (pulled and inputs):
            return dict.fromkeys(names)
        with self._adding(rows, sums), self._backward():
            gradients = _gradients([edge for edge, _ in pulled], [z for _, z in pulled], inputs)
        return dict(zip(names, gradients, strict=True))

    def _adding(
        self, rows: Sequence[str], sums: Mapping[str, Sum] = _NOTHING
    ) -> AbstractContextManager[None]:
        """Register the sums of a replay; `exclusive` prevents two replays at once."""
        idle = {id(leaf): None for name, leaf in self.parameters.items() if name not in rows}
        return adding({**idle, **{id(self.parameters[n]): s for n, s in sums.items()}})

    def _pull_back_curvature(
        self, pushed: Tensor | None, vectors: Mapping[str, Tensor], rows: Sequence[str]
    ) -> Pulled:
        """Compute Jᵀ H_ℓ u."""
        products: Pulled = dict.fromkeys(rows)
        directions = [pushed, *(vectors.get(name or "") for name in self._of_end[1:])]
        if all(direction is None for direction in directions):
            return products
        wanted = [name in rows for name in self._of_end]
        wanted[0] = self._hidden is not None
        curved, *direct = self._end.products("outer", directions, wanted)
        if curved is not None:
            leaves = [self.parameters[name] for name in rows]
            with self._adding(rows), self._backward():
                pulled = _gradients([self._hidden], [curved], leaves)
            products = dict(zip(rows, pulled, strict=True))
        for name, value in zip(self._of_end[1:], direct, strict=True):
            if name is not None and value is not None:
                products[name] = _add(products[name], value)
        return products


_PUSHED = "J z"


def _gradients(
    outputs: Sequence[Any], cotangents: Sequence[Tensor], inputs: Sequence[Any]
) -> list[Tensor | None]:
    """Compute vector-Jacobian products with (K, ...) cotangents, by vmap if K > 1."""
    used: list[bool] = []

    def pull(*cotangents: Tensor) -> list[Tensor]:
        gradients = torch.autograd.grad(
            outputs, inputs, cotangents, retain_graph=True, allow_unused=True
        )
        # recorded here, since a function under vmap cannot return None
        used[:] = [value is not None for value in gradients]
        return [value for value in gradients if value is not None]

    if cotangents[0].shape[0] == 1:
        values: Sequence[Tensor] = [value[None] for value in pull(*(c[0] for c in cotangents))]
    else:
        values = _together(pull, cotangents)
    rest = iter(values)
    return [next(rest) if present else None for present in used]


def _together(pull: Callable[..., list[Tensor]], cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run `pull` under vmap, or in a loop if the model casts dtypes in a way that vmap refuses."""
    try:
        stacked: Sequence[Tensor] = torch.vmap(pull)(*cotangents)
    except RuntimeError as error:
        if "expected scalar type" not in str(error):
            raise
        gradients = [pull(*vectors) for vectors in zip(*cotangents, strict=True)]
        stacked = [torch.stack(values) for values in zip(*gradients, strict=True)]
    return stacked


def _add(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right
