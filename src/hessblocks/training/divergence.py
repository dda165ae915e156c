"""Describe a divergence: the quantity that is not finite."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """First quantity that became infinite or not a number."""

    step: int
    """Number of the update that could not be made, from 1; of a validation loss the last one."""
    quantity: str
    """parameters, loss, gradient norm or validation loss."""
    place: str = ""
    """Name of the parameter; empty for other quantities."""

    @property
    def words(self) -> str:
        """Description, such as "parameters of model.layers.3.mlp.input.weight"."""
        return f"{self.quantity} of {self.place}" if self.place else self.quantity

    @property
    def verb(self) -> str:
        """Verb that agrees with the quantity."""
        return "are" if self.quantity == "parameters" else "is"


def located(model: nn.Module, step: int, quantity: str) -> Divergence:
    """Name the first parameter that is not finite; if all are, the quantity that is not.

    Args:
        model: model with the weights that the update started from.
        step: number of the update.
        quantity: quantity that is not finite.

    Returns:
        The divergence.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return Divergence(step=step, quantity="parameters", place=name)
    return Divergence(step=step, quantity=quantity)
