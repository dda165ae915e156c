"""A Trainer that makes no update with a loss or gradient that is no number, and says where it arose."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from hessblocks.training import processes
from hessblocks.training.base import QuietTrainer
from hessblocks.training.divergence import Batch, Divergence, locate


class GuardedTrainer(QuietTrainer):
    """Training ends before an update whose loss or gradient is not finite; `divergence` then says where."""

    divergence: Divergence | None = None

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._passes: list[tuple[dict[str, Any], Tensor]] = []

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """Forward and backward; remembers what went in and came out until the update is made."""
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self._passes.append((inputs, loss))
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> float:
        norm = float(super()._get_grad_norm(model, grad_norm=grad_norm))
        finite = math.isfinite(norm) and all(bool(loss.isfinite()) for _, loss in self._passes)
        if processes.any_of(not finite):
            self.divergence = self._locate()
            self.control.should_training_stop = True
            model.zero_grad(set_to_none=True)  # what has no gradient is not updated
        self._passes.clear()
        return norm

    def _locate(self) -> Divergence:
        step = self.state.global_step + 1
        batches = [self._prepare_inputs(batch) for batch, _ in self._passes]
        inner = cast(nn.Module, self.model)
        found = locate(inner, batches, self._loss_of, step)
        first = processes.first_of(found.to_json() if found else None)
        if first is None:
            return Divergence(step=step, quantity="gradient norm", place="")
        return Divergence.from_json(first)

    def _loss_of(self, batch: Batch) -> Tensor:
        with self.compute_loss_context_manager(), torch.enable_grad():
            loss: Tensor = cast(nn.Module, self.model)(**batch).loss
        return loss
