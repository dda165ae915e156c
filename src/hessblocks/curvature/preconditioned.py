"""Preconditioned Hessian, and its largest eigenvalue against the edge of stability.

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
"""Optimisers whose step is D⁻¹ times an average of gradients, with a diagonal D from their
state."""


class PreconditionedHessian(Hessian):
    """Preconditioned Hessian A = D^(-1/2) H D^(-1/2), with D from the optimiser's current state.

    Rows and columns of A are 0 for entries that the optimiser does not change.

    D is 1 for SGD, and (1 − β₁ᵗ) (√(v / (1 − β₂ᵗ)) + eps) for Adam and AdamW: their step is η D⁻¹
    times the moving average of gradients without bias correction. H excludes weight decay.

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
        """Read the preconditioner; each product uses the current weights.

        Args:
            problem: model, batches and loss.
            optimizer: torch's SGD, Adam or AdamW of this model, also in a Trainer's wrapper.
            group: group of the diagonal block; None: all trainable parameters.

        Raises:
            ArgumentError: another optimiser, one that has no state for the group yet, a
                preconditioner that is 0 or not finite, a sharded model, or a group of another
                model.
        """
        super().__init__(problem, group)
        self._scale: Tensor = _inverse_root(problem, _plain(optimizer), self._columns, self.dtype)

    def named_tensors(self, vector: Float[Tensor, " N"]) -> dict[str, Float[Tensor, "..."]]:
        """Convert a vector v of A to the change of the weights D^(-1/2) v.

        The loss's second derivative along this change is vᵀ A v.

        Args:
            vector: see `Hessian`.

        Returns:
            See `Hessian`.
        """
        return super().named_tensors(self._scale * vector)

    def _apply(self, columns: Tensor, into: ParameterGroup, out_of: ParameterGroup) -> Tensor:
        scale = self._scale[:, None]
        return scale * super()._apply(scale * columns, into, out_of)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sharpness(Tabular):
    """Estimate of the largest eigenvalue of A from a few Lanczos steps."""

    value: float
    """Largest Ritz value, a lower bound of the largest eigenvalue up to rounding."""
    residual: float
    """‖A v − value · v‖ of the unit vector v. Some eigenvalue lies within it of `value`, perhaps
    not the largest."""
    threshold: float
    """Largest eigenvalue for which the optimiser's learning rate and momentum are stable with
    constant D; NaN if these differ between parameters."""
    products: int
    """Number of products with H."""
    vector: Float[Tensor, " N"]
    """Unit Ritz vector v, a start for the next estimate."""

    def to_rows(self) -> list[dict[str, Any]]:
        """Build one row: value, residual, threshold and products."""
        return [{name: value for name, value in vars(self).items() if name != "vector"}]

    def __str__(self) -> str:
        """Show value, residual, number of products, and threshold."""
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

    With constant D, steps on a quadratic are stable up to (2 + 2β₁) / ((1 − β₁) η) for Adam, 38 / η
    at β₁ = 0.9; for SGD up to (2 + 2β) / η with momentum β, (2 + 2β) / ((1 + 2β) η) with Nesterov
    momentum. Training with large batches stays near this threshold (the edge of stability), with
    small batches below it.

    Args:
        problem: model, batches and loss; use batches of the training data, from which D comes.
        optimizer: torch's SGD, Adam or AdamW of this model, also in a Trainer's wrapper; Adam
            after its first step.
        group: group of the diagonal block; None: all trainable parameters. Entries that the
            optimiser does not change are left out.
        start: an earlier result; during training a few products then suffice. Without a start,
            check the residual.
        products: largest number of products with H; Lanczos stops earlier once the residual is
            below √ε times the largest eigenvalue, with ε the machine epsilon.
        seed: seed of the random start, and of the 1 % noise that is added to a given start.

    Returns:
        Value, residual, threshold and the start of the next estimate.

    Raises:
        ArgumentError: no products, a start that does not fit, or see `PreconditionedHessian`.
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
    with warnings.catch_warnings():  # the residual shows whether Lanczos has converged
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
        True for SGD; for Adam, True after its first step.

    Raises:
        ArgumentError: the optimiser's preconditioner is unknown, or the optimiser maximises.
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
    """Compute D^(-1/2) of a group's entries, 0 for entries that the optimiser does not change."""
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
    """Compute D^(-1/2) of one parameter; 0 without a state, since it never had a gradient."""
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
    """Compute the largest eigenvalue for which the optimiser's linear recursion is stable."""
    rate, nesterov = float(settings["lr"]), bool(settings.get("nesterov"))
    if "betas" in settings:
        beta = pull = float(settings["betas"][0])
    else:
        beta = float(settings["momentum"])
        pull = float(settings["dampening"]) if beta else 0.0
    step = rate * (1 - pull) * (1 + 2 * beta * nesterov)
    return (2 + 2 * beta) / step if step else math.inf
