"""One run: initial curvature, training, final curvature; each step recorded once and never redone."""

from __future__ import annotations

import math
import shutil
import statistics
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from hessblocks.curvature import parameter_groups
from hessblocks.data import Corpus
from hessblocks.data.tokens import END_OF_TEXT
from hessblocks.errors import RunError
from hessblocks.files import atomic_folder
from hessblocks.training import metrics
from hessblocks.training.callbacks import Recorder
from hessblocks.training.checkpoints import (
    CheckpointWarning,
    is_whole,
    newest_whole,
    progress_of,
    seal,
    step_of,
    writing,
)
from hessblocks.training.curvature import curvature_rows
from hessblocks.training.folder import RunFolder, claimed
from hessblocks.training.memory import reset_peak
from hessblocks.training.progress import Progress
from hessblocks.training.quiet import quiet
from hessblocks.training.results import (
    STEPS,
    Row,
    is_trained,
    read_rows,
    steps_done,
    write_rows,
)
from hessblocks.training.results import step_of as step_of_row
from hessblocks.training.settings import CurvatureSettings, RunSettings
from hessblocks.training.trainer import make_trainer


class DamageWarning(UserWarning):
    """A finished run has lost some of its files or rows."""


class Run:
    """A run in its folder; `complete` does what is not done yet."""

    def __init__(
        self, settings: RunSettings, corpus: Corpus, folder: RunFolder, progress: Progress
    ) -> None:
        """Take in settings and what the (prepared) folder already holds.

        Raises:
            RunError: results.csv is damaged.
        """
        self.settings = settings
        self.corpus = corpus
        self.folder = folder
        self.progress = progress
        self.rows: list[Row] = read_rows(folder.results)
        self.name = f"{settings.preset}, seed {settings.seed}"

    def complete(self) -> Sequence[Row]:
        """Do what is left to do.

        Returns:
            All rows of results.csv.

        Raises:
            ArgumentError: the data is smaller than a window.
            RunError: a file cannot be written or is damaged.
        """
        curvature = self.settings.curvature
        self._check()
        if "begun" not in self._done:
            self._record(self._parameters())
        if curvature and "mapped-initial" not in self._done:
            with self.progress.stage("curvature before", self.name):
                self._record(self._map(self._fresh(), curvature, "initial"))
        if "trained" not in self._done:
            self._record(self._train())
        if curvature and "mapped-final" not in self._done and not self._diverged:
            with self.progress.stage("curvature after", self.name):
                self._record(self._map(self._trained(), curvature, "final"))
        shutil.rmtree(self.folder.checkpoints, ignore_errors=True)
        return self.rows

    def _check(self) -> None:
        """Look over what an earlier process left: files of a trained run, rows of each step."""
        if is_trained(self.rows):
            metrics.read_finished(self.folder.metrics)
            if not self._diverged and not is_whole(self.folder.model):
                self._warn(f"{self.folder.model} is damaged; {self._remedy}")
        begun = max((STEPS.index(step_of_row(row)) + 1 for row in self.rows), default=0)
        for step in [step for step in STEPS[:begun] if step not in self._done]:
            self._warn(f"{self.folder.results} lacks rows of {self.name}; measuring {step} again")
            self.rows = [row for row in self.rows if step_of_row(row) != step]

    def _warn(self, message: str) -> None:
        warnings.warn(message, DamageWarning, stacklevel=4)

    @property
    def _remedy(self) -> str:
        return f"remove {self.folder.path} and run again to train once more."

    @property
    def _done(self) -> set[str]:
        return steps_done(self.rows, self._groups)

    @cached_property
    def _groups(self) -> tuple[str, ...]:
        """Parameter groups that the curvature is measured of."""
        if not self.settings.curvature:
            return ()
        settings = self.settings
        with torch.device("meta"):
            model = settings.model.build(settings.preset, self.corpus.vocab_size, settings.seed)
        return tuple(parameter_groups(model))

    @property
    def _diverged(self) -> bool:
        return any(row.quantity == "loss" and not math.isfinite(row.value) for row in self.rows)

    def _record(self, rows: Sequence[Row]) -> None:
        self.rows = sorted([*self.rows, *rows], key=lambda row: STEPS.index(step_of_row(row)))
        write_rows(self.folder.results, self.rows)

    def _row(self, quantity: str, value: float, stage: str = "", method: str = "measured") -> Row:
        return Row(
            preset=self.settings.preset,
            seed=self.settings.seed,
            stage=stage,
            quantity=quantity,
            value=value,
            method=method,
        )

    def _fresh(self) -> PreTrainedModel:
        settings = self.settings
        return settings.model.build(settings.preset, self.corpus.vocab_size, settings.seed)

    def _parameters(self) -> list[Row]:
        count = sum(parameter.numel() for parameter in self._fresh().parameters())
        return [self._row("parameters", count, method="exact")]

    def _map(self, model: PreTrainedModel, curvature: CurvatureSettings, stage: str) -> list[Row]:
        return curvature_rows(model, self.settings, curvature, self.corpus, stage)

    def _trained(self) -> PreTrainedModel:
        """The saved model, read back: the same whether this process trained it or one before."""
        if not is_whole(self.folder.model):
            raise RunError(f"{self.folder.model}: damaged; {self._remedy}")
        with quiet():
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(self.folder.model)
        return model

    def _train(self) -> list[Row]:
        """Train from the newest whole checkpoint, or from the start, and save the model."""
        with self.progress.stage("training", self.name, self.settings.training.steps):
            checkpoint = self._checkpoint()
            metrics.cut_back(self.folder.metrics, step_of(checkpoint) if checkpoint else None)
            done = progress_of(checkpoint) if checkpoint else {}
            recorder = Recorder(self.settings, self.folder, self.progress, done)
            model = self._fresh()
            trainer = make_trainer(
                model, self.settings, self.corpus, recorder, resumed=checkpoint is not None
            )
            reset_peak(self.settings.device)
            with quiet():
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            if recorder.diverged_at is None:
                save_model(model, self.corpus, self.settings.model.context, self.folder.model)
        return self._training_rows(recorder)

    def _checkpoint(self) -> Path | None:
        """The newest whole checkpoint whose losses are all written down."""
        found = newest_whole(self.folder.checkpoints)
        lines = metrics.read(self.folder.metrics)
        if found and not any(line["step"] == step_of(found) for line in lines):
            warnings.warn(
                f"{self.folder.metrics} is damaged; training {self.name} from the start",
                CheckpointWarning,
                stacklevel=2,
            )
            shutil.rmtree(self.folder.checkpoints)
            return None
        return found

    def _training_rows(self, recorder: Recorder) -> list[Row]:
        lines = metrics.read(self.folder.metrics)
        losses = [line["loss"] for line in lines if line["split"] == "validation"]
        speeds = [line["tokens_per_second"] for line in lines if line["split"] == "train"]
        diverged = recorder.diverged_at is not None
        return [
            self._row("loss", _number(losses[0]), "initial"),
            self._row("loss", math.nan if diverged else _number(losses[-1]), "final"),
            self._row("tokens_per_second", statistics.median(speeds)),
            self._row("peak_memory", recorder.peak),
            self._row("training_time", recorder.seconds),
        ]


def train(
    settings: RunSettings,
    corpus: Corpus,
    out: Path,
    progress: Progress,
    command: str = "train",
    finish: Callable[[Path], object] | None = None,
) -> None:
    """One run in a folder of its own, or what is left of it.

    Args:
        settings: of the run.
        corpus: training and held-out tokens.
        out: run folder, new or of the same run.
        progress: told what is going on.
        command: its name in config.json.
        finish: given the folder when all is done, before another process may write there.

    Raises:
        ArgumentError: sizes that do not fit, too little data, or another run in `out`.
        RunError: `out` cannot be written or is damaged.
    """
    settings.model.check(settings.preset, corpus)
    with claimed(out, settings.config(command, corpus)) as folder:
        Run(settings, corpus, folder, progress).complete()
        if finish:
            finish(out)


def save_model(model: PreTrainedModel, corpus: Corpus, context: int, folder: Path) -> None:
    """Save model and tokeniser as Hugging Face reads them, whole or not at all.

    Raises:
        RunError: the folder cannot be written.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=corpus.tokenizer, eos_token=END_OF_TEXT, model_max_length=context
    )
    with atomic_folder(folder) as temporary, quiet(), writing(temporary):
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        seal(temporary, {})


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
