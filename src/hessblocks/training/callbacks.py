"""What happens between the steps of a run: losses written down, checkpoints sealed, time measured."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hessblocks.training.checkpoints import prune, seal
from hessblocks.training.folder import RunFolder
from hessblocks.training.memory import peak_memory
from hessblocks.training.metrics import append
from hessblocks.training.progress import Progress
from hessblocks.training.settings import RunSettings


class DivergenceWarning(UserWarning):
    """A loss is no longer a number; the run ends there."""


class Recorder(TrainerCallback):
    """Decides when to log, evaluate and save, and writes down what comes of it.

    Training time is that of forward, backward and update; evaluation and checkpoints are left out.
    """

    def __init__(
        self, settings: RunSettings, folder: RunFolder, progress: Progress, done: dict[str, Any]
    ) -> None:
        """Start, or go on from what a checkpoint remembered (`done`)."""
        self.settings = settings
        self.folder = folder
        self.progress = progress
        self.seconds: float = done.get("seconds", 0.0)
        self.peak: int = done.get("peak_memory", 0)
        self.diverged_at: int | None = None
        self._logged = (done.get("step", 0), self.seconds)
        self._started = 0.0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Stop the clock; ask for what is due. A checkpoint always comes with a logged loss."""
        if self.settings.device == "cuda":
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - self._started
        training, step = self.settings.training, state.global_step
        last = step == training.steps
        control.should_save = not last and step % training.checkpoint_every == 0
        control.should_log = last or control.should_save or step % training.log_every == 0
        control.should_evaluate = last or step % training.evaluate_every == 0

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Write the training loss down; end the run where it is not a number."""
        if not logs or "loss" not in logs:
            return
        step, seconds = self._logged
        tokens = (state.global_step - step) * self._tokens_each
        self._append(
            state.global_step,
            split="train",
            loss=logs["loss"],
            tokens_per_second=tokens / max(self.seconds - seconds, 1e-9),
            learning_rate=logs["learning_rate"],
            gradient_norm=logs.get("grad_norm"),
        )
        self.progress.step(state.global_step, logs["loss"])
        if not math.isfinite(logs["loss"]):
            self._diverge(step, state.global_step)
            control.should_training_stop = control.should_evaluate = True
            control.should_save = False
        self._logged = (state.global_step, self.seconds)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **given: Any,
    ) -> None:
        """Write the validation loss down."""
        self._append(state.global_step, split="validation", loss=given["metrics"]["eval_loss"])

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Seal the checkpoint that the Trainer has written; remove old ones."""
        checkpoint = self.folder.checkpoints / f"checkpoint-{state.global_step}"
        (checkpoint / "training_args.bin").unlink(missing_ok=True)  # a pickle that nobody reads
        self.peak = max(self.peak, peak_memory(self.settings.device))
        done = {"step": state.global_step, "seconds": self.seconds, "peak_memory": self.peak}
        seal(checkpoint, done)
        prune(self.folder.checkpoints)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Note the peak of memory."""
        self.peak = max(self.peak, peak_memory(self.settings.device))

    @property
    def _tokens_each(self) -> int:
        """Tokens of one step."""
        return self.settings.training.batch_size * self.settings.model.context

    def _append(self, step: int, **values: Any) -> None:
        line = {
            "preset": self.settings.preset,
            "seed": self.settings.seed,
            "step": step,
            "tokens": step * self._tokens_each,
            "seconds": self.seconds,
        }
        append(self.folder.metrics, line | values)

    def _diverge(self, before: int, step: int) -> None:
        self.diverged_at = step
        warnings.warn(
            f"{self.settings.preset}, seed {self.settings.seed}: the training loss is no longer a "
            f"number between steps {before + 1} and {step}; the run ends there. Try a lower "
            f"--learning-rate than {self.settings.training.learning_rate:g}.",
            DivergenceWarning,
            stacklevel=2,
        )
