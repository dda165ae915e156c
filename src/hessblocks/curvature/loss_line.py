"""Loss along a line through the weights (a one-dimensional loss landscape)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from hessblocks.curvature.products import Problem, check_problem
from hessblocks.errors import ArgumentError, RunError
from hessblocks.storage import Tabular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LossAlong(Tabular):
    """Loss at some points of a line through the weights."""

    steps: tuple[float, ...]
    """Multiple of the direction at each point."""
    losses: tuple[float, ...]
    """L(θ + step · direction), in nats per token for the cross-entropies."""

    def to_rows(self) -> list[dict[str, Any]]:
        """Return step and loss of each point."""
        pairs = zip(self.steps, self.losses, strict=True)
        return [{"step": step, "loss": loss} for step, loss in pairs]

    def __str__(self) -> str:
        """Summarise the number of points and the ranges of steps and losses."""
        return (
            f"loss at {len(self.steps):,} steps from {min(self.steps):.4g} to "
            f"{max(self.steps):.4g} along a direction: from {min(self.losses):.4g} to "
            f"{max(self.losses):.4g}"
        )

    def plot(self, ax: Axes | None = None) -> Figure:
        """Draw the loss against the step.

        Args:
            ax: axes of matplotlib to draw on; None for a figure of its own.

        Returns:
            The figure that was drawn on.
        """
        from hessblocks.drawing import plot
        from hessblocks.figures import Panel, Series

        panel = Panel(
            title="Loss along a direction",
            x_label="Step, in lengths of the direction",
            y_label="Loss",
            series=(Series(name="loss", x=self.steps, y=self.losses),),
        )
        return plot(panel, ax)


def loss_along(
    problem: Problem, direction: Mapping[str, Float[Tensor, "..."]], steps: Iterable[float]
) -> LossAlong:
    """Compute the loss at θ + step · direction, a one-dimensional loss landscape.

    Along a unit eigenvector of the Hessian the second derivative at step 0 is its eigenvalue. The
    model's weights are not changed.

    Args:
        problem: model, batches and loss.
        direction: tensors by parameter name, shaped as the parameters, such as the result of an
            operator's `named_tensors` for an eigenvector; a missing parameter stays constant.
        steps: multiples of the direction, such as `torch.linspace(-0.5, 0.5, 21)`.

    Returns:
        The losses; `.to_rows()`, `.plot()`.

    Raises:
        ArgumentError: a sharded model, no direction or no steps, a name of no trainable parameter,
            a wrong shape, or a step that is not a finite number.
        RunError: a loss is not finite; the message names the step.

    Cost: one forward pass over the batches per step, and a copy of the parameters in `direction`.

    Examples:
        >>> import torch, hessblocks as hb
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> direction = {"weight": torch.tensor([[0.0, 1.0]])}  # an eigenvector, of eigenvalue 4
        >>> problem = hb.Problem(model, [(x, y)], "regression")
        >>> [row["loss"] for row in hb.loss_along(problem, direction, [-1, 0, 1, 2]).to_rows()]
        [2.0, 0.0, 2.0, 8.0]
    """
    check_problem(problem)
    problem.check_whole()
    parameters, numbers = problem.parameters, _finite_numbers(steps)
    _check_direction(direction, problem)
    moves = {name: tensor.detach().to(parameters[name]) for name, tensor in direction.items()}
    losses = []
    for step in numbers:
        moved = {name: parameters[name] + step * move for name, move in moves.items()}
        try:
            losses.append(problem.value(parameters | moved, twice=False))
        except RunError as error:
            raise RunError(f"loss_along: at step {step:.4g}: {error}") from error
    return LossAlong(steps=tuple(numbers), losses=tuple(losses))


def _finite_numbers(steps: Iterable[float]) -> list[float]:
    try:
        numbers = [float(step) for step in steps]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"steps: expected several numbers, got {steps!r}") from error
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ArgumentError(f"steps: expected finite numbers, at least one, got {numbers}")
    return numbers


def _check_direction(direction: Mapping[str, Tensor], problem: Problem) -> None:
    """Check that names are trainable parameters, and tensors have their shapes and dtypes."""
    if not isinstance(direction, Mapping) or not direction:
        raise ArgumentError(
            "direction: expected tensors by parameter name, as operator.named_tensors(vector) "
            f"gives them, got {type(direction).__name__}"
        )
    named = problem.model.named_parameters()
    shapes = {n: tuple(p.shape) for n, p in named if n in problem.parameters}
    for name, tensor in direction.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = getattr(tensor, "dtype", type(tensor).__name__)
            raise ArgumentError(
                f"direction: {name!r}: expected a tensor of real numbers, got {kind}"
            )
        shape = tuple(tensor.shape)
        if shape != (wanted := shapes.get(name, "a trainable parameter's name")):
            raise ArgumentError(f"direction: {name!r}: expected {wanted}, got shape {shape}")
