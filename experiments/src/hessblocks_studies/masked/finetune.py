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
    """Settings of fine-tuning a classifier: AdamW, linear warm-up and decay."""

    epochs: int
    """Passes over the training examples."""
    batch_size: int
    """Examples of each update."""
    learning_rate: float
    """Peak learning rate."""
    examples: int | None = None
    """Most training examples; None means all."""
    seed: int = 0
    """Seed of the head and of the order of the examples."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate grows from 0."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices and embeddings; gains and norms have none."""
    clip: float = 0.5
    """Largest norm of the gradient."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of a classifier on held-out examples."""

    accuracy: float | None
    """Share of right answers to the test split; None where an answer is not a number."""
    validation: float | None
    """The same of the validation split, by which a learning rate may be chosen."""
    examples: int
    """Answers to the test split."""
    chance: float
    """Share of the commonest class among them."""


def finetune(
    pretraining: Pretraining,
    folder: AnyPath | None,
    corpus: Corpus,
    task: Task,
    settings: Finetuning,
) -> Score:
    """Train a classifier and score it on what it has not seen.

    Args:
        pretraining: pretraining of the model.
        folder: with the pretrained weights; None starts from random ones.
        corpus: whose encoding the model knows.
        task: texts and labels.
        settings: how.

    Returns:
        The score on the test split, and on the validation split.
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
    """The pretrained trunk, or a fresh one, with a head drawn from `seed`."""
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
    """Token ids and labels; texts are cut at `context` tokens."""
    texts = tokenizer([e.text for e in examples], truncation=True, max_length=context)
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": example.label}
        for ids, mask, example in zip(
            texts["input_ids"], texts["attention_mask"], examples, strict=True
        )
    ]


def _accuracy(trainer: GuardedTrainer, examples: list[dict[str, Any]]) -> float | None:
    """Answers without the Trainer's own metrics, which would hide what is not a number."""
    trainer.args.prediction_loss_only = False
    found: Any = trainer.predict(cast(Any, examples))
    logits, labels = found.predictions, found.label_ids
    finite = bool(np.isfinite(logits).all()) and trainer.divergence is None
    return float((logits.argmax(axis=-1) == labels).mean()) if finite else None
