"""Measure a model's curvature group by group; store each group, and write the tables of all."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessblocks import curvature, linalg, storage
from hessblocks.conventions import PARTS, Part
from hessblocks.errors import ArgumentError, RunError
from hessblocks.inspection.spending import Spending, Subjects
from hessblocks.malloc import return_freed_memory
from hessblocks.progress import Progress
from hessblocks.settings import CurvatureInspection
from hessblocks.theory import AttentionHessian
from hessblocks.training import working_seconds

OPERATORS = dict(
    zip(PARTS, (curvature.OuterProduct, curvature.Functional, curvature.Hessian), strict=True)
)
ATTENTION = ("query", "key", "value", "projection")
EXACT_WORK = 10**12
"""Most multiplications after the last attention for its closed form; above, probes are used."""
EXACT_KEY = 10**11
"""The same limit for the keys of a head with norms or rotary positions."""
SAME_LOSS = 1e-3
"""Largest relative difference between losses of the same model and data."""
SPECTRUM_POINTS = 256
"""Number of points of a spectral density."""
WHOLE = ""
"""Name of the record of all groups together."""
GroupRecord = Mapping[str, Any]
"""Measurements of one group, as JSON values."""


class _Counted(linalg.LinearOperator):
    """Operator that reports each of its products."""

    def __init__(self, op: linalg.LinearOperator, step: Callable[[], None]) -> None:
        super().__init__(
            op.shape,
            dtype=op.dtype,
            device=op.device,
            symmetric=True,
            positive_semidefinite=op.positive_semidefinite,
        )
        self._op, self._step = op, step

    def _matmat(self, columns: Tensor) -> Tensor:
        product = self._op @ columns
        for _ in range(columns.shape[1]):
            self._step()
        return product


@dataclass
class CurvatureRun:
    """Measurement of a model's curvature in a folder; `complete` measures the missing groups."""

    name: str
    """Name of the model in results.csv."""
    subjects: Subjects
    """Model, batch, loss and groups."""
    settings: CurvatureInspection
    """Quantities to measure."""
    spending: Spending
    """Numbers of probes, samples and products to spend."""
    folder: Path
    """Prepared run folder."""
    progress: Progress
    """Shows the work done, in gradients."""
    _done: float = 0.0
    """Cost of the finished groups in gradients."""

    def complete(self) -> None:
        """Measure the groups that are not stored yet, and write the tables after each group.

        Raises:
            RunError: a loss or a product is not finite, or a file is damaged or cannot be written.
        """
        self._device = next(iter(self.problem.parameters.values())).device.type
        self._clock = [(0.0, working_seconds(self._device))]  # and after the first two reports
        store, identity = storage.mended_store(self.folder), storage.identity_in(self.folder)
        records: dict[str, GroupRecord] = {}
        run = {"preset": self.name, "seed": self.settings.seed}
        spectral = bool(self.spending.products or self.spending.steps)
        loss = self.problem.value(twice=spectral or not self.spending.samples)
        names = [*self.groups, *([WHOLE] if spectral and WHOLE in self.subjects.units else [])]
        keys = {name: storage.group_key(identity, name) for name in names}
        costs = self._costs([name for name in names if store.get(keys[name]) is None])
        self._total = sum(costs.values())
        with self.progress.stage("curvature", self.name, math.ceil(self._total)):
            for name, key in keys.items():
                stored = store.get(key) or store.add(key, [{**self._measure(name), "loss": loss}])
                (records[name],) = stored.rows
                self._check(records[name], loss)
                write_tables(self.folder, self.groups, records, loss=loss, **run)
                self._done += costs.get(name, 0.0)
                self._show(0.0)

    def _costs(self, names: Sequence[str]) -> dict[str, float]:
        """Estimate the cost of each group that is not measured yet, in gradients."""
        spending, work = self.spending, self.spending.work(self.subjects)
        costs = dict.fromkeys(names, 0.0)
        for name in names:
            if name in self.subjects.units:
                costs[name] += sum(spending.unit_products) * curvature.WHOLE_PRODUCT
            if name in self.groups and not spending.samples:
                costs[name] += work.products(spending.probes, [name]) * work.gradients_a_product
        if spending.samples and names:  # the first group waits for all samples
            costs[names[0]] += len(self._plan.pieces) * spending.samples * curvature.SAMPLE
        return costs

    def _show(self, gradients: float) -> None:
        """Show the cost of finished groups and of the present one so far; tell the time once."""
        done = self._done + gradients
        self.progress.step(math.floor(done), None)
        if len(self._clock) < 3 and done > self._clock[-1][0]:
            self._clock.append((done, working_seconds(self._device)))
            if len(self._clock) == 3:  # fixed costs end with the first report
                _, (first, then), (_, now) = self._clock
                left = (now - then) / (done - first) * (self._total - done)
                unit = " of processor time" if self._device == "cpu" else ""
                self.progress.note(f"{self.progress.in_all(left)}{unit} at most")

    @property
    def problem(self) -> curvature.Problem:
        """Problem (model, batch and loss) with the whole memory limit."""
        return self.subjects.problem

    @property
    def groups(self) -> Mapping[str, curvature.ParameterGroup]:
        """Parameter groups to measure."""
        return self.subjects.groups

    def _check(self, record: Mapping[str, Any], loss: float) -> None:
        """Refuse a record of another model, by its loss; the digests did not differ."""
        if not math.isclose(record["loss"], loss, rel_tol=SAME_LOSS):
            raise RunError(
                f"--out: {self.folder} holds curvature of a model with the loss "
                f"{record['loss']:.6g}, this one has {loss:.6g}; choose another folder."
            )

    def _measure(self, name: str) -> dict[str, Any]:
        """Measure one group, or all groups together, and return JSON values."""
        if name == WHOLE:
            return self._spectral(name, self.spending.parts)
        group, settings, spending = self.groups[name], self.settings, self.spending
        norms, squares = self._exact_norms(group), None
        if spending.samples:
            index = list(self.groups).index(name)
            norms = norms or {"outer": self._sampled[1].norm(index, index)}
        elif spending.map or norms is None:
            squares = curvature.column_squares(
                self.problem,
                self.groups,
                name,
                rows=None if spending.map else [name],
                parts=spending.parts,
                probes=spending.probes,
                seed=settings.seed,
            )
            norms = norms or {part: squares.norm(part, name) for part in spending.parts}
        record: dict[str, Any] = {
            "group": name,
            "role": group.role,
            "layer": group.layer,
            "size": group.size,
            "norms": {part: asdict(norm) for part, norm in norms.items()},
        }
        if spending.map and squares is not None:
            record["column"] = asdict(squares)
        elif spending.map:
            record["samples"] = self._sampled[0][index].tolist()
        if name in self.subjects.units:
            record |= self._spectral(name, [part for part, norm in norms.items() if norm.value > 0])
        return record

    def _exact_norms(self, group: curvature.ParameterGroup) -> dict[Part, linalg.Estimate] | None:
        """Compute norms in closed form; None if no closed block has exactly the group's entries."""
        if group.role not in ATTENTION or group.layer != self._last_layer:
            return None
        if self.settings.level != "role" or self.settings.loss != "causal-lm" or not self._exact:
            return None
        closed_groups = self._exact.groups  # query and key may be one matrix there
        name = "query_key" if group.role == "query" and "query" not in closed_groups else group.role
        if name not in closed_groups or self._exact.block(name, name).shape[0] != group.size:
            return None
        if name == "key" and self._exact.key_work > EXACT_KEY:
            return None
        try:
            norms = {
                part: self._exact.block(name, name, part).frobenius_norm()
                for part in self.spending.parts
            }
        except ArgumentError:  # more memory than is allowed
            return None
        return {part: linalg.Estimate(value=norm, method="exact") for part, norm in norms.items()}

    @cached_property
    def _sampled(self) -> tuple[Tensor, linalg.PairNorms]:
        """Gram matrices of samples (groups, batches, samples, samples), and norms from them."""
        grams = curvature.gram_matrices(
            self.problem,
            self.groups,
            self._plan,
            seed=self.settings.seed,
            step=lambda drawn: self._show(drawn * curvature.SAMPLE),
        ).products
        return_freed_memory()  # eigenvalues allocate other sizes
        return grams, linalg.norms_from_pairs(grams)

    @cached_property
    def _plan(self) -> curvature.Sampling:
        return curvature.plan_samples(
            self.problem, self.groups, self.spending.samples, self.spending.batches
        )

    @cached_property
    def _last_layer(self) -> int:
        """Index of the model's last layer."""
        config: Any = getattr(self.problem.model, "config", None)
        depth: Any = getattr(config, "depth", None) or getattr(config, "num_hidden_layers", 0)
        return int(depth) - 1

    @cached_property
    def _exact(self) -> AttentionHessian | None:
        """Closed form of the last attention's Hessian; None if not applicable or too expensive."""
        model, batch = self.problem.model, self.problem.batches[0]
        vocabulary, width = model.get_input_embeddings().weight.shape  # type: ignore[operator]
        pass_of_token = width * (vocabulary + 8 * width)  # the output layer and an MLP
        if 2 * width * batch.inputs.numel() * pass_of_token > EXACT_WORK:
            return None
        try:
            return curvature.exact_attention_curvature(model, batch.raw)
        except ArgumentError:
            return None

    def _spectral(self, name: str, parts: Sequence[Part]) -> dict[str, Any]:
        """Compute the requested spectra of parts and largest eigenvalues of H."""
        group = self.subjects.units[name]
        measured: dict[str, Any] = {}
        products = count(1)

        def counted(part: Part) -> linalg.LinearOperator:
            op = OPERATORS[part](self.subjects.products, group)
            return _Counted(op, lambda: self._show(next(products) * curvature.WHOLE_PRODUCT))

        if self.spending.steps:
            measured["spectra"] = {part: self._spectrum(counted(part)) for part in parts}
        if self.spending.products:
            measured["eigenvalues"] = self._eigenvalues(counted("full"))
        return measured

    def _spectrum(self, op: linalg.LinearOperator) -> dict[str, Any]:
        density = linalg.spectral_density(
            op,
            seed=self.settings.seed,
            steps=self.spending.steps,
            probes=self.spending.spectrum_probes,
            points=SPECTRUM_POINTS,
        )
        curves = {"eigenvalue": density.grid, "density": density.density}
        curves["standard_error"] = density.standard_error
        numbers = {name: values.double().cpu().tolist() for name, values in curves.items()}
        return {**numbers, "method": density.method}

    def _eigenvalues(self, op: linalg.LinearOperator) -> list[dict[str, float]]:
        """Find the largest eigenvalues of H with their residuals."""
        with warnings.catch_warnings():  # the residuals show which have not converged
            warnings.filterwarnings("ignore", "extreme_eigenvalues: not converged")
            pairs = linalg.extreme_eigenvalues(
                op,
                self.spending.eigenvalues,
                "largest",
                max_products=self.spending.products,
                memory_limit=self.subjects.limit,
                seed=self.settings.seed,
            )
        return pairs.to_rows()


