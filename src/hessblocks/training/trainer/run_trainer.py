"""The Trainer of a run, set up so that it can stop and go on without changing a digit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sized
from typing import Any, cast

import numpy as np
from torch.utils.data import Dataset, Sampler, Subset
from transformers import PreTrainedModel, TrainingArguments

from hessblocks.conventions import AnyPath
from hessblocks.data import Corpus, Example, Windows
from hessblocks.settings import RunSettings
from hessblocks.training import ranks
from hessblocks.training.trainer.guarded import GuardedTrainer, quiet_arguments


class ShuffledPasses(Sampler[int]):
    """`count` indices: one shuffled pass over the data after another, each in its own order.

    A function of seed and position alone, so that it can go on anywhere.
    """

    def __init__(self, data: Sized, count: int, seed: int) -> None:
        self.size = len(data)
        self.count = count
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        passes = (
            np.random.default_rng([self.seed, index]).permutation(self.size).tolist()
            for index in itertools.count()
        )
        return itertools.islice(itertools.chain.from_iterable(passes), self.count)


class RunTrainer(GuardedTrainer):
    """A Trainer whose order of data depends on seed and step alone."""

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int]:
        windows = cast(Windows, self.train_dataset)
        arguments = self.args
        each = arguments.train_batch_size * arguments.gradient_accumulation_steps
        count = arguments.max_steps * each * ranks.count()
        return ShuffledPasses(windows, count, arguments.seed)


def make_trainer(
    model: PreTrainedModel, settings: RunSettings, corpus: Corpus, folder: AnyPath
) -> RunTrainer:
    """A trainer that is ready to train, with a recorder or without.

    Args:
        model: freshly initialised.
        settings: of the run.
        corpus: what to train on and what to hold out.
        folder: of the checkpoints.

    Returns:
        The trainer.

    Raises:
        ArgumentError: the corpus is smaller than one window, or an update cannot be shared out evenly.
    """
    windows = held_out(corpus, settings)
    trainer = RunTrainer(
        model=model,
        args=run_arguments(settings, folder, len(windows)),
        train_dataset=corpus.windows("train", settings.model.context),
        eval_dataset=windows,
    )
    trainer.model_accepts_loss_kwargs = False  # mean over the batch's own predictions
    model.config.use_cache = True  # the Trainer turns it off, also in the model that is saved
    return trainer


def held_out(corpus: Corpus, settings: RunSettings) -> Subset[Example]:
    """The windows of each validation loss, spread evenly over the split.

    Args:
        corpus: that is held out from.
        settings: of the run.

    Returns:
        At most as many windows as the settings ask for.

    Raises:
        ArgumentError: the split is smaller than one window.
    """
    validation = corpus.windows("validation", settings.model.context)
    return Subset(validation, spread(len(validation), settings.training.evaluation_sequences))


def spread(size: int, count: int) -> list[int]:
    """`count` indices spread evenly over `size` (all of them where there are fewer)."""
    count = min(size, count)
    return [index * size // count for index in range(count)]


def run_arguments(
    settings: RunSettings, folder: AnyPath, sequences: int, **more: Any
) -> TrainingArguments:
    """The settings of a run in the words of `transformers`.

    Args:
        settings: of the run.
        folder: of the checkpoints.
        sequences: of each validation loss.
        **more: further fields of `transformers.TrainingArguments`.

    Returns:
        Arguments for a `GuardedTrainer`.

    Raises:
        ArgumentError: an update cannot be shared out evenly.
    """
    training = settings.training
    each = training.sequences_each(ranks.count())
    return quiet_arguments(
        folder,
        settings.device,
        report_to=settings.report_to,
        run_name=f"{settings.preset}, seed {settings.seed}",
        max_steps=training.steps,
        per_device_train_batch_size=each,
        per_device_eval_batch_size=_evaluation_batch(sequences, each),
        seed=settings.seed,
        **training.trainer_arguments(),
        **more,
    )


def _evaluation_batch(sequences: int, most: int) -> int:
    """Sequences of a pass, such that several processes have equally many and none twice."""
    if ranks.count() == 1:
        return most
    shares = [size for size in range(most, 0, -1) if sequences % (size * ranks.count()) == 0]
    return shares[0] if shares else 1
