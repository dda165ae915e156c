"""Measure curvature in its folder: one group after the other, each recorded once."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from hessblocks.conventions import Part
from hessblocks.curvature import (
    Functional,
    Hessian,
    OuterProduct,
    ParameterGroup,
    Problem,
    column_squares,
    exact_attention_curvature,
    gram_matrices,
    plan_samples,
)
from hessblocks.errors import ArgumentError, RunError
from hessblocks.inspection.curvature_tables import write_tables
from hessblocks.inspection.spending import Spending
from hessblocks.linalg import Estimate, PairNorms, norms_from_pairs, spectral_density
from hessblocks.progress import Progress
from hessblocks.settings import CurvatureInspection
from hessblocks.storage import group_key, identity_in, mended_store
from hessblocks.theory import AttentionHessian

OPERATORS = {"outer": OuterProduct, "functional": Functional, "full": Hessian}
ATTENTION = ("query", "key", "value", "projection")
EXACT_WORK = 10**12
"""Multiplications behind the last attention above which its closed form is left to the probes."""
EXACT_KEY = 10**11
"""The same for a head's keys behind norms or rotary positions."""
SAME_LOSS = 1e-3
"""Relative difference of losses up to which two are of the same model and data."""
SPECTRUM = {"steps": 40, "probes": 10, "points": 256}
"""Lanczos steps, probes and points of a spectrum."""


@dataclass(frozen=True)
class CurvatureRun:
    """A run; `complete` does what is not done yet."""

    name: str
    """Of the model, in results.csv."""
    problem: Problem
    """Model, batch and loss."""
    groups: Mapping[str, ParameterGroup]
    """What is measured of."""
    settings: CurvatureInspection
    """What is measured."""
    spending: Spending
    """How much is spent on norms and map."""
    folder: Path
    """Prepared run folder."""

    def complete(self, progress: Progress) -> None:
        """Measure the groups that are not recorded yet, and write the tables after each.

        Raises:
            RunError: a loss or a product is not finite, or a file is damaged or cannot be written.
        """
        store, of = mended_store(self.folder), identity_in(self.folder)
        records: dict[str, Mapping[str, Any]] = {}
        run = {"preset": self.name, "seed": self.settings.seed}
        loss = self.problem.value(twice=not self.spending.samples or self.settings.spectrum)
        with progress.stage("curvature", self.name, len(self.groups)):
            for count, name in enumerate(self.groups, start=1):
                key = group_key(of, name)
                found = store.get(key) or store.add(key, [{**self._measure(name), "loss": loss}])
                (records[name],) = found.rows
                self._check(records[name], loss)
                write_tables(self.folder, self.groups, records, loss=loss, **run)
                progress.step(count, None)

    def _check(self, record: Mapping[str, Any], loss: float) -> None:
        """Refuse what was measured of another model, where its digests do not show it."""
        if not math.isclose(record["loss"], loss, rel_tol=SAME_LOSS):
            raise RunError(
                f"--out: {self.folder} holds curvature of a model with the loss "
                f"{record['loss']:.6g}, this one has {loss:.6g}; choose another folder."
            )

    def _measure(self, name: str) -> dict[str, Any]:
        """Measure all that is asked of one group, as JSON values."""
        group, settings = self.groups[name], self.settings
        norms, squares = self._exact_norms(group), None
        if self.spending.samples:
            place = list(self.groups).index(name)
            norms = norms or {"outer": self._sampled[1].norm(place, place)}
        elif settings.map or norms is None:
            squares = column_squares(
                self.problem,
                self.groups,
                name,
                rows=None if settings.map else [name],
                parts=settings.parts,
                probes=self.spending.probes,
                seed=settings.seed,
            )
            norms = norms or {part: squares.norm(part, name) for part in settings.parts}
        record: dict[str, Any] = {
            "group": name,
            "role": group.role,
            "layer": group.layer,
            "size": group.size,
            "norms": {part: asdict(norm) for part, norm in norms.items()},
        }
        if settings.map and squares is not None:
            record["column"] = asdict(squares)
        elif settings.map:
            record["samples"] = self._sampled[0][place].tolist()
        if settings.spectrum:
            record["spectra"] = {
                part: self._spectrum(group, part) for part, norm in norms.items() if norm.value > 0
            }
        return record

    def _exact_norms(self, group: ParameterGroup) -> dict[Part, Estimate] | None:
        """Compute closed-form norms, where the closed form's block has the group's entries."""
        if group.role not in ATTENTION or group.layer != self._last_layer:
            return None
        if self.settings.level != "role" or self._exact is None:
            return None
        known = self._exact.groups  # query and key may be one matrix there
        name = "query_key" if group.role == "query" and "query" not in known else group.role
        if name not in known or self._exact.block(name, name).shape[0] != group.size:
            return None
        if name == "key" and self._exact.key_work > EXACT_KEY:
            return None
        norms = {
            part: self._exact.block(name, name, part).frobenius_norm()
            for part in self.settings.parts
        }
        return {part: Estimate(value=norm, method="exact") for part, norm in norms.items()}

    @cached_property
    def _sampled(self) -> tuple[Tensor, PairNorms]:
        """Inner products of samples (groups, batches, samples, samples), and norms from these."""
        plan = plan_samples(self.problem, self.groups, self.spending.samples)
        found = gram_matrices(self.problem, self.groups, plan, seed=self.settings.seed).products
        return found, norms_from_pairs(found)

    @cached_property
    def _last_layer(self) -> int:
        """Number of the model's last layer."""
        config: Any = getattr(self.problem.model, "config", None)
        depth: Any = getattr(config, "depth", None) or getattr(config, "num_hidden_layers", 0)
        return int(depth) - 1

    @cached_property
    def _exact(self) -> AttentionHessian | None:
        """The closed form of the last attention; None where it does not apply or costs too much."""
        model, batch = self.problem.model, self.problem.batches[0]
        vocabulary, width = model.get_input_embeddings().weight.shape  # type: ignore[operator]
        behind = width * (vocabulary + 8 * width)
        if 2 * width * batch.inputs.numel() * behind > EXACT_WORK:
            return None
        try:
            return exact_attention_curvature(model, batch.raw)
        except ArgumentError:
            return None

    def _spectrum(self, group: ParameterGroup, part: Part) -> dict[str, Any]:
        found = spectral_density(
            OPERATORS[part](self.problem, group),
            seed=self.settings.seed,
            probe_chunk=1 if group.size > 1 << 17 else None,
            **SPECTRUM,
        )
        curves = {"eigenvalue": found.grid, "density": found.density}
        curves["standard_error"] = found.standard_error
        numbers = {name: values.double().cpu().tolist() for name, values in curves.items()}
        return {**numbers, "method": found.method}
