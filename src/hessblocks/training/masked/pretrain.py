"""Masked-LM pretraining, kept in the cache so that every study and task shares one model."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch.utils.data import Subset
from transformers import (
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from hessblocks._version import __version__
from hessblocks.data import Corpus, cached
from hessblocks.quiet import quiet
from hessblocks.training.masked.masked_settings import Pretraining, tokenizer_of
from hessblocks.training.trainer import PlainTrainer, arguments, spread

PRETRAINING_VERSION = 1
"""Raised whenever equal settings give other weights."""
BETAS, EPSILON, CLIP = (0.9, 0.98), 1e-12, 0.5


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A pretrained model on disk."""

    folder: Path
    """As `save_pretrained` writes it."""
    losses: tuple[tuple[int, float | None], ...]
    """(step, validation loss in nats per masked token); None where it is not a number."""

    @property
    def diverged(self) -> bool:
        """Whether the loss is no longer a number."""
        return self.losses[-1][1] is None


def pretrained(settings: Pretraining, corpus: Corpus) -> Pretrained:
    """The model that these settings give: trained once, then taken from the cache.

    Args:
        settings: of model and training.
        corpus: as `settings.data` names it, with `settings.vocab_size` entries at most.

    Raises:
        ArgumentError: sizes that do not fit, or too little text.
        RunError: the cache cannot be written.

    Cost:
        The training; on disk four bytes a parameter.
    """
    corpus.windows("train", settings.context)  # refuses too little text before anything is made
    key = {
        "settings": asdict(settings),
        "data": corpus.fingerprint,
        "hessblocks": f"{__version__}, pretraining {PRETRAINING_VERSION}",
        "torch": torch.__version__,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    entry = cached(
        f"pretrained-{settings.preset}-{digest}",
        key,
        lambda folder: _pretrain(settings, corpus, folder),
    )
    losses = [(step, loss) for step, loss in entry.manifest["contents"]["losses"]]
    return Pretrained(folder=entry.folder, losses=tuple(losses))


class _Losses(TrainerCallback):
    """Keeps validation losses; ends a run that diverged."""

    trainer: PlainTrainer
    """Whose callback this is; set before training."""

    def __init__(self) -> None:
        self.found: list[tuple[int, float | None]] = []

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        loss = given["metrics"]["eval_loss"]
        finite = math.isfinite(loss)
        self.found.append((state.global_step, loss if finite else None))
        control.should_training_stop = control.should_training_stop or not finite

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """An update that could not be made counts as a loss that is no number."""
        if self.trainer.divergence:
            self.found.append((self.trainer.divergence.step, None))


def _pretrain(settings: Pretraining, corpus: Corpus, folder: Path) -> Mapping[str, Any]:
    """Train and save; returns what the cache remembers."""
    losses = _Losses()
    with quiet(), tempfile.TemporaryDirectory() as unused:
        model = settings.model()
        losses.trainer = _trainer(model, settings, corpus, unused, losses)
        losses.trainer.train()
        model.save_pretrained(folder)
    return {"losses": losses.found}


def _trainer(
    model: PreTrainedModel, settings: Pretraining, corpus: Corpus, unused: str, losses: _Losses
) -> PlainTrainer:
    collator = DataCollatorForLanguageModeling(
        tokenizer_of(corpus, settings.context), mlm_probability=settings.mask_share
    )
    validation = corpus.windows("validation", settings.context)
    held_out = Subset(validation, spread(len(validation), settings.evaluation_sequences))
    return PlainTrainer(
        model=model,
        args=arguments(
            unused,
            max_steps=settings.steps,
            per_device_train_batch_size=settings.batch_size,
            per_device_eval_batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            warmup_steps=round(settings.warmup * settings.steps),
            weight_decay=settings.weight_decay,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            adam_epsilon=EPSILON,
            max_grad_norm=CLIP,
            seed=settings.seed,
            eval_strategy="steps",
            eval_steps=settings.evaluate_every,
            eval_on_start=True,
            prediction_loss_only=True,
        ),
        train_dataset=corpus.windows("train", settings.context),
        eval_dataset=masked_once(held_out, collator),
        data_collator=lambda examples: collator([{"input_ids": e["input_ids"]} for e in examples]),
        callbacks=[losses],
    )


def _each(windows: Subset[dict[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
    return (windows[place] for place in range(len(windows)))


def masked_once(
    windows: Subset[dict[str, Int[torch.Tensor, " tokens"]]],
    collator: DataCollatorForLanguageModeling,
) -> list[dict[str, Int[torch.Tensor, " tokens"]]]:
    """Held-out windows under masks that are the same for every block, seed and step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        masked = collator([{"input_ids": w["input_ids"]} for w in _each(windows)])
    return [
        {"input_ids": tokens, "labels": labels}
        for tokens, labels in zip(masked["input_ids"], masked["labels"], strict=True)
    ]
