"""Observe a run: lines of observations.jsonl along training, and maps for results.csv.

An observer looks at the model between two updates and changes nothing of it: an observed run has
the digits of one that is not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerState

from hessblocks import curvature, signal
from hessblocks.data import Corpus, Example
from hessblocks.settings import CurvatureSettings, ObservationSettings, RunSettings, is_due
from hessblocks.storage import ResultRow, append_line
from hessblocks.training import ranks
from hessblocks.training.folder import RunFolder
from hessblocks.training.recorder import Line, Recorder
from hessblocks.training.trained_gains import gain_values


class Observer(TrainerCallback):
    """Callback that measures what is due; of several ranks the first does, the others wait."""

    def __init__(self, recorder: Recorder, folder: RunFolder, corpus: Corpus) -> None:
        """Observe a run whose recorder stands before this callback and has stopped the clock."""
        self.recorder = recorder
        self.folder = folder
        self.corpus = corpus
        self.wanted = recorder.settings.observation
        self.last = recorder.settings.training.steps

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **given: Any) -> None:
        """Look at the model before the first step."""
        if state.global_step == 0:
            self._observe(0, given["model"])

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **given: Any) -> None:
        """Look at the model after a step."""
        if not self.recorder.divergence:
            self._observe(state.global_step, given["model"])

    def _observe(self, step: int, model: nn.Module) -> None:
        if ranks.is_first():
            with measuring(model):
                for line in self._lines(step, model):
                    append_line(self.folder.observations, self.recorder.common(step) | line)

    def _lines(self, step: int, model: nn.Module) -> Iterator[Line]:
        if is_due(self.wanted.gains_every, step, self.last):
            yield from gain_values(model)
        if is_due(self.wanted.signal_every, step, self.last):
            yield from _signal(model, self._batch())
        if is_due(self.wanted.curvature_every, step, self.last):
            yield from _curvature(model, self._batch(), self.wanted)

    def _batch(self) -> Example:
        sample = self.wanted.sample
        return self.corpus.curvature_batch(sample.sequences, sample.tokens, sample.seed)


def _signal(model: nn.Module, batch: Example) -> Iterator[Line]:
    """What `hessblocks.signal` measures, without Jacobians: one pass forward and backward."""
    for row in signal.propagate(model, batch, jacobian_steps=0).to_rows():
        layer = None if row["layer"] == "" else row["layer"]
        yield {name: row[name] for name in ("quantity", "role", "value")} | {"layer": layer}


def _curvature(model: nn.Module, batch: Example, wanted: ObservationSettings) -> Iterator[Line]:
    """Norms of the chosen groups, with the loss on the same batch: a gradient a probe and group."""
    groups = {
        name: group
        for name, group in curvature.parameter_groups(model).items()
        if wanted.chooses(name, group.role)
    }
    problem = curvature.Problem(model, batch, loss="causal-lm")
    sample = wanted.sample
    norms = curvature.group_norms(problem, groups, probes=sample.probes, seed=sample.seed)
    loss = problem.value()
    yield {"quantity": "batch_loss", "layer": None, "value": loss}
    yield from (norm | {"batch_loss": loss} for norm in curvature.norm_rows(groups, norms))


def map_rows(
    model: nn.Module,
    settings: RunSettings,
    sample: CurvatureSettings,
    corpus: Corpus,
    stage: str,
) -> list[ResultRow]:
    """Frobenius norms of H_o, H_f and H of every parameter group on the fixed held-out batch.

    Args:
        model: at the stage's weights.
        settings: of the run.
        sample: batch and probes.
        corpus: where the held-out batch comes from.
        stage: initial or final.

    Returns:
        One row a group and part.

    Cost:
        About a gradient of the batch for each probe and group.
    """
    model.to(torch.device(settings.device))
    batch = corpus.curvature_batch(sample.sequences, sample.tokens, sample.seed)
    groups = curvature.parameter_groups(model)
    with measuring(model):
        problem = curvature.Problem(model, batch, loss="causal-lm")
        found = curvature.group_norms(problem, groups, probes=sample.probes, seed=sample.seed)
    of: dict[str, Any] = {"preset": settings.preset, "seed": settings.seed, "stage": stage}
    return [ResultRow(**of, **norm) for norm in curvature.norm_rows(groups, found)]


@contextmanager
def measuring(model: Any) -> Iterator[None]:
    """Measure a model in its own precision; bf16 training wraps its forward pass.

    That fused attention is set aside goes without saying.
    """
    wrapped = model.__dict__.get("forward")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():  # the CPU draws all
        warnings.simplefilter("ignore", curvature.AttentionBackendWarning)
        if wrapped is not None:
            model.forward = model.__dict__["_original_forward"]
        try:
            yield
        finally:
            if wrapped is not None:
                model.forward = wrapped
