"""Carry out an order of training: the same in every process."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel
from transformers.modeling_utils import local_torch_dtype

from hessblocks.data import Corpus
from hessblocks.progress import Progress
from hessblocks.settings import RunSettings, SharedSettings
from hessblocks.training import ranks
from hessblocks.training.cost import start_counting
from hessblocks.training.folder import RunFolder
from hessblocks.training.following import Observer
from hessblocks.training.preparation import build_model, check, closed_tracker
from hessblocks.training.recorder import Recorder
from hessblocks.training.trainer import make_trainer

Order = Callable[[Corpus], object]
"""Task for all processes together, made of module-level functions so that it can be pickled."""


class DivergenceWarning(UserWarning):
    """A loss or a gradient is no longer a number; the run ends there."""


@contextmanager
def together(settings: SharedSettings, presets: Iterable[str], corpus: Corpus) -> Iterator[bool]:
    """Meet the other processes, and yield whether this one decides.

    The others work inside until sent home.

    Args:
        settings: settings of all runs, refused here before anything is written.
        presets: names of the blocks that are trained.
        corpus: the same in every process.

    Raises:
        ArgumentError: sizes that do not fit, too little data, or updates that cannot be shared out.
        RunError: another process has ended.
    """
    check(settings, presets, corpus)
    settings.training.sequences_each(ranks.asked_for())
    ranks.join(settings.device)
    with ranks.beating():
        if not ranks.is_first():
            while order := agree():
                order(corpus)
            yield False
            return
        yield True
        agree(None)  # not after an error: this process then ends, and with it the others


@local_torch_dtype(torch.float32)
def carry_out(
    settings: RunSettings,
    folder: RunFolder,
    checkpoint: Path | None,
    corpus: Corpus,
    progress: Progress | None = None,
) -> tuple[PreTrainedModel, Recorder]:
    """Train a run; from the start where there is no checkpoint.

    Returns:
        The trained model, and what recorded its training.
    """

    def show(line: dict[str, Any]) -> None:
        if progress and line["split"] == "train":
            progress.step(line["step"], line["loss"])

    recorder = Recorder(settings, folder, checkpoint=checkpoint, listener=show)
    observers = [Observer(recorder, folder, corpus)] if settings.observation.any else []
    model = build_model(settings.model, settings.preset, corpus.vocab_size, settings.seed)
    trainer = make_trainer(model, settings, corpus, folder.checkpoints)
    sequences = settings.training.sequences_each(ranks.count())
    recorder.peak = max(recorder.peak, start_counting(model, settings, sequences))
    with closed_tracker(settings.report_to):
        recorder.record(trainer, *observers)
    if recorder.divergence and ranks.is_first():
        found = recorder.divergence
        warnings.warn(
            f"{settings.preset}, seed {settings.seed}: diverged at step {found.step}: the "
            f"{found.words} {found.verb} not finite; the run ends there and its numbers are kept. "
            f"Try a lower --learning-rate than {settings.training.learning_rate:g}.",
            DivergenceWarning,
            stacklevel=2,
        )
    return model, recorder


def agree(order: Order | None = None) -> Order | None:
    """Send the other processes a task, None to end; they receive it by the same call."""
    heard = [order]
    if ranks.count() > 1:
        dist.broadcast_object_list(heard, src=0)
    return heard[0]
