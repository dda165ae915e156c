"""Subclasses of transformers' Trainer that stop at a non-finite loss and resume bit for bit."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Muon, Optimizer
from torch.utils.data import Dataset, Sampler, Subset
from transformers import PreTrainedModel, Trainer, TrainingArguments

from hessblocks.conventions import AnyPath
from hessblocks.data import END_OF_TEXT, MASK, PADDING, Corpus, Example, Windows
from hessblocks.errors import RunError
from hessblocks.settings import RunSettings, SharedSettings, TrainingSettings
from hessblocks.training.folder import writing

OptimiserGroups = list[dict[str, Any]]
"""Parameter groups of torch's optimisers: parameters with learning rate and weight decay."""


class OptimiserPair(Optimizer):
    """Several optimisers as one, for the Trainer and its checkpoints."""

    def __init__(self, *inner: Optimizer) -> None:
        self.inner = inner
        super().__init__([group for optimiser in inner for group in optimiser.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Give each optimiser its parameter groups, and all of them one state."""
        start = 0
        for optimiser in self.inner:
            end = start + len(optimiser.param_groups)
            optimiser.param_groups, start = self.param_groups[start:end], end
            optimiser.state = self.state

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state of all optimisers."""
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step each optimiser."""
        for optimiser in self.inner:
            optimiser.step()


def layer_matrices(model: PreTrainedModel) -> list[Float[Tensor, "outputs inputs"]]:
    """List the weight matrices of a model's layers, without embeddings, output head and vectors.

    Args:
        model: model made of blocks.

    Returns:
        Trainable parameters with two axes.
    """
    layers = cast(Iterable[nn.Module], model.base_model.layers)
    return [p for layer in layers for p in layer.parameters() if p.ndim == 2 and p.requires_grad]


def optimiser_of(trainer: Trainer, training: TrainingSettings) -> Optimizer | None:
    """Make the optimiser of a run whose layer matrices have their own optimiser or rate.

    With rates by width, the rate of the matrices is `learning_rate` times base width over width.
    Their weight decay is divided by the same factor, so that rate times decay stays the same.

    Args:
        trainer: Trainer with its model.
        training: settings of the training.

    Returns:
        The optimiser; None if the Trainer's default is enough.

    Source:
        Muon: torch.optim.Muon, its step as large as AdamW's (Liu et al., 2025, arXiv 2502.16982,
        eq. 4). Rates by width: Yang et al. (2022), arXiv 2203.03466, table 8, for Adam; only the
        rate of hidden matrices is taken from it.
    """
    muon = training.optimiser == "muon"
    if not muon and training.rates == "same":
        return None
    model = cast(PreTrainedModel, trainer.model)
    factor = training.base_width / model.config.hidden_size if training.rates == "width" else 1.0
    rate, decay = training.learning_rate, training.weight_decay
    matrices = layer_matrices(model)
    matrix_ids = {id(matrix) for matrix in matrices}
    others = [p for p in model.parameters() if id(p) not in matrix_ids and p.requires_grad]
    first = {"params": matrices, "lr": factor * rate, "weight_decay": decay / factor}
    rest: OptimiserGroups = [
        {"params": [p for p in others if p.ndim >= 2], "lr": rate, "weight_decay": decay},
        {"params": [p for p in others if p.ndim < 2], "lr": rate, "weight_decay": 0.0},
    ]
    kind, options = Trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    if not muon:
        return cast(Optimizer, kind([first, *rest], **options))
    return OptimiserPair(Muon([first], adjust_lr_fn="match_rms_adamw"), kind(rest, **options))


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """First quantity that became infinite or not a number."""

    step: int
    """Number of the update that could not be made, from 1; of a validation loss the last one."""
    words: str
    """Loss, gradient norm, validation loss, or "parameters of model.layers.3.mlp.input.weight"."""
    verb: str = "is"
    """Verb that agrees with the words."""


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
            return Divergence(step=step, words=f"parameters of {name}", verb="are")
    return Divergence(step=step, words=quantity)


class GuardedTrainer(Trainer):
    """Trainer that prints nothing, and removes a checkpoint that it cannot write whole.

    Weight decay acts on matrices and embeddings only. Training ends before an update whose loss or
    gradient is not finite.
    """

    divergence: Divergence | None = None
    """First quantity that was not finite; None while all are."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.remove_callback(transformers.PrinterCallback)
        self._losses: list[Tensor] = []

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """List the parameters with two axes or more; gains, norms and biases have no decay."""
        return [name for name, parameter in model.named_parameters() if parameter.ndim >= 2]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; a failure of torch.compile, such as a missing compiler, becomes a RunError."""
        try:
            return super().train(*args, **kwargs)
        except RuntimeError as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            why = " ".join(str(error).partition("\n\n")[0].split())
            raise RunError(
                f"--compile: torch.compile failed ({why}); it needs a C++ compiler on a CPU and "
                "Triton on CUDA; leave the option out to train without it."
            ) from error

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Float[Tensor, ""]:
        """Run a forward and backward pass; keep the loss until the update is checked."""
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self._losses.append(loss)
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> float:
        norm = float(super()._get_grad_norm(model, grad_norm=grad_norm))
        losses_finite = all(bool(loss.isfinite()) for loss in self._losses)
        if not (math.isfinite(norm) and losses_finite):
            quantity = "gradient norm" if losses_finite else "loss"
            self.divergence = located(model, self.state.global_step + 1, quantity)
            self.control.should_training_stop = True
            model.zero_grad(set_to_none=True)  # without gradients the optimiser changes nothing
        self._losses.clear()
        return norm

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
        with writing(folder, folder.parent):
            super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except ValueError as error:
            raise RunError(
                f"{checkpoint}: its optimiser is that of a model with other parameters; choose "
                "another --out"
            ) from error

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: a gradient scaler is for float16, which is never used here."""


def quiet_arguments(
    folder: AnyPath, device: str, report_to: str = "none", **fields: Any
) -> TrainingArguments:
    """Make arguments with which the Trainer prints, logs and saves nothing by itself.

    A recorder logs and saves instead. Each process uses one device.

    Args:
        folder: folder of the checkpoints.
        device: cpu or cuda.
        report_to: experiment tracker of transformers that gets the log, such as `tensorboard`.
        **fields: further fields of `transformers.TrainingArguments`.

    Returns:
        Arguments for a `GuardedTrainer`.
    """
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=device == "cpu",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        prediction_loss_only=True,
        save_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=device != "cpu",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        log_level="error",
        report_to=report_to,
        **fields,
    )
    # whatever ACCELERATE_MIXED_PRECISION is
    arguments.mixed_precision = "bf16" if arguments.bf16 else "no"
    arguments._n_gpu = min(arguments.n_gpu, 1)  # more GPUs in one process would multiply the batch
    return arguments


