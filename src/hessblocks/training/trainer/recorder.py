"""What happens between the steps of a run: losses written down, checkpoints sealed, time measured."""

from __future__ import annotations

import math
import warnings
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from hessblocks.progress import Progress
from hessblocks.settings import RunSettings
from hessblocks.storage import append_line, read_lines
from hessblocks.training import processes
from hessblocks.training.folder import RunFolder, prune, seal
from hessblocks.training.trainer.divergence import Divergence
from hessblocks.training.trainer.memory import allocated_peak
from hessblocks.training.trainer.pace import StepClock
from hessblocks.training.trainer.run_trainer import RunTrainer


class DivergenceWarning(UserWarning):
    """A loss or a gradient is no longer a number; the run ends there."""


class Recorder(StepClock):
    """Decides when to log, evaluate and save, and writes down what comes of it.

    Training time is that of forward, backward and update; evaluation, checkpoints and what is measured
    on the way are left out. Only the first of several processes writes.
    """

    trainer: RunTrainer
    """Whose callback this is; set before training."""

    def __init__(
        self, settings: RunSettings, folder: RunFolder, progress: Progress, done: dict[str, Any]
    ) -> None:
        """Start, or go on from what a checkpoint remembered (`done`)."""
        super().__init__(settings.device)
        self.settings = settings
        self.folder = folder
        self.progress = progress
        self.seconds: float = done.get("seconds", 0.0)
        self.peak: int = done.get("peak_memory", 0)
        self.divergence: Divergence | None = None
        self._logged = (done.get("step", 0), self.seconds)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Stop the clock; ask for what is due. A checkpoint always comes with a logged loss."""
        super().on_step_end(args, state, control)
        self.seconds += self.last
        training, step = self.settings.training, state.global_step
        last = step == training.steps
        control.should_save = not last and step % training.checkpoint_every == 0
        control.should_log = last or control.should_save or step % training.log_every == 0
        control.should_evaluate = last or step % training.evaluate_every == 0
        self.divergence = self.divergence or self.trainer.divergence
        if self.divergence:
            control.should_log = True
            control.should_save = control.should_evaluate = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Write the training loss down: none for a step whose update could not be made."""
        if not logs or "loss" not in logs:
            return
        step, seconds = self._logged
        loss = math.nan if self.divergence else logs["loss"]
        tokens = (state.global_step - step) * self._tokens_each
        self._append(
            state.global_step,
            split="train",
            loss=loss,
            tokens_per_second=tokens / max(self.seconds - seconds, 1e-9),
            learning_rate=logs["learning_rate"],
            gradient_norm=logs.get("grad_norm"),
            **({"diverged": self.divergence.words} if self.divergence else {}),
        )
        self.progress.step(state.global_step, loss)
        if self.divergence and processes.is_first():
            self._warn(self.divergence)
        self._logged = (state.global_step, self.seconds)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **given: Any,
    ) -> None:
        """Write the validation loss down; one that is no number ends the run as a training loss does."""
        loss, step = given["metrics"]["eval_loss"], state.global_step
        if math.isfinite(loss) or self.divergence:
            self._append(step, split="validation", loss=loss)
            return
        parameters = given["model"].named_parameters()
        place = next((name for name, p in parameters if not p.isfinite().all()), "")
        quantity = "parameters" if place else "validation loss"
        self.divergence = Divergence(step=step, quantity=quantity, place=place)
        self._append(step, split="validation", loss=loss, diverged=self.divergence.words)
        control.should_training_stop, control.should_save = True, False
        if processes.is_first():
            self._warn(self.divergence)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Seal the checkpoint that the Trainer has written; remove old ones."""
        processes.wait()  # each writes its random state
        if not processes.is_first():
            return
        checkpoint = self.folder.checkpoints / f"checkpoint-{state.global_step}"
        (checkpoint / "training_args.bin").unlink(missing_ok=True)  # a pickle that nobody reads
        self.peak = max(self.peak, allocated_peak(self.settings.device))
        done = {
            "step": state.global_step,
            "seconds": self.seconds,
            "peak_memory": self.peak,
            "observations": len(read_lines(self.folder.observations)),
        }
        seal(checkpoint, done)
        prune(self.folder.checkpoints)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Note the peak of memory."""
        self.peak = max(self.peak, allocated_peak(self.settings.device))

    def common(self, step: int) -> dict[str, Any]:
        """What every line of a run's files says."""
        return {
            "preset": self.settings.preset,
            "seed": self.settings.seed,
            "step": step,
            "tokens": step * self._tokens_each,
            "seconds": self.seconds,
        }

    @property
    def _tokens_each(self) -> int:
        """Tokens of one step."""
        return self.settings.training.batch_size * self.settings.model.context

    def _append(self, step: int, **values: Any) -> None:
        if processes.is_first():
            append_line(self.folder.metrics, self.common(step) | values)

    def _warn(self, divergence: Divergence) -> None:
        warnings.warn(
            f"{self.settings.preset}, seed {self.settings.seed}: diverged at step {divergence.step}: "
            f"the {divergence.words} {divergence.verb} not finite; the run ends there and its numbers are kept. Try a lower "
            f"--learning-rate than {self.settings.training.learning_rate:g}.",
            DivergenceWarning,
            stacklevel=2,
        )
