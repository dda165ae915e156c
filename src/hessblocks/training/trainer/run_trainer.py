"""The Hugging Face Trainer, set up so that a run can stop and go on without changing a digit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from torch import nn
from torch.utils.data import Dataset, Sampler, Subset
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

from hessblocks.data import Corpus, Windows
from hessblocks.settings import RunSettings
from hessblocks.training import processes
from hessblocks.training.folder import writing
from hessblocks.training.trainer.data_order import ShuffledPasses, spread
from hessblocks.training.trainer.guarded import GuardedTrainer, one_device


class RunTrainer(GuardedTrainer):
    """A Trainer whose order of data depends on seed and step alone."""

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int]:
        windows = cast(Windows, self.train_dataset)
        arguments = self.args
        each = arguments.train_batch_size * arguments.gradient_accumulation_steps
        count = arguments.max_steps * each * processes.count()
        return ShuffledPasses(windows, count, arguments.seed)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
        with writing(folder):
            super()._save_checkpoint(model, trial)


def make_trainer(
    model: PreTrainedModel,
    settings: RunSettings,
    corpus: Corpus,
    folder: Path,
    callbacks: Sequence[TrainerCallback],
    *,
    resumed: bool,
) -> RunTrainer:
    """A trainer that is ready to train.

    Args:
        model: freshly initialised.
        settings: of the run.
        corpus: what to train on and what to hold out.
        folder: of the checkpoints.
        callbacks: the first decides when to log, evaluate and save.
        resumed: whether a checkpoint will be given to `train`, so that no loss before the first
            step is due.

    Raises:
        ArgumentError: the corpus is smaller than one window, or an update cannot be shared out evenly.
    """
    context, training = settings.model.context, settings.training
    validation = corpus.windows("validation", context)
    held_out = spread(len(validation), training.evaluation_sequences)
    trainer = RunTrainer(
        model=model,
        args=_arguments(settings, folder, len(held_out), eval_on_start=not resumed),
        train_dataset=corpus.windows("train", context),
        eval_dataset=Subset(validation, held_out),
        callbacks=list(callbacks),
    )
    trainer.model_accepts_loss_kwargs = False  # mean over the batch's own predictions
    model.config.use_cache = True  # the Trainer turns it off, also in the model that is saved
    return trainer


def _arguments(
    settings: RunSettings, folder: Path, held_out: int, *, eval_on_start: bool
) -> TrainingArguments:
    """Published settings; logging, evaluation and saving are left to the first callback."""
    training = settings.training
    each = training.sequences_each(processes.count())
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=training.steps,
        per_device_train_batch_size=each,
        per_device_eval_batch_size=_evaluation_batch(held_out, each),
        **training.trainer_arguments(),
        seed=settings.seed,
        use_cpu=settings.device == "cpu",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        eval_strategy="no",
        eval_on_start=eval_on_start,
        prediction_loss_only=True,
        save_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=settings.device != "cpu",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        log_level="error",
        report_to="none",
    )
    return one_device(arguments)


def _evaluation_batch(held_out: int, most: int) -> int:
    """Sequences of a pass, such that several processes have equally many and none twice."""
    if processes.count() == 1:
        return most
    shares = [size for size in range(most, 0, -1) if held_out % (size * processes.count()) == 0]
    return shares[0] if shares else 1
