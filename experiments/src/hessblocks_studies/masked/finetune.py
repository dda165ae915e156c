"""Fine-tune a pretrained model on a labelled task."""

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from transformers import DataCollatorWithPadding, PreTrainedModel

from hessblocks.conventions import AnyPath
from hessblocks.data import Corpus
from hessblocks.models import HessblocksForSequenceClassification
from hessblocks.quiet import quiet
from hessblocks.training import (
    GuardedTrainer,
    quiet_arguments,
    resolve_device,
    tokenizer_of,
)
from hessblocks_studies.data import LabelledText, Task
from hessblocks_studies.masked.masked_settings import Pretraining


@dataclass(frozen=True, kw_only=True)
class Finetuning:
    """Settings of fine-tuning a classifier: AdamW, linear warm-up, decay to 0."""

    epochs: int
    """Passes over the training examples."""
    batch_size: int
    """Examples per update."""
    learning_rate: float
    """Peak learning rate."""
    examples: int | None = None
    """Maximum number of training examples; None means all."""
    seed: int = 0
    """Seed of the head and of the order of examples."""
    decay: str = "linear"
    """Decay of the learning rate: linear or cosine."""
    warmup: float = 0.1
    """Share of the steps with a linear increase of the learning rate from 0."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices and embeddings; gains and norms have none."""
    clip: float = 0.5
    """Largest norm of the gradient; longer gradients are clipped."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of a classifier on held-out examples."""

    accuracy: float | None
    """Share of correct answers on the test split; None if an output is not finite."""
    validation: float | None
    """Share of correct answers on the validation split, for the choice of a learning rate."""
    examples: int
    """Number of examples in the test split."""
    chance: float
    """Share of the most frequent class in the test split."""


def finetune(
    pretraining: Pretraining,
    folder: AnyPath | None,
    corpus: Corpus,
    task: Task,
    settings: Finetuning,
) -> Score:
    """Train a classifier and score it on held-out examples.

    Args:
        pretraining: settings of the model's pretraining.
        folder: folder with the pretrained weights; None for random weights.
        corpus: corpus of the pretraining, whose encoding the model uses.
        task: texts and labels.
        settings: settings of the fine-tuning.

    Returns:
        The scores on the test split and the validation split.
    """
    tokenizer = tokenizer_of(corpus, pretraining.context)
    train = encoded(task.first("train", settings.examples), tokenizer, pretraining.context)
    validation, test = (
        encoded(task.splits[split], tokenizer, pretraining.context)
        for split in ("validation", "test")
    )
    collator = DataCollatorWithPadding(tokenizer)
    steps = settings.epochs * -(-len(train) // settings.batch_size)
    device = resolve_device("auto")
    with quiet(), tempfile.TemporaryDirectory() as unused:
        trainer = GuardedTrainer(
            model=classifier(pretraining, folder, len(task.classes), settings.seed),
            args=quiet_arguments(
                unused,
                device,
                bf16=device == "cuda",
                num_train_epochs=settings.epochs,
                per_device_train_batch_size=settings.batch_size,
                per_device_eval_batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                lr_scheduler_type=settings.decay,
                warmup_steps=round(settings.warmup * steps),
                weight_decay=settings.weight_decay,
                max_grad_norm=settings.clip,
                seed=settings.seed,
            ),
            train_dataset=train,
            data_collator=collator,
        )
        trainer.train()
        return Score(
            accuracy=_accuracy(trainer, test),
            validation=_accuracy(trainer, validation),
            examples=len(test),
            chance=float(np.bincount([one["labels"] for one in test]).max() / len(test)),
        )


def classifier(
    pretraining: Pretraining, folder: AnyPath | None, classes: int, seed: int
) -> PreTrainedModel:
    """Build a classifier with the pretrained or a new trunk, and a head drawn from `seed`."""
    if folder is None:
        return pretraining.model("classification", classes)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is new and has to be trained")
        model: PreTrainedModel = HessblocksForSequenceClassification.from_pretrained(
            folder, num_labels=classes, local_files_only=True
        )
    return model


def encoded(examples: Sequence[LabelledText], tokenizer: Any, context: int) -> list[dict[str, Any]]:
    """Encode texts as token ids with labels; texts are cut at `context` tokens."""
    texts = tokenizer([e.text for e in examples], truncation=True, max_length=context)
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": example.label}
        for ids, mask, example in zip(
            texts["input_ids"], texts["attention_mask"], examples, strict=True
        )
    ]


def _accuracy(trainer: GuardedTrainer, examples: list[dict[str, Any]]) -> float | None:
    """Compute the accuracy without the Trainer's metrics, which would hide non-finite outputs."""
    trainer.args.prediction_loss_only = False
    found: Any = trainer.predict(cast(Any, examples))
    logits, labels = found.predictions, found.label_ids
    finite = bool(np.isfinite(logits).all()) and trainer.divergence is None
    return float((logits.argmax(axis=-1) == labels).mean()) if finite else None
