"""Masked-LM pretraining, kept in the cache so that every study and task shares one model."""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import default_data_collator

from hessblocks import __version__, training
from hessblocks.data import Corpus, cached
from hessblocks.quiet import quiet
from hessblocks.settings import RunSettings
from hessblocks_studies.data import run_of_size
from hessblocks_studies.masked.masked_settings import Pretraining
from hessblocks_studies.shared import validation_loss

PRETRAINING_VERSION = 2
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
        settings: settings of model and training.
        corpus: as `settings.data` names it, with `settings.vocab_size` entries at most.

    Returns:
        Where the model is, and the losses of its training.

    Raises:
        ArgumentError: sizes that do not fit, or too little text.
        RunError: the cache cannot be written.

    Cost:
        The training, which one that is stopped begins anew; on disk four bytes per parameter.
    """
    corpus.windows("train", settings.context)  # refuses too little text before anything is made
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
    losses = [(step, loss) for step, loss in entry.manifest["contents"]["losses"]]
    return Pretrained(folder=entry.folder, losses=tuple(losses))


def held_out_masked(
    settings: Pretraining, corpus: Corpus
) -> list[dict[str, Int[Tensor, " tokens"]]]:
    """The held-out windows of each validation loss, masked.

    Args:
        settings: settings of the pretraining.
        corpus: with a token for what is masked.

    Returns:
        The tokens as the model sees them, and as labels those that it is asked for; −100 elsewhere.

    Raises:
        ArgumentError: the split is smaller than one window.
    """
    masks = training.masking(corpus, settings.context, settings.mask_share)
    return training.masked_once(training.held_out(corpus, _run(settings)), masks)


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
    """Train and save; returns what the cache remembers."""
    run, windows = _run(settings), held_out_masked(settings, corpus)
    losses: list[tuple[int, float | None]] = []

    def note(line: Mapping[str, Any]) -> None:
        if found := validation_loss(line):
            losses.append(found)

    with quiet(), tempfile.TemporaryDirectory() as unused:
        model = settings.model()
        arguments = training.run_arguments(run, Path(unused), len(windows), adam_epsilon=EPSILON)
        trainer = MaskedTrainer(
            model=model,
            args=arguments,
            train_dataset=corpus.windows("train", settings.context),
            eval_dataset=windows,
            data_collator=training.masking(corpus, settings.context, settings.mask_share),
        )
        training.Recorder(run, listener=note).record(trainer)
        model.save_pretrained(folder)
    return {"losses": losses}


class MaskedTrainer(training.GuardedTrainer):
    """Trainer that masks training windows; held-out windows are masked beforehand."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Put the held-out windows together as they are."""
        own, self.data_collator = self.data_collator, default_data_collator
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = own
