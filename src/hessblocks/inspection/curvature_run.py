"""A curvature run in its folder: one group after the other, each recorded once and never redone."""

from __future__ import annotations

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
from hessblocks.storage import (
    file_of,
    identity_in,
    put_aside,
    read_object,
    write_json,
)
from hessblocks.theory import AttentionHessian

OPERATORS = {"outer": OuterProduct, "functional": Functional, "full": Hessian}
ATTENTION = ("query", "key", "value", "projection")
EXACT_WORK = 10**12
"""Multiplications behind the last attention above which its closed form is left to the probes."""
EXACT_KEY = 10**11
"""Multiplications for a head's keys behind norms or rotary positions above which they are left to the probes."""
SAME_LOSS = 1e-3
"""Relative difference of losses up to which a record is of the same model and data."""
SPECTRUM = {"steps": 40, "probes": 10, "points": 256}
"""Lanczos steps, probes and points of a spectrum."""


@dataclass(frozen=True, kw_only=True)
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
        records: dict[str, dict[str, Any]] = {}
        of = identity_in(self.folder)
        run = {"preset": self.name, "seed": self.settings.seed}
        loss = self.problem.value(twice=not self.spending.samples or self.settings.spectrum)
        with progress.stage("curvature", self.name, len(self.groups)):
            for count, name in enumerate(self.groups, start=1):
                path = self.folder / "groups" / file_of(name)
                if path.is_file() and (record := self._recorded(path, name, of, loss)):
                    records[name] = record
                else:
                    records[name] = {**self._measure(name), "loss": loss, "of": of}
                    write_json(path, records[name])
                write_tables(self.folder, self.groups, records, loss=loss, **run)
                progress.step(count, None)

    def _recorded(self, path: Path, name: str, of: str, loss: float) -> dict[str, Any] | None:
        """What is recorded of a group; None, and set aside, where it is not of this run, model and data."""
        record = _read(path)
        before = record.get("loss", loss)
        older = str(record.get("seal", "")).partition("-")[0]  # where earlier versions wrote it
        if record["group"] != name:
            words = f"is of the group {record['group']}"
        elif record.get("of", older) not in (of, ""):
            words = "is of another run"
        elif isinstance(before, float) and math.isclose(before, loss, rel_tol=SAME_LOSS):
            return record
        else:
            words = f"is of a model or data with the loss {before}, not {loss}"
        put_aside(path, self.folder, words, "measured again")
        return None

    def _measure(self, name: str) -> dict[str, Any]:
        """All that is asked of one group, as JSON values."""
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
        """Closed-form norms, where the closed form's block has just the entries of the group."""
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
        return {
            part: Estimate(
                value=self._exact.block(name, name, part).frobenius_norm(), method="exact"
            )
            for part in self.settings.parts
        }

    @cached_property
    def _sampled(self) -> tuple[Tensor, PairNorms]:
        """Inner products of the samples, (groups, batches, samples, samples), and the norms that they give."""
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


def _read(path: Path) -> dict[str, Any]:
    try:
        record = read_object(path)
        for norm in record["norms"].values():
            Estimate(**norm)
        record["group"]
    except (RunError, ArgumentError, AttributeError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged; remove it and run the same command again.") from error
    return record
