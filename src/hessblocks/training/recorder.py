"""Record losses and costs during training, and end training at a divergence."""

import math
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel, TrainerCallback, TrainerState

from hessblocks.errors import RunError
from hessblocks.quiet import quiet
from hessblocks.settings import RunSettings
from hessblocks.storage import JsonLine, append_line, remembered_in
from hessblocks.training.folder import RunFolder, prune
from hessblocks.training.preparation import model_without_weights
from hessblocks.training.trainer import Divergence, GuardedTrainer, located


def working_seconds(device: str) -> float:
    """Read a clock of this process's work.

    Args:
        device: type of the device, such as cpu or cuda.

    Returns:
        Seconds. On the CPU, processor time of all threads, which other programs hardly affect; else
        wall-clock time, on CUDA after all kernels are finished.
    """
    if device == "cpu":
        return time.process_time()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def update_flops(settings: RunSettings, vocab_size: int) -> int:
    """Count the floating-point operations (FLOPs) of one update, forward and backward.

    Only matrix products count, with two operations per multiply-add.

    The model is on the meta device, without memory. Attention counts all tokens × tokens scores,
    though a fused kernel may skip the masked half. Norms, activations and the optimiser are not
    counted. The running means of shaped attention count, since they are products with a small
    triangular matrix: less than 1 % of a layer.

    Args:
        settings: settings of the run.
        vocab_size: entries of the vocabulary.

    Returns:
        Number of operations, over all passes of the update.

    Source:
        `torch.utils.flop_counter.FlopCounterMode`.
    """
    model = model_without_weights(settings.model, settings.preset, vocab_size)
    return sequence_flops(model, settings.model.context) * settings.training.batch_size


@cache
def sequence_flops(model: PreTrainedModel, context: int) -> int:
    """Count the operations of one sequence; cached, since seeds do not change them.

    Args:
        model: model on the meta device.
        context: tokens of the sequence.

    Returns:
        Number of operations; see `update_flops`.
    """
    tokens = torch.zeros(1, context, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(input_ids=tokens, labels=tokens).loss.backward()
    return int(counter.get_total_flops())


class Recorder(TrainerCallback):
    """Callback that decides when to log, evaluate and save, and writes losses as JSON lines.

    A line has preset, seed, step, tokens, seconds, split (train or validation) and loss; after a
    divergence also its cause, as `diverged`. `seconds` counts forward pass, backward pass and
    update, without evaluation, checkpoints and other measurements.
    """

    trainer: GuardedTrainer
    """Trainer that this callback belongs to."""

    def __init__(
        self,
        settings: RunSettings,
        folder: RunFolder | None = None,
        *,
        checkpoint: Path | None = None,
        listener: Callable[[JsonLine], object] = lambda line: None,
    ) -> None:
        """Start, or resume time and peak memory from the manifest of a checkpoint.

        Args:
            settings: settings of the run.
            folder: folder for lines and checkpoints; None: write neither.
            checkpoint: checkpoint to resume from; None: start.
            listener: called with each line.
        """
        done = remembered_in(checkpoint) if checkpoint else {}
        self.settings = settings
        self.folder = folder
        self.checkpoint = checkpoint
        self.listener = listener
        self.seconds: float = done.get("seconds", 0.0)
        self.peak: int = done.get("peak_memory", 0)
        self.divergence: Divergence | None = None
        self._started = 0.0
        self._logged = (0, self.seconds)

    def record(self, trainer: GuardedTrainer, *observers: TrainerCallback) -> None:
        """Train to the end, or to a divergence.

        Args:
            trainer: trainer of the run.
            *observers: further callbacks, called after this one in each step.

        Raises:
            RunError: a line or a checkpoint cannot be written, or the checkpoint contains something
                other than training states.
        """
        self.trainer = trainer
        for callback in (self, *observers):
            trainer.add_callback(callback)
        trainer.args.eval_on_start = self.checkpoint is None
        last = str(self.checkpoint) if self.checkpoint else None
        with quiet():
            try:
                trainer.train(resume_from_checkpoint=last)
            except UnpicklingError as error:  # it contains code, none of which was executed
                raise RunError(
                    f"{self.checkpoint} holds something other than states of a run; remove it and "
                    "run again."
                ) from error

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Count tokens from this step on."""
        self._logged = (self._tokens(state.global_step), self.seconds)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock."""
        self._started = working_seconds(self.settings.device)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Stop the clock, record the peak memory, and request due logs, losses and checkpoints.

        A checkpoint always comes with a logged loss.
        """
        self.seconds += working_seconds(self.settings.device) - self._started
        if self.settings.device == "cuda":
            self.peak = max(self.peak, torch.cuda.max_memory_allocated())
        training, step = self.settings.training, state.global_step
        last = step == training.steps
        due = step % training.checkpoint_every == 0
        control.should_save = bool(self.folder and due and not last)
        control.should_log = last or control.should_save or step % training.log_every == 0
        control.should_evaluate = last or step % training.evaluate_every == 0
        self.divergence = self.divergence or self.trainer.divergence
        if self.divergence:
            control.should_log = True
            control.should_save = control.should_evaluate = False

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Record the training loss; NaN for a step at which training diverged."""
        if "loss" not in (logs := kwargs["logs"]):
            return
        before, seconds = self._logged
        tokens = self._tokens(state.global_step)
        self._note(
            state.global_step,
            split="train",
            loss=math.nan if self.divergence else logs["loss"],
            tokens_per_second=(tokens - before) / max(self.seconds - seconds, 1e-9),
            learning_rate=logs["learning_rate"],
            gradient_norm=logs.get("grad_norm"),
        )
        self._logged = (tokens, self.seconds)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Record the validation loss; a loss that is not finite ends training."""
        loss, step = kwargs["metrics"]["eval_loss"], state.global_step
        if not (math.isfinite(loss) or self.divergence):
            self.divergence = located(kwargs["model"], step, "validation loss")
            control.should_training_stop, control.should_save = True, False
        self._note(step, split="validation", loss=loss)

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Write the manifest of the Trainer's checkpoint; remove old checkpoints."""
        if not self.folder:
            return
        checkpoint = self.folder.checkpoints / f"checkpoint-{state.global_step}"
        (checkpoint / "training_args.bin").unlink(missing_ok=True)  # an unused pickle
        done = {"step": state.global_step, "seconds": self.seconds, "peak_memory": self.peak}
        self.folder.mark_whole(checkpoint, checkpoint.name, done)
        prune(self.folder.checkpoints)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Wait until all lines are on the disk."""
        if self.folder:
            self.folder.sync_lines()

    def common(self, step: int) -> JsonLine:
        """Return the fields that all lines of metrics and observations have."""
        return {
            "preset": self.settings.preset,
            "seed": self.settings.seed,
            "step": step,
            "tokens": self._tokens(step),
            "seconds": self.seconds,
        }

    def _tokens(self, step: int) -> int:
        """Compute the number of training tokens up to a step."""
        return step * self.settings.training.batch_size * self.settings.model.context

    def _note(self, step: int, **values: Any) -> None:
        line = self.common(step) | values
        if self.divergence:
            line["diverged"] = self.divergence.words
        if self.folder:
            append_line(self.folder.metrics, line)
        self.listener(line)
