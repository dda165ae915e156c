"""Measure gains, signal and curvature during training, between two updates.

`Observer` writes them into the folder of a run. The callbacks work with any Trainer of
transformers: they collect their measurements as rows, and `attach` also adds them to the Trainer's
log.

Measuring does not change the model: a run has the same digits with and without it.
"""

import abc
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback, TrainerState

from hessblocks import curvature, signal
from hessblocks.blocks import ReparametrisedLinear, ResidualSum, ShapedGains
from hessblocks.conventions import PARTS, Part
from hessblocks.data import Corpus, Example
from hessblocks.errors import RunError, check_name, check_whole
from hessblocks.settings import CurvatureSettings, RunSettings, is_due
from hessblocks.storage import JsonLine, ResultRow, Tabular, append_line
from hessblocks.training.folder import RunFolder
from hessblocks.training.preparation import Prepared
from hessblocks.training.recorder import Recorder, working_seconds

GroupChoice = (
    Mapping[str, curvature.ParameterGroup]
    | Callable[[nn.Module], Mapping[str, curvature.ParameterGroup]]
    | Sequence[str]
)


def line_files(settings: RunSettings, prepared: Prepared, folder: RunFolder) -> list[Path]:
    """List the files of JSON lines that a run writes: metrics, and observations if it has any."""
    observed = settings.observation.needs_batch
    if settings.observation.gains_every and not observed:
        observed = any(True for _ in _trained(prepared.outline(settings.preset)))
    return [folder.metrics, *([folder.observations] if observed else [])]


class Observer(TrainerCallback):
    """Callback that measures at the due steps."""

    def __init__(self, recorder: Recorder, folder: RunFolder, corpus: Corpus) -> None:
        """Observe a run; the recorder runs before this callback and stops the clock."""
        self.recorder, self.folder, self.corpus = recorder, folder, corpus
        self.wanted = recorder.settings.observation
        self.last = recorder.settings.training.steps

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Measure the model before the first step."""
        if state.global_step == 0:
            self._observe(0, kwargs["model"])

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Measure the model after a step."""
        if not self.recorder.divergence:
            self._observe(state.global_step, kwargs["model"])

    def _observe(self, step: int, model: nn.Module) -> None:
        with measuring(model):
            for line in self._lines(step, model):
                append_line(self.folder.observations, self.recorder.common(step) | line)

    def _lines(self, step: int, model: nn.Module) -> Iterator[JsonLine]:
        wanted, sample = self.wanted, self.wanted.sample
        if is_due(wanted.gains_every, step, self.last):
            yield from gain_values(model)
        signal_due = is_due(wanted.signal_every, step, self.last)
        curvature_due = is_due(wanted.curvature_every, step, self.last)
        if signal_due or curvature_due:
            batch = self.corpus.curvature_batch(sample.sequences, sample.tokens, sample.seed)
        if signal_due:
            for row in SignalCallback(batch).measure(model):
                if row["value"] is not None:
                    layer = None if row["layer"] == "" else row["layer"]
                    yield {n: row[n] for n in ("quantity", "role", "value")} | {"layer": layer}
        if curvature_due:
            groups = {
                name: group
                for name, group in curvature.parameter_groups(model).items()
                if wanted.chooses(name, group.role)
            }
            loss = curvature.Problem(model, batch, loss="causal-lm").value()
            yield {"quantity": "batch_loss", "layer": None, "value": loss}
            for norm in _norms(batch, sample, groups).measure(model):
                yield norm | {"batch_loss": loss}


def _norms(batch: Example, sample: CurvatureSettings, groups: GroupChoice) -> "CurvatureCallback":
    """Make the callback that measures all parts of groups on the fixed batch."""
    sizes: dict[str, Any] = {"probes": sample.probes, "seed": sample.seed}
    return CurvatureCallback(batch, groups=groups, parts=PARTS, **sizes)


