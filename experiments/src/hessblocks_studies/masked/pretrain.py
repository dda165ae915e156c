"""Masked-LM pretraining, kept in the cache so that every study and task shares one model.

While it is under way its losses and checkpoints lie in a run folder beside its place in the cache, so
that a pretraining that was stopped goes on and ends with the digits of an undisturbed one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from transformers import DataCollatorForLanguageModeling, default_data_collator

from hessblocks import __version__, training
from hessblocks.data import Corpus, Example, cache_root, cached
from hessblocks.quiet import quiet
from hessblocks.settings import RunSettings
from hessblocks.storage import read_lines, write_json
from hessblocks_studies.data import run_of_size
from hessblocks_studies.masked.masked_settings import Pretraining, tokenizer_of
from hessblocks_studies.shared import validation_loss

PRETRAINING_VERSION = 2
"""Raised whenever equal settings give other weights."""
STATES = "masks.pt"
"""Random states in a checkpoint."""
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

    Returns:
        Where the model is, and the losses of its training.

    Raises:
        ArgumentError: sizes that do not fit, or too little text.
        RunError: the cache cannot be written.

    Cost:
        The training; on disk four bytes a parameter, and three times as many for each of two
        checkpoints while it is under way.
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
    work = training.RunFolder(cache_root() / f".{name}.training")

    def build(folder: Path) -> Mapping[str, Any]:
        write_json(work.config, key)
        return _pretrain(settings, corpus, work, folder)

    entry = cached(name, key, build)
    shutil.rmtree(work.path, ignore_errors=True)
    losses = [(step, loss) for step, loss in entry.manifest["contents"]["losses"]]
    return Pretrained(folder=entry.folder, losses=tuple(losses))


def held_out_masked(
    settings: Pretraining, corpus: Corpus
) -> list[dict[str, Int[Tensor, " tokens"]]]:
    """The held-out windows of each validation loss, masked.

    Args:
        settings: of the pretraining.
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
        checkpoint_every=settings.evaluate_every,
    )


def _masks(settings: Pretraining, corpus: Corpus) -> DataCollatorForLanguageModeling:
    return DataCollatorForLanguageModeling(
        tokenizer_of(corpus, settings.context), mlm_probability=settings.mask_share
    )


def _pretrain(
    settings: Pretraining, corpus: Corpus, work: training.RunFolder, folder: Path
) -> Mapping[str, Any]:
    """Train, or go on in the folder of the work, and save; returns what the cache remembers."""
    run, masks = _run(settings), _masks(settings, corpus)
    checkpoint = training.continued(work, f"{settings.preset}, seed {settings.seed}")
    windows = held_out_masked(settings, corpus)
    with quiet():
        model = settings.model()
        trainer = MaskedTrainer(
            model=model,
            args=training.run_arguments(run, work.checkpoints, len(windows), adam_epsilon=EPSILON),
            train_dataset=corpus.windows("train", settings.context),
            eval_dataset=windows,
            masks=masks,
            checkpoint=checkpoint,
        )
        training.Recorder(run, work, checkpoint=checkpoint).record(trainer)
        model.save_pretrained(folder)
    losses = [validation_loss(line) for line in read_lines(work.metrics)]
    return {"losses": [found for found in losses if found]}


class MaskedTrainer(training.GuardedTrainer):
    """A Trainer that draws masks from torch's random state, and draws the same again after a stop.

    The loader asks for the next batch before it hands one out: at a checkpoint one batch too many is
    masked. So the random states before and after the last batch are kept with it.

    Args:
        masks: puts training examples together; held-out windows are masked beforehand.
        checkpoint: where training goes on from.
        **given: as `transformers.Trainer` takes them.
    """

    def __init__(
        self, *, masks: DataCollatorForLanguageModeling, checkpoint: Path | None, **given: Any
    ) -> None:
        super().__init__(data_collator=self._masked, **given)
        self._masks = masks
        self._before = torch.get_rng_state()
        self._again: dict[str, Tensor] | None = None
        """Random states of the batch that is to be masked again."""
        if checkpoint:
            self._again = torch.load(checkpoint / STATES, weights_only=True)

    def _masked(self, examples: Iterable[Example]) -> Any:
        again, self._again = self._again, None
        if again:
            torch.set_rng_state(again["before"])
        self._before = torch.get_rng_state()
        batch = self._masks([{"input_ids": example["input_ids"]} for example in examples])
        if again:
            torch.set_rng_state(again["after"])
        return batch

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of the held-out windows, in order."""
        data: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        size = self.args.per_device_eval_batch_size
        return DataLoader(data, batch_size=size, collate_fn=default_data_collator)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        states = {"before": self._before, "after": torch.get_rng_state()}
        torch.save(states, Path(output_dir, STATES))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """In the midst of a pass over the data, masking the last batch again has set torch's state."""
        drawn = None if self._again else torch.get_rng_state()
        self._again = None  # where a new pass begins, no batch was masked too many
        super()._load_rng_state(checkpoint)
        if drawn is not None:
            torch.set_rng_state(drawn)


def masked_once(
    windows: Subset[dict[str, Int[Tensor, " tokens"]]],
    collator: DataCollatorForLanguageModeling,
) -> list[dict[str, Int[Tensor, " tokens"]]]:
    """Held-out windows under masks that are the same for every block, seed and step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        masked = collator([{"input_ids": windows[i]["input_ids"]} for i in range(len(windows))])
    return [
        {"input_ids": tokens, "labels": labels}
        for tokens, labels in zip(masked["input_ids"], masked["labels"], strict=True)
    ]
