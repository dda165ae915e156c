"""A Trainer that makes no update with a loss or gradient that is no number, and says where it arose."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments

from hessblocks.conventions import AnyPath
from hessblocks.errors import RunError
from hessblocks.training import ranks
from hessblocks.training.folder import writing
from hessblocks.training.trainer.divergence import Batch, Divergence, locate


class GuardedTrainer(Trainer):
    """Prints nothing, decays matrices and embeddings alone, and leaves no half-written checkpoint.

    Training ends before an update whose loss or gradient is not finite; `divergence` then says where.
    """

    divergence: Divergence | None = None

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.remove_callback(PrinterCallback)
        self._passes: list[tuple[dict[str, Any], Tensor]] = []

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Matrices and embeddings; gains, norms and biases have fewer than two dimensions."""
        return [name for name, parameter in model.named_parameters() if parameter.ndim >= 2]

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
        if ranks.any_of(not finite):
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
        unknown = Divergence(step=step, quantity="gradient norm", place="")
        return ranks.first_of(found) or unknown

    def _loss_of(self, batch: Batch) -> Tensor:
        with self.compute_loss_context_manager(), torch.enable_grad():
            loss: Tensor = cast(nn.Module, self.model)(**batch).loss
        return loss

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
        with writing(folder):
            super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except ValueError as error:
            raise RunError(
                f"{checkpoint}: its optimiser is that of a model with other parameters (a preset of an earlier "
                "version?); choose another --out"
            ) from error

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Nothing: float16 alone has a scaler, and no training here is in float16."""


def quiet_arguments(
    folder: AnyPath, device: str, report_to: str = "none", **given: Any
) -> TrainingArguments:
    """Quiet arguments, one device a process; logging, evaluation and saving are left to a recorder.

    Args:
        folder: of the checkpoints.
        device: cpu or cuda.
        report_to: tracker that transformers hands the log to.
        **given: further fields of `transformers.TrainingArguments`.

    Returns:
        Arguments for a `GuardedTrainer`.
    """
    made = TrainingArguments(
        output_dir=str(folder),
        use_cpu=device == "cpu",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        eval_strategy="no",
        prediction_loss_only=True,
        save_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=device != "cpu",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        log_level="error",
        report_to=report_to,
        **given,
    )
    made.mixed_precision = "bf16" if made.bf16 else "no"  # not what the environment asks for
    made._n_gpu = min(made.n_gpu, 1)  # several would multiply the batch
    return made