def map_rows(
    model: nn.Module, settings: RunSettings, sample: CurvatureSettings, corpus: Corpus, stage: str
) -> list[ResultRow]:
    """Compute Frobenius norms of H_o, H_f and H of every group on the fixed held-out batch.

    Args:
        model: model with the weights of the stage.
        settings: settings of the run.
        sample: sizes of the batch, number of probes, and seed.
        corpus: corpus with held-out text.
        stage: initial or final.

    Returns:
        One row per group and part.

    Cost:
        About a gradient of the batch for each probe and group.
    """
    model.to(torch.device(settings.device))
    batch = corpus.curvature_batch(sample.sequences, sample.tokens, sample.seed)
    with measuring(model):
        norms = _norms(batch, sample, curvature.parameter_groups).measure(model)
    run: dict[str, Any] = {"preset": settings.preset, "seed": settings.seed, "stage": stage}
    return [ResultRow(**run, **norm) for norm in norms]


def map_seconds(
    model: nn.Module, settings: RunSettings, sample: CurvatureSettings, corpus: Corpus
) -> float:
    """Estimate the seconds of `map_rows`, from its products with the middle group."""
    model.to(torch.device(settings.device))
    batch = corpus.curvature_batch(sample.sequences, sample.tokens, sample.seed)
    every, seconds = curvature.parameter_groups(model), 0.0
    groups = dict([[*every.items()][len(every) // 2]])
    with measuring(model):
        problem = curvature.Problem(model, batch, "causal-lm")
        for _ in range(2):  # the first call is slower
            start = working_seconds(settings.device)
            curvature.group_norms(problem, groups, probes=sample.probes)
            seconds = working_seconds(settings.device) - start
    return seconds * len(every)


@contextmanager
def measuring(model: Any) -> Iterator[None]:
    """Restore the unwrapped forward pass inside, since bf16 training wraps it in autocast.

    The CPU's random state is restored afterwards. The warning that fused attention is replaced is
    not shown.
    """
    wrapped = model.__dict__.get("forward")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():  # all probes are drawn there
        warnings.simplefilter("ignore", curvature.AttentionBackendWarning)
        if wrapped is not None:
            model.forward = model.__dict__["_original_forward"]
        try:
            yield
        finally:
            if wrapped is not None:
                model.forward = wrapped


class Following(TrainerCallback, Tabular):
    """Callback that measures before the first update and then at regular steps.

    Among several processes only the first measures.
    """

    def __init__(self, every: int = 100) -> None:
        """Measure at steps 0, `every`, 2 · `every`, ... and after the last step.

        Raises:
            ArgumentError: `every` is not a whole number above 0.
        """
        check_whole(1, every=every)
        self.every = every
        self.rows: list[dict[str, Any]] = []
        """Measurements: step, quantity, value, and columns such as group, part or layer."""
        self._log: Callable[[dict[str, float]], Any] | None = None

    def attach(self, trainer: Trainer) -> Self:
        """Add this callback to a Trainer, and its measurements to the Trainer's log.

        Returns:
            The callback itself.
        """
        trainer.add_callback(self)
        self._log = trainer.log
        return self

    @abc.abstractmethod
    def measure(self, model: nn.Module) -> Iterable[dict[str, Any]]:
        """Measure the model now; yield rows without the step."""

    @abc.abstractmethod
    def name_of(self, row: Mapping[str, Any]) -> str:
        """Return the name of a row in the Trainer's log."""

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Measure the model before the first step.

        Raises:
            RunError: the parameters are sharded over processes. The first process alone would wait
                for the others.
        """
        if any(isinstance(parameter, DTensor) for parameter in kwargs["model"].parameters()):
            raise RunError(
                f"{type(self).__name__}: the model's parameters are sharded over processes; "
                "measure a saved one, loaded whole"
            )
        if state.global_step == 0 and state.is_world_process_zero:
            self._look(0, **kwargs)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Measure the model after a step, if it is due."""
        due = state.global_step % self.every == 0 or state.global_step == state.max_steps
        if due and state.is_world_process_zero:
            self._look(state.global_step, **kwargs)

    def _look(self, step: int, model: nn.Module, **_: Any) -> None:
        with measuring(model):
            # no need to warn that dropout is off during measurements
            warnings.simplefilter("ignore", curvature.RepeatabilityWarning)
            rows = [{"step": step, **row} for row in self.measure(model)]
        self.rows += rows
        if self._log and rows:
            finite_rows = (row for row in rows if row["value"] is not None)
            numbers = {self.name_of(row): row["value"] for row in finite_rows}
            self._log({name: number for name, number in numbers.items() if math.isfinite(number)})

    def to_rows(self) -> list[dict[str, Any]]:
        """List the measurements: one value per row, with its step."""
        return list(self.rows)

    def __str__(self) -> str:
        """Print the number of values, and the step of the last one."""
        last = f", last at step {self.rows[-1]['step']}" if self.rows else ""
        return f"{type(self).__name__}: {len(self.rows):,} values{last}"


class CurvatureCallback(Following):
    """Callback that measures curvature: norms of H_o (Gauss-Newton), H_f or H of each group.

    Each norm has a standard error.

    Examples:
        >>> import tempfile, torch, transformers, hessblocks as hb
        >>> model = hb.build("sas", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> rows = [{"input_ids": row, "labels": row} for row in torch.randint(20, (8, 8))]
        >>> quiet = {"report_to": "none", "save_strategy": "no", "dataloader_pin_memory": False}
        >>> arguments = transformers.TrainingArguments(tempfile.gettempdir(), max_steps=2, **quiet)
        >>> watch = hb.CurvatureCallback({"input_ids": torch.randint(20, (4, 8))}, groups="*.query")
        >>> trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[watch])
        >>> _ = trainer.train()
        {...}
        >>> [(row["step"], row["group"]) for row in watch.rows]
        [(0, 'layers.0.attention.query'), (2, 'layers.0.attention.query')]
    """

    def __init__(
        self,
        batch: Any,
        *,
        groups: GroupChoice = curvature.parameter_groups,
        parts: tuple[Part, ...] = ("full",),
        every: int = 100,
        probes: int = 4,
        loss: Any = "causal-lm",
        seed: int = 0,
    ) -> None:
        """Choose the quantities to measure.

        Args:
            batch: batch of the loss, the same at all steps, as `Problem` takes it.
            groups: groups by name, a function from the model to these, or patterns of group names
                (`layers.*.attention.query`).
            parts: parts of the Hessian: outer, functional, full; at least one.
            every: steps between two measurements.
            probes: random vectors per group, at least 4.
            loss: loss, as `Problem` takes it.
            seed: seed of the probes, the same at all steps.

        Raises:
            ArgumentError: a part is unknown, or `probes` or `every` is too small. At the start of
                training: a pattern matches no group.

        Cost: about one gradient of the batch per group, probe and measurement.
        """
        super().__init__(every)
        for part in parts:
            check_name("parts", part, PARTS)
        curvature.check_probes(probes)
        self._batch, self._groups, self._loss = batch, groups, loss
        self._norms: dict[str, Any] = {"parts": parts, "probes": probes, "seed": seed}

    def measure(self, model: nn.Module) -> Iterable[dict[str, Any]]:
        """Measure one row per group and part."""
        problem, groups = curvature.Problem(model, self._batch, self._loss), self._groups_of(model)
        return curvature.norm_rows(groups, curvature.group_norms(problem, groups, **self._norms))

    def _groups_of(self, model: nn.Module) -> Mapping[str, curvature.ParameterGroup]:
        groups = self._groups(model) if callable(self._groups) else self._groups
        if isinstance(groups, Mapping):
            return groups
        patterns = [groups] if isinstance(groups, str) else groups
        return curvature.select_groups(curvature.parameter_groups(model), patterns)

    def name_of(self, row: Mapping[str, Any]) -> str:
        """Return curvature/GROUP/PART."""
        return f"curvature/{row['group']}/{row['part']}"


class SignalCallback(Following):
    """Callback that measures signal by layer: similarity, rank, norm, kurtosis, attention heads.

    Examples:
        >>> import tempfile, torch, transformers, hessblocks as hb
        >>> model = hb.build("sas", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> rows = [{"input_ids": row, "labels": row} for row in torch.randint(20, (8, 8))]
        >>> quiet = {"report_to": "none", "save_strategy": "no", "dataloader_pin_memory": False}
        >>> arguments = transformers.TrainingArguments(tempfile.gettempdir(), max_steps=2, **quiet)
        >>> watch = hb.SignalCallback({"input_ids": torch.randint(20, (4, 8))})
        >>> trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[watch])
        >>> _ = trainer.train()
        {...}
        >>> sorted({row["quantity"] for row in watch.rows})[-3:]
        ['second_moment', 'stable_rank', 'token_similarity']
    """

    def __init__(self, batch: Any, *, every: int = 100) -> None:
        """Set the batch, as `hessblocks.signal.propagate` takes it, and the steps in between."""
        super().__init__(every)
        self._batch = batch

    def measure(self, model: nn.Module) -> Iterable[dict[str, Any]]:
        """Measure one row per layer, quantity and head, without Jacobians; a value may be None."""
        return signal.propagate(model, self._batch, jacobian_steps=0).to_rows()

    def name_of(self, row: Mapping[str, Any]) -> str:
        """Return signal/LAYER/QUANTITY, with the role at its end if there is one."""
        layer = "input" if row["layer"] == "" else row["layer"]
        return f"signal/{layer}/{row['quantity']}" + (f"/{row['role']}" if row["role"] else "")


class GainCallback(Following):
    """Callback that records trained gains of our models: skips, branches, attention, weights.

    Examples:
        >>> import tempfile, torch, transformers, hessblocks as hb
        >>> model = hb.build("sas", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> rows = [{"input_ids": row, "labels": row} for row in torch.randint(20, (8, 8))]
        >>> quiet = {"report_to": "none", "save_strategy": "no", "dataloader_pin_memory": False}
        >>> arguments = transformers.TrainingArguments(tempfile.gettempdir(), max_steps=2, **quiet)
        >>> watch = hb.GainCallback(every=1)
        >>> trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[watch])
        >>> _ = trainer.train()
        {...}
        >>> [row["step"] for row in watch.rows if row["quantity"] == "beta_SA"]  # of attention
        [0, 1, 2]
    """

    def measure(self, model: nn.Module) -> Iterable[dict[str, Any]]:
        """Read one row per layer and gain, the mean over heads."""
        return ({n: row[n] for n in ("layer", "quantity", "value")} for row in gain_values(model))

    def name_of(self, row: Mapping[str, Any]) -> str:
        """Return gain/LAYER/QUANTITY."""
        return f"gain/{row['layer']}/{row['quantity']}"


BRANCHES = {"attention_branch": "SA", "mlp_branch": "FF"}
WEIGHTS = {
    "query": "Q",
    "key": "K",
    "value": "V",
    "projection": "P",
    "input": "in",
    "gate": "gate",
    "attention.gate": "G",
    "output": "out",
}
"""Role of a weight → its letter in the name of a gain."""


def gain_values(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield every trainable gain: layer, quantity, value (mean over heads), and `heads` if any.

    Quantities are alpha, beta, gamma (shaped attention), alpha_SA, beta_SA, alpha_FF, beta_FF
    (skips and branches), alpha_V, beta_V and so on (reparametrised weights).

    Args:
        model: model of this library.
    """
    for layer, quantity, gain in _trained(model):
        values = gain.detach().float()
        row = {"layer": layer, "quantity": quantity, "value": float(values.mean())}
        yield row | ({"heads": values.tolist()} if gain.ndim else {})


def _trained(model: nn.Module) -> Iterator[tuple[int, str, Tensor]]:
    for layer, block in enumerate(signal.layers_of(model)):
        for path, module in block.named_modules():
            for quantity, gain in _gains(path, module):
                if isinstance(gain, Tensor) and gain.requires_grad:
                    yield layer, quantity, gain


def _gains(path: str, module: nn.Module) -> Iterator[tuple[str, Tensor | float]]:
    name = path.rpartition(".")[2]
    if isinstance(module, ShapedGains):
        yield from (("alpha", module.alpha), ("beta", module.beta), ("gamma", module.gamma))
    elif isinstance(module, ResidualSum):
        letter = BRANCHES.get(name, name)
        yield from ((f"alpha_{letter}", module.skip), (f"beta_{letter}", module.gain))
    elif isinstance(module, ReparametrisedLinear):
        letter = WEIGHTS.get(path) or WEIGHTS.get(name, name)
        yield f"alpha_{letter}", module.initial_gain
        yield f"beta_{letter}", module.update_gain
