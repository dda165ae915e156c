"""Train a run in its folder, and measure curvature before and after."""

import gc
import importlib
import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import local_torch_dtype

from hessblocks import storage
from hessblocks.errors import RunError
from hessblocks.models import Saved
from hessblocks.progress import Progress
from hessblocks.settings import CurvatureSettings, RunSettings
from hessblocks.training.folder import RunFolder, continued, newest, prune, save_model
from hessblocks.training.following import Observer, line_files, map_rows
from hessblocks.training.preparation import Prepared
from hessblocks.training.recorder import Recorder, update_flops
from hessblocks.training.trainer import make_trainer, tokenizer_of


class DivergenceWarning(UserWarning):
    """Warning that a loss or a gradient is not finite, so that the run ends."""


ResultRows = list[storage.ResultRow]


class Run:
    """Training run in a folder; `complete` does the steps that are not done yet."""

    def __init__(
        self, settings: RunSettings, prepared: Prepared, folder: RunFolder, progress: Progress
    ) -> None:
        """Read the results that are already in the folder.

        Raises:
            RunError: results.csv is damaged.
        """
        self.settings = settings
        self.prepared = prepared
        self.corpus = prepared.corpus
        self.folder = folder
        self.progress = progress
        self.rows = storage.read_results(folder.results)
        self.name = f"{settings.preset}, seed {settings.seed}"
        self.lines = line_files(settings, prepared, folder)
        """Files of JSON lines that the run writes."""

    def complete(self) -> Sequence[storage.ResultRow]:
        """Do the steps whose results are not recorded yet.

        Returns:
            All rows of results.csv.

        Raises:
            ArgumentError: the data is shorter than one window.
            RunError: a file cannot be written, or is damaged.
        """
        curvature = self.settings.curvature
        self._check()
        wanted = storage.STEPS if curvature else ("begun", "trained")
        if not self._done.issuperset(wanted) and not self._diverged:
            storage.warn_of_another_environment(self.folder.environment)
        if "begun" not in self._done:
            outline = self.prepared.outline(self.settings.preset)
            count = sum(parameter.numel() for parameter in outline.parameters())
            flops = update_flops(self.settings, self.corpus.vocab_size)
            self._record(self._rows("exact", {("parameters", ""): count, ("flops", ""): flops}))
        if curvature and "mapped-initial" not in self._done:
            with self.progress.stage("curvature before", self.name):
                model = self.prepared.build(self.settings.preset, self.settings.seed)
                self._map(model, curvature, "initial")
        if "trained" not in self._done:
            self._record(self._train())
        if curvature and "mapped-final" not in self._done and not self._diverged:
            with self.progress.stage("curvature after", self.name):
                self._map(self._trained_model(), curvature, "final")
        prune(self.folder.checkpoints, count=0)
        return self.rows

    def _check(self) -> None:
        """Check the files of a run that an earlier process has trained; warn of a damaged model."""
        if storage.is_trained(self.rows):
            newest(self.folder)  # moves damaged checkpoints away
            for path in self.lines:
                storage.read_finished_lines(path)
            if not self._diverged and (fault := self._model_fault):
                self._warn(fault)

    def _warn(self, message: str) -> None:
        warnings.warn(message, storage.DamageWarning, stacklevel=4)

    @property
    def _model_fault(self) -> str:
        """Describe a fault of the saved model (damaged, foreign) and the remedy; empty if none."""
        fault = storage.check_manifest(self.folder.model, self.folder.identity)
        remedy = storage.remedy(fault, self.folder.path)
        return f"{self.folder.model} {fault}; {remedy}." if fault else ""

    @property
    def _done(self) -> set[str]:
        return storage.steps_done(self.rows)

    @property
    def _diverged(self) -> bool:
        return any(row.quantity == "loss" and not math.isfinite(row.value) for row in self.rows)

    def _record(self, rows: Sequence[storage.ResultRow]) -> None:
        again = set(map(storage.step_of, rows))
        old = [row for row in self.rows if storage.step_of(row) not in again]
        self.rows = sorted([*old, *rows], key=lambda row: storage.STEPS.index(storage.step_of(row)))
        storage.write_results(self.folder.results, self.rows)

    def _rows(self, method: str, values: Mapping[tuple[str, str], float]) -> ResultRows:
        """Make rows for the whole model from values by (quantity, stage)."""
        row = partial(storage.ResultRow, preset=self.settings.preset, seed=self.settings.seed)
        return [
            row(quantity=quantity, stage=stage, value=float(value), method=method)
            for (quantity, stage), value in values.items()
        ]

    def _map(self, model: PreTrainedModel, curvature: CurvatureSettings, stage: str) -> None:
        self._record(map_rows(model, self.settings, curvature, self.corpus, stage))

    def _trained_model(self) -> PreTrainedModel:
        """Load the saved model, so that curvature is measured on the weights in the folder."""
        if fault := self._model_fault:
            raise RunError(fault)
        model, _ = Saved.at(str(self.folder.model)).load(AutoModelForCausalLM)
        return model

    def _train(self) -> ResultRows:
        """Train from the newest whole checkpoint, or the start, unless a final model is saved."""
        settings, measured = self.settings, storage.remembered_in(self.folder.model)
        finished = {"seconds", "peak_memory"} <= measured.keys() and not self._model_fault
        if finished and not any(map(storage.fault_in_finished_lines, self.lines)):
            return self._training_rows(measured)
        if self.folder.model.exists():
            aside = storage.set_aside(self.folder.model, self.folder.path).parent
            self._warn(
                f"{self.folder.model} is not the final model of this run; it is kept in {aside}, "
                f"training {self.name}"
            )
        with self.progress.stage("training", self.name, settings.training.steps):
            checkpoint = continued(self.folder, self.name, observed=settings.observation.any)
            model, recorder = self.carry_out(checkpoint)
            measured = {"seconds": recorder.seconds, "peak_memory": recorder.peak}
            if recorder.divergence is None:
                tokenizer = tokenizer_of(self.corpus, settings.model.context)
                save_model(model, tokenizer, self.folder, **measured)
        return self._training_rows(measured, diverged=recorder.divergence is not None)

    @local_torch_dtype(torch.float32)
    def carry_out(self, checkpoint: Path | None) -> tuple[PreTrainedModel, Recorder]:
        """Train the run from a checkpoint; None: from the start.

        Returns:
            The trained model, and the recorder of its training.
        """
        settings = self.settings

        def show(line: dict[str, Any]) -> None:
            if line["split"] == "train":
                self.progress.step(line["step"], line["loss"])

        recorder = Recorder(settings, self.folder, checkpoint=checkpoint, listener=show)
        observer = Observer(recorder, self.folder, self.corpus)
        model = self.prepared.build(settings.preset, settings.seed)
        trainer = make_trainer(model, settings, self.corpus, self.folder.checkpoints)
        if settings.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            recorder.record(trainer, *([observer] if settings.observation.any else []))
        finally:
            if settings.report_to == "wandb":  # the next training would log into the same run
                importlib.import_module("wandb").finish()
        if divergence := recorder.divergence:
            warnings.warn(
                f"{self.name}: diverged at step {divergence.step}: the {divergence.words} "
                f"{divergence.verb} not finite; the run ends there and its numbers are kept. Try a "
                f"lower --learning-rate than {settings.training.learning_rate:g}.",
                DivergenceWarning,
                stacklevel=3,
            )
        return model, recorder

    def _training_rows(
        self, measured: Mapping[str, float], *, diverged: bool = False
    ) -> ResultRows:
        lines = storage.read_lines(self.folder.metrics)
        losses = [line["loss"] for line in lines if line["split"] == "validation"]
        speeds = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")]
        if not losses or not speeds:
            raise RunError(
                f"{self.folder.metrics}: lacks losses or speeds; remove {self.folder.path} and run "
                "again."
            )
        first, last = (math.nan if loss is None else loss for loss in (losses[0], losses[-1]))
        values = {
            ("loss", "initial"): first,
            ("loss", "final"): math.nan if diverged else last,
            ("tokens_per_second", ""): statistics.median(speeds),
            ("training_time", ""): measured["seconds"],
        }
        if peak := measured["peak_memory"]:
            values["peak_memory", ""] = peak
        return self._rows("measured", values)
