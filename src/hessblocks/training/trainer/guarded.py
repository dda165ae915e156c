"""A Trainer that makes no update with a loss or gradient that is no number, and says where it arose."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainingArguments, default_data_collator

from hessblocks.training import processes
from hessblocks.training.trainer.divergence import Batch, Divergence, locate


class QuietTrainer(Trainer):
    """A Trainer that prints nothing and decays matrices and embeddings alone."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.remove_callback(PrinterCallback)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Matrices and embeddings; gains, norms and biases have fewer than two dimensions."""
        return [name for name, parameter in model.named_parameters() if parameter.ndim >= 2]


def one_device(arguments: TrainingArguments) -> TrainingArguments:
    """The arguments for one GPU a process at most; several would multiply the batch."""
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


class GuardedTrainer(QuietTrainer):
    """Training ends before an update whose loss or gradient is not finite; `divergence` then says where."""

    divergence: Divergence | None = None

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._passes: list[tuple[dict[str, Any], Tensor]] = []

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Float[Tensor, ""]:
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


class PlainTrainer(GuardedTrainer):
    """A Trainer with a collator of its own for evaluation.

    Args:
        evaluation_collator: puts evaluation examples together, where they need no masking.
        **given: as `transformers.Trainer` takes them.
    """

    def __init__(
        self, *, evaluation_collator: Callable[..., Any] = default_data_collator, **given: Any
    ) -> None:
        super().__init__(**given)
        self._evaluation_collator = evaluation_collator

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of the evaluation examples, in order."""
        data: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        return DataLoader(
            data,
            batch_size=self.args.per_device_eval_batch_size,
            collate_fn=self._evaluation_collator,
        )


def arguments(folder: Path | str, **given: Any) -> TrainingArguments:
    """Quiet arguments, everything on one device; what `given` says is added.

    Args:
        folder: for the Trainer, which writes nothing there.
        **given: further fields of `transformers.TrainingArguments`.
    """
    made = TrainingArguments(
        output_dir=str(folder),
        lr_scheduler_type="linear",
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
        log_level="error",
        report_to="none",
        **given,
    )
    return one_device(made)