def write_tables(
    folder: Path,
    groups: Mapping[str, curvature.ParameterGroup],
    records: Mapping[str, GroupRecord],
    *,
    loss: float,
    **run: Any,
) -> None:
    """Write rows of all measured groups; map and summary follow once every group is measured.

    Args:
        folder: folder for results.csv, map.csv and spectra.csv.
        groups: all groups of the run.
        records: records of the measured groups; the name '' means all groups together.
        loss: mean loss, nats per token.
        **run: `preset` and `seed` of every row.

    Raises:
        RunError: a file cannot be written.
    """
    norms = {
        name: {part: linalg.Estimate(**record["norms"][part]) for part in _ordered(record["norms"])}
        for name, record in records.items()
        if name
    }
    rows, maps = curvature.norm_rows(groups, norms), []
    if len(norms) == len(groups):
        measured = [records[name] for name in groups]
        if all("column" in record for record in measured):
            columns = [curvature.ColumnSquares(**record["column"]) for record in measured]
            parts = _ordered(columns[0].squares)
            maps = [curvature.combine_columns(groups, columns, part) for part in parts]
        elif all("samples" in record for record in measured):
            products = [torch.tensor(record["samples"]).double() for record in measured]
            maps = [curvature.combine_samples(groups, torch.stack(products))]
        rows += _summary_rows(norms, maps, loss)
    rows += _eigenvalue_rows(groups, records)
    storage.write_results(folder / "results.csv", (storage.ResultRow(**run, **row) for row in rows))
    if spectra := _spectrum_rows(records):
        storage.write_table(folder / "spectra.csv", storage.SPECTRUM_COLUMNS, spectra)
    if maps:
        cells = [row for whole_map in maps for row in whole_map.to_rows()]
        storage.write_table(folder / "map.csv", storage.MAP_COLUMNS, cells)


