"""Preconditioned Hessian, and how near an optimiser's step is to the edge of stability.

Letters: H the Hessian, D the optimiser's diagonal preconditioner, A = D^(-1/2) H D^(-1/2), whose
eigenvalues are those of D⁻¹H, N entries, η learning rate, β momentum, v second moment of gradients,
t steps.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from hessblocks.curvature.groups import ParameterGroup
from hessblocks.curvature.products import Hessian, Problem
from hessblocks.errors import ArgumentError
from hessblocks.linalg import extreme_eigenvalues, working_dtype
from hessblocks.storage import Tabular

KINDS: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW)
"""Optimisers whose step is D⁻¹ times an average of gradients, with a diagonal D that stands in
their state."""


class PreconditionedHessian(Hessian):
    """Preconditioned Hessian A = D^(-1/2) H D^(-1/2), with D as the optimiser holds it now.

    Entries that the optimiser does not move are 0 in A.

    D is 1 for SGD, and (1 − β₁ᵗ) (√(v / (1 − β₂ᵗ)) + eps) for Adam and AdamW, whose step then is η
    D⁻¹ times the plain moving average of gradients. Weight decay is no part of H.

    Source: Cohen et al. (2022), Adaptive gradient methods at the edge of stability, arXiv
        2207.14484.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)  # gradient (1, 4), Hessian diag(1, 4)
        >>> adam = torch.optim.Adam(model.parameters())
        >>> model(x).square().mean().backward()
        >>> adam.step()  # D is now 0.1 times the gradient
        >>> A = hb.PreconditionedHessian(hb.Problem(model, [(x, y)], "regression"), adam)
        >>> A.dense().round(decimals=3).tolist()
        [[10.0, 0.0], [0.0, 10.0]]
    """

    def __init__(
        self, problem: Problem, optimizer: Optimizer, group: ParameterGroup | None = None
    ) -> None:
        """Read the preconditioner; products use the weights at the time of the product.

        Args:
            problem: model, batches and loss.
            optimizer: torch's SGD, Adam or AdamW of this very model, also as a Trainer wraps it.
            group: whose own block is asked for; None: all trainable parameters.

        Raises:
            ArgumentError: another optimiser, one that has moved nothing of the group yet, a
                preconditioner that is 0 or not finite, a sharded model, or a group of another
                model.
        """
        if getattr(problem, "cuts", None):
            raise ArgumentError(
                "problem: the model's parameters are sharded, and the optimiser's state with them; "
                "measure an unsharded copy"
            )
        super().__init__(problem, group)
        self._scale: Tensor = _inverse_root(problem, _plain(optimizer), self._columns, self.dtype)

    def named_tensors(self, vector: Float[Tensor, " N"]) -> dict[str, Float[Tensor, "..."]]:
        """Turn a vector of A into a change of the weights, D^(-1/2) times it.

        Along it the loss bends by vᵀ A v.

        Args:
            vector: see `Hessian`.

        Returns:
            As `Hessian` does.
        """
        return super().named_tensors(self._scale * vector)

    def _apply(self, columns: Tensor, into: ParameterGroup, out_of: ParameterGroup) -> Tensor:
        scale = self._scale[:, None]
        return scale * super()._apply(scale * columns, into, out_of)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sharpness(Tabular):
    """Largest eigenvalue of A as far as a few products show it."""

    value: float
    """Largest Ritz value, which is at most the largest eigenvalue but for rounding."""
    residual: float
    """‖A v − value · v‖ of the unit vector: an eigenvalue lies within it, though not surely the
    largest."""
    threshold: float
    """Largest eigenvalue at which a step of the optimiser's rate and momentum is stable with D held
    fixed; nan where these differ between the parameters."""
    products: int
    """Products with H spent."""
    vector: Float[Tensor, " N"]
    """The unit vector, to start the next measurement with."""

    def to_rows(self) -> list[dict[str, Any]]:
        """Build one row: value, residual, threshold and products."""
        return [{name: value for name, value in vars(self).items() if name != "vector"}]

    def __str__(self) -> str:
        """Say the value, its residual, what was spent, and the threshold."""
        edge = "" if math.isnan(self.threshold) else f"; stable up to {self.threshold:.4g}"
        return f"{self.value:.4g} (residual {self.residual:.1g}, {self.products} products{edge})"


def preconditioned_sharpness(
    problem: Problem,
    optimizer: Optimizer,
    group: ParameterGroup | None = None,
    *,
    start: Sharpness | Float[Tensor, " N"] | None = None,
    products: int = 5,
    seed: int = 0,
) -> Sharpness:
    """Estimate the largest eigenvalue of D⁻¹H by Lanczos, with D the optimiser's preconditioner.

    With D held fixed a step on a quadratic is stable up to (2 + 2β₁) / ((1 − β₁) η) for Adam, 38 /
    η at β₁ = 0.9; for SGD up to (2 + 2β) / η with momentum β, (2 + 2β) / ((1 + 2β) η) with
    Nesterov's. Training in large batches hovers there (the edge of stability); in small ones it
    stays below.

    Args:
        problem: model, batches and loss; take batches of the training data, since D knows no
            others.
        optimizer: torch's SGD, Adam or AdamW of this very model, also as a Trainer wraps it; Adam
            after its first step.
        group: group whose own block is measured; None: all trainable parameters. Entries that the
            optimiser does not move do not count.
        start: what was found before; a few products then suffice along a training. Without one the
            residual says how far the first few have come.
        products: with H at most; fewer where the residual falls to the rounding's root of the
            largest eigenvalue.
        seed: seed of the random start, and of the 1 % that is added to a start that was given.

    Returns:
        Value, residual, threshold and the vector to start with next.

    Raises:
        ArgumentError: no products, a start that does not fit, or what `PreconditionedHessian`
            refuses.
        RunError: a product is not finite.

    Cost: `products` products with H, each about two gradients of the batches, and as many vectors.

    Source: Cohen et al. (2022), arXiv 2207.14484; thresholds of momentum: Cohen et al. (2021),
        arXiv 2103.00065.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> found = hb.preconditioned_sharpness(hb.Problem(model, [(x, y)], "regression"), sgd)
        >>> print(f"sharpness {found.value:.1f}, stable up to {found.threshold:.1f}")
        sharpness 4.0, stable up to 20.0
    """
    if isinstance(products, bool) or not isinstance(products, int) or products < 1:
        raise ArgumentError(f"products: expected a whole number above 0, got {products!r}")
    operator = PreconditionedHessian(problem, optimizer, group)
    with warnings.catch_warnings():  # what was not reached is said by the residual
        warnings.filterwarnings("ignore", message="extreme_eigenvalues: not converged")
        found = extreme_eigenvalues(
            operator,
            1,
            "largest",
            max_products=products,
            seed=seed,
            start=start.vector if isinstance(start, Sharpness) else start,
        )
    edges = {_edge(settings) for settings in _plain(optimizer).param_groups}
    return Sharpness(
        value=float(found.values[0]),
        residual=float(found.residuals[0]),
        threshold=edges.pop() if len(edges) == 1 else math.nan,
        products=found.products,
        vector=found.vectors[:, 0],
    )


def has_preconditioner(optimizer: Optimizer) -> bool:
    """Tell whether an optimiser has a preconditioner yet.

    Returns:
        Always for SGD; for Adam from its first step on.

    Raises:
        ArgumentError: an optimiser whose preconditioner is not known, or that climbs.
    """
    plain = _plain(optimizer)
    return isinstance(plain, SGD) or len(plain.state) > 0


def _plain(optimizer: Any) -> Optimizer:
    """Unwrap the optimiser from accelerate's wrapper."""
    plain = getattr(optimizer, "optimizer", optimizer)
    if type(plain) not in KINDS:
        raise ArgumentError(
            "optimizer: expected torch's SGD, Adam or AdamW, whose preconditioner is known, got "
            f"{type(plain).__module__}.{type(plain).__name__} (Muon has none: its step has one "
            "length whatever the gradient's, so that no sharpness makes it unstable)"
        )
    assert isinstance(plain, Optimizer)
    if any(settings.get("maximize") for settings in plain.param_groups):
        raise ArgumentError(
            "optimizer: expected maximize=False, since thresholds are of steps that lower the "
            "loss; to climb, measure the negative loss"
        )
    return plain


