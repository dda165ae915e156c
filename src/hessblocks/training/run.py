"""One run: initial curvature, training, final curvature; each step recorded once and never redone."""

from __future__ import annotations

import math
import shutil
import statistics
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property, partial

from transformers import AutoModelForCausalLM, PreTrainedModel

from hessblocks.curvature import parameter_groups
from hessblocks.data import Corpus
from hessblocks.errors import RunError
from hessblocks.progress import Progress
from hessblocks.quiet import quiet
from hessblocks.settings import CurvatureSettings, RunSettings
from hessblocks.storage import (
    STEPS,
    ResultRow,
    is_trained,
    read_finished_lines,
    read_lines,
    read_results,
    step_of,
    steps_done,
    warn_of_another_environment,
    write_results,
)
from hessblocks.training.execution import carry_out, give
from hessblocks.training.folder import RunFolder, continued, is_whole, save_model
from hessblocks.training.preparation import build_model, line_files, model_without_weights
from hessblocks.training.trainer import Recorder, map_rows, update_flops


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
        self.rows: list[ResultRow] = read_results(folder.results)
        self.name = f"{settings.preset}, seed {settings.seed}"

    def complete(self) -> Sequence[ResultRow]:
        """Do what is left to do.

        Returns:
            All rows of results.csv.

        Raises:
            ArgumentError: the data is smaller than a window.
            RunError: a file cannot be written or is damaged.
        """
        curvature = self.settings.curvature
        self._check()
        wanted = STEPS if curvature else ("begun", "trained")
        if not self._done.issuperset(wanted) and not self._diverged:
            warn_of_another_environment(self.folder.environment)
        if "begun" not in self._done:
            self._record(self._begun())
        if curvature and "mapped-initial" not in self._done:
            with self.progress.stage("curvature before", self.name):
                self._map(self._fresh(), curvature, "initial")
        if "trained" not in self._done:
            self._record(self._train())
        if curvature and "mapped-final" not in self._done and not self._diverged:
            with self.progress.stage("curvature after", self.name):
                self._map(self._trained(), curvature, "final")
        shutil.rmtree(self.folder.checkpoints, ignore_errors=True)
        return self.rows

    def _check(self) -> None:
        """Look over what an earlier process left: files of a trained run, rows of each step."""
        if is_trained(self.rows):
            for name in line_files(self.settings, self.corpus.vocab_size):
                read_finished_lines(getattr(self.folder, name))
            if not self._diverged and not is_whole(self.folder.model):
                self._warn(f"{self.folder.model} is damaged; {self._remedy}")
        begun = max((STEPS.index(step_of(row)) + 1 for row in self.rows), default=0)
        for step in [step for step in STEPS[:begun] if step not in self._done]:
            self._warn(f"{self.folder.results} lacks rows of {self.name}; measuring {step} again")
            self.rows = [row for row in self.rows if step_of(row) != step]

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
        return tuple(parameter_groups(self._empty)) if self.settings.curvature else ()

    @property
    def _empty(self) -> PreTrainedModel:
        """The model without weights."""
        settings = self.settings
        return model_without_weights(settings.model, settings.preset, self.corpus.vocab_size)

    @property
    def _diverged(self) -> bool:
        return any(row.quantity == "loss" and not math.isfinite(row.value) for row in self.rows)

    def _record(self, rows: Sequence[ResultRow]) -> None:
        self.rows = sorted([*self.rows, *rows], key=lambda row: STEPS.index(step_of(row)))
        write_results(self.folder.results, self.rows)

    def _rows(self, method: str, values: Mapping[tuple[str, str], float]) -> list[ResultRow]:
        """Rows of the whole model, by quantity and stage."""
        row = partial(ResultRow, preset=self.settings.preset, seed=self.settings.seed)
        return [
            row(quantity=quantity, stage=stage, value=value, method=method)
            for (quantity, stage), value in values.items()
        ]

    def _fresh(self) -> PreTrainedModel:
        settings = self.settings
        return build_model(settings.model, settings.preset, self.corpus.vocab_size, settings.seed)

    def _begun(self) -> list[ResultRow]:
        count = sum(parameter.numel() for parameter in self._empty.parameters())
        flops = update_flops(self.settings, self.corpus.vocab_size)
        return self._rows("exact", {("parameters", ""): count, ("flops", ""): flops})

    def _map(self, model: PreTrainedModel, curvature: CurvatureSettings, stage: str) -> None:
        self._record(map_rows(model, self.settings, curvature, self.corpus, stage))

    def _trained(self) -> PreTrainedModel:
        """The saved model, read back: the same whether this process trained it or one before."""
        if not is_whole(self.folder.model):
            raise RunError(f"{self.folder.model}: damaged; {self._remedy}")
        with quiet():
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                self.folder.model,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        return model

    def _train(self) -> list[ResultRow]:
        """Train from the newest whole checkpoint, or from the start, and save the model."""
        settings = self.settings
        with self.progress.stage("training", self.name, settings.training.steps):
            checkpoint = continued(self.folder, self.name, observed=settings.observation.any)
            order = partial(carry_out, settings, self.folder, checkpoint)
            give(order)
            model, recorder = order(self.corpus, self.progress)
            if recorder.divergence is None:
                save_model(model, self.corpus, settings.model.context, self.folder.model)
        return self._training_rows(recorder)

    def _training_rows(self, recorder: Recorder) -> list[ResultRow]:
        lines = read_lines(self.folder.metrics)
        losses = [line["loss"] for line in lines if line["split"] == "validation"]
        speeds = [line["tokens_per_second"] for line in lines if line["split"] == "train"]
        diverged = recorder.divergence is not None
        values = {
            ("loss", "initial"): math.nan if losses[0] is None else losses[0],
            ("loss", "final"): math.nan if diverged or losses[-1] is None else losses[-1],
            ("tokens_per_second", ""): statistics.median(speeds),
            ("peak_memory", ""): recorder.peak,
            ("training_time", ""): recorder.seconds,
        }
        return self._rows("measured", values)