class ShuffledPasses(Sampler[int]):
    """Sampler of `count` indices: passes over the data, each in a new random order.

    An index depends on the seed and its position only, so that a run can resume anywhere.
    """

    def __init__(self, data: Sized, count: int, seed: int) -> None:
        self.size, self.count, self.seed = len(data), count, seed

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        passes = (
            np.random.default_rng([self.seed, index]).permutation(self.size).tolist()
            for index in itertools.count()
        )
        return itertools.islice(itertools.chain.from_iterable(passes), self.count)


class RunTrainer(GuardedTrainer):
    """Trainer whose data order depends only on the seed and the step."""

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int]:
        windows, arguments = cast(Windows, self.train_dataset), self.args
        per_step = arguments.train_batch_size * arguments.gradient_accumulation_steps
        return ShuffledPasses(windows, arguments.max_steps * per_step, arguments.seed)


def tokenizer_of(corpus: Corpus, context: int) -> transformers.PreTrainedTokenizerFast:
    """Wrap the tokenizer of a corpus for the collators and models of Hugging Face.

    Args:
        corpus: corpus for any task.
        context: longest sequence, in tokens.

    Returns:
        The tokenizer, with a mask and a padding token where the corpus has them.
    """
    present = {
        name: token
        for name, token in {"mask_token": MASK, "pad_token": PADDING}.items()
        if corpus.tokenizer.token_to_id(token) is not None
    }
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=corpus.tokenizer,
        eos_token=END_OF_TEXT,
        model_max_length=context,
        **present,
    )


def make_trainer(
    model: PreTrainedModel, settings: RunSettings, corpus: Corpus, folder: AnyPath
) -> RunTrainer:
    """Make the trainer of a run; it has no recorder yet.

    Args:
        model: freshly initialised.
        settings: settings of the run.
        corpus: text to train on, and held-out text.
        folder: folder of the checkpoints.

    Returns:
        The trainer.

    Raises:
        ArgumentError: the corpus is smaller than one window, or the sequences of an update cannot
            be divided evenly among processes and accumulated passes.
    """
    trainer = RunTrainer(
        model=model,
        args=run_arguments(settings, folder),
        train_dataset=corpus.windows("train", settings.model.context),
        eval_dataset=held_out(corpus, settings),
    )
    trainer.optimizer = optimiser_of(trainer, settings.training)
    if settings.training.compile:
        for layer in cast(nn.ModuleList, model.base_model.layers):
            layer.compile()  # in place, so that names and saved weights stay as they are
    trainer.model_accepts_loss_kwargs = False  # the loss is a mean over its own batch
    model.config.use_cache = True  # the Trainer sets and would save False
    return trainer


def held_out(corpus: Corpus, settings: SharedSettings) -> Subset[Example]:
    """Select the held-out windows of the validation loss, evenly spaced in the split.

    Args:
        corpus: corpus with a validation split.
        settings: settings of the run.

    Returns:
        At most as many windows as the settings ask for.

    Raises:
        ArgumentError: the split is smaller than one window.
    """
    validation = corpus.windows("validation", settings.model.context)
    return Subset(validation, spread(len(validation), settings.training.evaluation_sequences))


def spread(size: int, count: int) -> list[int]:
    """Choose `count` evenly spaced indices below `size`; all of them if `size` is smaller."""
    count = min(size, count)
    return [index * size // count for index in range(count)]


def run_arguments(settings: RunSettings, folder: AnyPath, **fields: Any) -> TrainingArguments:
    """Translate the settings of a run into arguments of transformers.

    Args:
        settings: settings of the run.
        folder: folder of the checkpoints.
        **fields: further fields of `transformers.TrainingArguments`.

    Returns:
        Arguments for a `GuardedTrainer`.

    Raises:
        ArgumentError: the sequences of an update cannot be divided evenly among its passes.
    """
    training = settings.training
    per_pass = training.sequences_each()
    return quiet_arguments(
        folder,
        settings.device,
        report_to=settings.report_to,
        run_name=f"{settings.preset}, seed {settings.seed}",
        max_steps=training.steps,
        per_device_train_batch_size=per_pass,
        per_device_eval_batch_size=per_pass,
        seed=settings.seed,
        **training.trainer_arguments(),
        **fields,
    )
