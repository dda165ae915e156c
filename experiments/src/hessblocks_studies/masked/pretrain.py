"""Masked-LM pretraining, kept in the cache so that every study and task shares one model."""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from transformers import DataCollatorForLanguageModeling, default_data_collator

from hessblocks import __version__, training
from hessblocks.data import Corpus, Example, cached
from hessblocks.quiet import quiet
from hessblocks.settings import RunSettings
from hessblocks_studies.data import run_of_size
from hessblocks_studies.masked.masked_settings import Pretraining, tokenizer_of
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
    return masked_once(training.held_out(corpus, _run(settings)), _masks(settings, corpus))


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


def _masks(settings: Pretraining, corpus: Corpus) -> DataCollatorForLanguageModeling:
    return DataCollatorForLanguageModeling(
        tokenizer_of(corpus, settings.context), mlm_probability=settings.mask_share
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
            data_collator=partial(masked, _masks(settings, corpus)),
        )
        training.Recorder(run, listener=note).record(trainer)
        model.save_pretrained(folder)
    return {"losses": losses}


class MaskedTrainer(training.GuardedTrainer):
    """A Trainer that masks training windows; held-out windows are masked beforehand."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of the held-out windows, in order."""
        data: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        size = self.args.per_device_eval_batch_size
        return DataLoader(data, batch_size=size, collate_fn=default_data_collator)


def masked(masks: DataCollatorForLanguageModeling, examples: Iterable[Example]) -> Any:
    """Put windows together, some of their tokens masked."""
    return masks([{"input_ids": example["input_ids"]} for example in examples])


def masked_once(
    windows: Subset[dict[str, Int[Tensor, " tokens"]]],
    masks: DataCollatorForLanguageModeling,
) -> list[dict[str, Int[Tensor, " tokens"]]]:
    """Mask held-out windows alike for every block, seed and step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        every = masked(masks, (windows[place] for place in range(len(windows))))
    return [
        {"input_ids": tokens, "labels": labels}
        for tokens, labels in zip(every["input_ids"], every["labels"], strict=True)
    ]
