"""The Hugging Face Trainer, set up so that a run can stop and go on without changing a digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from torch import nn
from torch.utils.data import Dataset, Sampler, Subset
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainingArguments

from hessblocks.data import Corpus, Windows
from hessblocks.training.callbacks import Recorder
from hessblocks.training.checkpoints import writing
from hessblocks.training.order import ShuffledPasses, spread
from hessblocks.training.settings import RunSettings


class RunTrainer(Trainer):
    """A Trainer whose order of data depends on seed and step alone, gains and norms undecayed."""

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int]:
        windows = cast(Windows, self.train_dataset)
        count = self.args.max_steps * self.args.train_batch_size
        return ShuffledPasses(windows, count, self.args.seed)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
        with writing(folder):
            super()._save_checkpoint(model, trial)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Matrices and embeddings; gains, norms and biases have fewer than two dimensions."""
        return [name for name, parameter in model.named_parameters() if parameter.ndim >= 2]


def make_trainer(
    model: PreTrainedModel,
    settings: RunSettings,
    corpus: Corpus,
    recorder: Recorder,
    *,
    resumed: bool,
) -> RunTrainer:
    """A trainer that is ready to train.

    Args:
        model: freshly initialised.
        settings: of the run.
        corpus: what to train on and what to hold out.
        recorder: decides when to log, evaluate and save.
        resumed: whether a checkpoint will be given to `train`, so that no loss before the first
            step is due.

    Raises:
        ArgumentError: the corpus is smaller than one window.
    """
    context, training = settings.model.context, settings.training
    validation = corpus.windows("validation", context)
    trainer = RunTrainer(
        model=model,
        args=_arguments(settings, recorder.folder.checkpoints, eval_on_start=not resumed),
        train_dataset=corpus.windows("train", context),
        eval_dataset=Subset(validation, spread(len(validation), training.evaluation_sequences)),
        callbacks=[recorder],
    )
    trainer.model_accepts_loss_kwargs = False  # mean over the batch's own predictions
    trainer.remove_callback(PrinterCallback)
    model.config.use_cache = True  # the Trainer turns it off, also in the model that is saved
    return trainer


def _arguments(settings: RunSettings, folder: Path, *, eval_on_start: bool) -> TrainingArguments:
    """Published settings; logging, evaluation and saving are left to the recorder."""
    training = settings.training
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=training.steps,
        per_device_train_batch_size=training.batch_size,
        per_device_eval_batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=round(training.warmup * training.steps),
        weight_decay=training.weight_decay,
        adam_beta1=training.betas[0],
        adam_beta2=training.betas[1],
        max_grad_norm=training.clip,
        seed=settings.seed,
        use_cpu=settings.device == "cpu",
        bf16=False,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        eval_strategy="no",
        eval_on_start=eval_on_start,
        prediction_loss_only=True,
        save_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=settings.device != "cpu",
        disable_tqdm=True,
        log_level="error",
        report_to="none",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs would multiply the batch
    return arguments