def _summary_rows(
    norms: Mapping[str, Mapping[Part, linalg.Estimate]],
    maps: Sequence[curvature.CurvatureMap],
    loss: float,
) -> list[dict[str, Any]]:
    """List loss, heterogeneity of each part with its interval, and off-diagonal shares."""
    rows = [("loss", "", linalg.Estimate(value=loss, method="exact"))]
    for part in next(iter(norms.values())):
        ratio = curvature.heterogeneity({name: parts[part] for name, parts in norms.items()})
        rows.append(("heterogeneity", part, ratio.ratio))
        ends = {"heterogeneity_low": ratio.low, "heterogeneity_high": ratio.high}
        rows += [
            (name, part, linalg.Estimate(value=end, method=ratio.ratio.method))
            for name, end in ends.items()
            if end is not None
        ]
    shares = [(whole_map.part, whole_map.off_diagonal_share) for whole_map in maps]
    rows += [("off_diagonal_share", part, share) for part, share in shares if share]
    return [{"quantity": name, "part": part, **found.to_row()} for name, part, found in rows]


def _eigenvalue_rows(
    groups: Mapping[str, curvature.ParameterGroup], records: Mapping[str, GroupRecord]
) -> list[dict[str, Any]]:
    """List eigenvalues of H, the largest first, each followed by its residual."""
    rows = []
    for name, record in records.items():
        group = groups.get(name)
        place = {"group": name, "layer": group.layer, "role": group.role} if group else {}
        for eigenvalue in record.get("eigenvalues", []):
            for quantity, value in zip(storage.EIGENVALUE, eigenvalue.values(), strict=True):
                row = {"quantity": quantity, "part": "full", "value": value, "method": "measured"}
                rows.append(row | place)
    return rows


def _spectrum_rows(records: Mapping[str, GroupRecord]) -> list[dict[str, Any]]:
    values = storage.SPECTRUM_COLUMNS[2:-1]
    return [
        {"group": name, "part": part, "method": spectra[part]["method"]}
        | dict(zip(values, point, strict=True))
        for name, spectra in ((name, record.get("spectra", {})) for name, record in records.items())
        for part in _ordered(spectra)
        for point in zip(*(spectra[part][column] for column in values), strict=True)
    ]


def _ordered(parts: Mapping[Any, Any]) -> list[Part]:
    """List the parts in the order of `PARTS`, which a file may not keep."""
    return [part for part in PARTS if part in parts]
