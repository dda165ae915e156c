"""Carrying out an order: the same in every process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from transformers import PreTrainedModel, TrainerCallback

from hessblocks.data import Corpus
from hessblocks.progress import Progress
from hessblocks.quiet import quiet
from hessblocks.settings import RunSettings, SharedSettings
from hessblocks.training import processes
from hessblocks.training.folder import RunFolder, progress_of
from hessblocks.training.preparation import build_model, check
from hessblocks.training.trainer import (
    Observer,
    Recorder,
    make_trainer,
    start_counting,
    step_seconds,
)


@contextmanager
def together(settings: SharedSettings, presets: Iterable[str], corpus: Corpus) -> Iterator[bool]:
    """Meet the other processes; yields whether this one decides. The others work inside until sent home.

    Args:
        settings: of all runs, refused here before anything is written.
        presets: names of the blocks that are trained.
        corpus: the same in every process.

    Raises:
        ArgumentError: sizes that do not fit, too little data, or updates that cannot be shared out.
    """
    check(settings, presets, corpus)
    settings.training.sequences_each(processes.asked_for())
    processes.join(settings.device)
    if not processes.is_first():
        while order := hear():
            if order.kind == "pace":
                step_seconds(order.settings, corpus)
            else:
                carry_out(order, corpus, Progress())
        yield False
        return
    yield True
    give(None)  # not after an error: this process then ends, and torchrun ends the others


def carry_out(order: Order, corpus: Corpus, progress: Progress) -> tuple[PreTrainedModel, Recorder]:
    """Train the run of an order.

    Returns:
        The trained model, and what recorded its training.
    """
    settings = order.settings
    folder = RunFolder(order.folder)
    done: dict[str, Any] = progress_of(order.checkpoint) if order.checkpoint else {}
    recorder = Recorder(settings, folder, progress, done)
    callbacks: list[TrainerCallback] = [recorder]
    if settings.observation.any:
        callbacks.append(Observer(recorder, corpus))
    model = build_model(settings.model, settings.preset, corpus.vocab_size, settings.seed)
    trainer = recorder.trainer = make_trainer(
        model,
        settings,
        corpus,
        folder.checkpoints,
        callbacks,
        resumed=order.checkpoint is not None,
    )
    sequences = settings.training.sequences_each(processes.count())
    recorder.peak = max(recorder.peak, start_counting(model, settings, sequences))
    with quiet():
        trainer.train(resume_from_checkpoint=str(order.checkpoint) if order.checkpoint else None)
    return model, recorder


@dataclass(frozen=True, kw_only=True)
class Order:
    """What all processes do together."""

    kind: Literal["train", "pace"]
    """Train a run, or measure the time of a step."""
    settings: RunSettings
    """Of the run."""
    folder: Path
    """Run folder."""
    checkpoint: Path | None = None
    """Where training goes on from; None means from the start."""


def give(order: Order | None) -> None:
    """Tell the others what to do; None sends them home."""
    if processes.count() > 1:
        dist.broadcast_object_list([order], src=0)


def hear() -> Order | None:
    """What the first process wants done; None where there is nothing more."""
    heard: list[Order | None] = [None]
    dist.broadcast_object_list(heard, src=0)
    return heard[0]