def _inverse_root(
    problem: Problem, optimizer: Optimizer, group: ParameterGroup, dtype: torch.dtype
) -> Float[Tensor, " N"]:
    """Compute D^(-1/2) of a group's entries, 0 where the optimiser does not move them."""
    named = dict(problem.model.named_parameters())
    settings = {p: one for one in optimizer.param_groups for p in one["params"]}
    ways = {name: settings.get(named[name]) for name in group.parameters}
    roots = {name: _root(optimizer, named[name], way)[None].to(dtype) for name, way in ways.items()}
    scale = torch.empty(1, group.size, device=problem.device, dtype=dtype)
    group.collect(roots, scale)
    if not scale.isfinite().all():
        raise ArgumentError(
            "optimizer: its preconditioner is 0 or not finite at some entries; look at eps and at "
            "the state"
        )
    if not scale.any():
        raise ArgumentError(
            f"optimizer: {type(optimizer).__name__} has moved none of the parameters that are "
            "asked for; give the optimiser of this model, Adam after its first step"
        )
    return scale[0]


def _root(optimizer: Any, parameter: Tensor, settings: Mapping[str, Any] | None) -> Tensor:
    """Compute D^(-1/2) of one parameter; one without state never had a gradient and stays."""
    own, state = parameter.detach(), optimizer.state.get(parameter)
    if settings is None or not (state or isinstance(optimizer, SGD)):
        return torch.zeros_like(own)
    if isinstance(optimizer, SGD):
        return torch.ones_like(own)
    (beta, decay), step = map(float, settings["betas"]), float(state["step"])
    second = state.get("max_exp_avg_sq", state["exp_avg_sq"]).to(working_dtype(own.dtype))
    size = (second / (1 - decay**step)).sqrt() + float(settings["eps"])
    root: Tensor = ((1 - beta**step) * size).rsqrt()
    return root


def _edge(settings: Mapping[str, Any]) -> float:
    """Compute the largest stable eigenvalue from the roots of a recursion."""
    rate, nesterov = float(settings["lr"]), bool(settings.get("nesterov"))
    if "betas" in settings:
        beta = pull = float(settings["betas"][0])
    else:
        beta = float(settings["momentum"])
        pull = float(settings["dampening"]) if beta else 0.0
    step = rate * (1 - pull) * (1 + 2 * beta * nesterov)
    return (2 + 2 * beta) / step if step else math.inf
