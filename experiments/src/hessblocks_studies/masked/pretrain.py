"""Pretrain masked language models and cache them, so that studies and tasks share one model."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, default_data_collator

from hessblocks import __version__, training
from hessblocks.data import Corpus, cached
from hessblocks.quiet import quiet
from hessblocks.settings import RunSettings
from hessblocks_studies.data import run_of_size
from hessblocks_studies.masked.masked_settings import Pretraining
from hessblocks_studies.shared import validation_loss

PRETRAINING_VERSION = 2
"""Version of the cache; increased whenever equal settings give other weights."""
BETAS, EPSILON, CLIP = (0.9, 0.98), 1e-12, 0.5


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A pretrained model on disk."""

    folder: Path
    """Folder in the format of `save_pretrained`."""
    losses: tuple[tuple[int, float | None], ...]
    """(step, validation loss in nats per masked token); the loss is None if it is not finite."""

    @property
    def diverged(self) -> bool:
        """Whether the last loss is not finite."""
        return self.losses[-1][1] is None


def pretrained(settings: Pretraining, corpus: Corpus) -> Pretrained:
    """Return the model of these settings: trained once, then loaded from the cache.

    Args:
        settings: settings of model and training.
        corpus: corpus with the name `settings.data` and at most `settings.vocab_size` entries.

    Returns:
        Folder of the model, and the losses of its training.

    Raises:
        ArgumentError: sizes that do not fit, or too little text.
        RunError: the cache cannot be written.

    Cost:
        The training, which starts again if it was stopped; four bytes per parameter on disk.
    """
    corpus.windows("train", settings.context)  # raises an error for too little text before training
    key = {
        "settings": {**asdict(settings), "slots": [*settings.slots]},
        "data": corpus.fingerprint,
        "hessblocks": f"{__version__}, pretraining {PRETRAINING_VERSION}",
        "torch": torch.__version__,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    name = f"pretrained-{settings.preset}-{digest}"
    entry = cached(name, key, partial(_pretrain, settings, corpus))
    losses = [(step, loss) for step, loss in entry.manifest["progress"]["contents"]["losses"]]
    return Pretrained(folder=entry.folder, losses=tuple(losses))


def held_out_masked(
    settings: Pretraining, corpus: Corpus
) -> list[dict[str, Int[Tensor, " tokens"]]]:
    """Mask the held-out windows for validation losses.

    Args:
        settings: settings of the pretraining.
        corpus: corpus with a mask token.

    Returns:
        The model's input tokens, and as labels the masked tokens; −100 at other positions.

    Raises:
        ArgumentError: the split is smaller than one window.
    """
    masks, windows = masking(settings, corpus), training.held_out(corpus, _run(settings))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same masks for every block, seed and step
        every = masks([windows[index] for index in range(len(windows))])
    return [
        {"input_ids": tokens, "labels": labels}
        for tokens, labels in zip(every["input_ids"], every["labels"], strict=True)
    ]


def masking(settings: Pretraining, corpus: Corpus) -> Callable[[list[Any]], dict[str, Any]]:
    """Make the collator of a masked language model.

    Of the tokens to predict, 80 % are masked, 10 % replaced by a random token and 10 % left as they
    are (Devlin et al., 2019).

    Returns:
        A function from windows to a batch, which draws masks from torch's random state.
    """
    tokenizer = training.tokenizer_of(corpus, settings.context)
    masks = DataCollatorForLanguageModeling(tokenizer, mlm_probability=settings.mask_share)
    return lambda examples: masks([{"input_ids": example["input_ids"]} for example in examples])


def _run(settings: Pretraining) -> RunSettings:
    return run_of_size(
        settings,
        settings.preset,
        settings.seed,
        betas=BETAS,
        clip=CLIP,
        bf16=torch.cuda.is_available(),
        log_every=settings.evaluate_every,
    )


def _pretrain(settings: Pretraining, corpus: Corpus, folder: Path) -> Mapping[str, Any]:
    """Train and save the model; return the data for the cache."""
    run, windows = _run(settings), held_out_masked(settings, corpus)
    losses: list[tuple[int, float | None]] = []

    def note(line: Mapping[str, Any]) -> None:
        if step_and_loss := validation_loss(line):
            losses.append(step_and_loss)

    with quiet(), tempfile.TemporaryDirectory() as unused:
        model = settings.model()
        arguments = training.run_arguments(run, Path(unused), adam_epsilon=EPSILON)
        trainer = MaskedTrainer(
            model=model,
            args=arguments,
            train_dataset=corpus.windows("train", settings.context),
            eval_dataset=windows,
            data_collator=masking(settings, corpus),
        )
        training.Recorder(run, listener=note).record(trainer)
        model.save_pretrained(folder)
    return {"losses": losses}


class MaskedTrainer(training.GuardedTrainer):
    """Trainer that masks training windows; held-out windows are masked beforehand."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Collate the held-out windows without masking them again."""
        masks, self.data_collator = self.data_collator, default_data_collator
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = masks
