"""Choose quantities, probes and samples to measure: by options, model size, or an earlier run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from hessblocks import curvature
from hessblocks.conventions import PARTS, Part
from hessblocks.errors import ArgumentError, HessblocksError, in_units, main_memory
from hessblocks.progress import Progress
from hessblocks.settings import CurvatureInspection
from hessblocks.storage import read_object

SMALL = 10**7
"""Most parameters of a model of which H, H_o and H_f are measured by default; beyond, H_o alone."""
EIGENVALUES = 3
"""Default number of largest eigenvalues."""
PRODUCTS = 40
"""Most products per eigenvalue that the user asked for, or of a small model."""
PRODUCTS_OF_LARGE = 10
"""Most products per eigenvalue of a larger model by default."""
STEPS = (12, 40)
"""Fewest and most Lanczos steps of a spectrum; each step stores one vector."""
SPECTRUM_PROBES = 10
"""Random vectors of a spectrum."""
SETTINGS = ("parts", "map", "probes", "method", "eigenvalues", "spectrum", "each_group")
"""Settings that the choice depends on."""


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Choice of quantities and of the numbers of probes, samples and products for them."""

    parts: tuple[Part, ...]
    """Parts of the Hessian whose norms are measured."""
    map: bool
    """Whether the norms of blocks between groups are measured too."""
    probes: int
    """Random vectors per group."""
    samples: int = 0
    """Sampled gradients for all groups, instead of probes; 0: use probes."""
    batches: int = 0
    """Number of batches of the samples, stored so that a resumed run draws the same samples."""
    eigenvalues: int = 0
    """Number of largest eigenvalues of H."""
    products: int = 0
    """Most products for the eigenvalues of a unit."""
    steps: int = 0
    """Lanczos steps per spectrum (of a unit and part) and random vector."""
    spectrum_probes: int = 0
    """Random vectors per spectrum."""

    @property
    def unit_products(self) -> tuple[int, int]:
        """Most products of a unit for its eigenvalues, and for its spectra."""
        return self.products, self.steps * self.spectrum_probes * len(self.parts)

    def work(self, subjects: Subjects) -> curvature.Work:
        """Describe the norms and the map."""
        return curvature.Work(
            problem=subjects.problem,
            groups=subjects.groups,
            parts=self.parts,
            blocks="all" if self.map else "diagonal",
        )

    def to_config(self, settings: CurvatureInspection) -> dict[str, Any]:
        """Describe the choice for config.json, without unused numbers; add differing settings."""
        chosen = {"map": self.map, **{name: value for name, value in vars(self).items() if value}}
        values = {name: getattr(settings, name) for name in SETTINGS}
        differing = {name: value for name, value in values.items() if value != chosen.get(name)}
        return chosen | {"spectrum": settings.spectrum, "asked": differing}


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """Problems and groups to measure."""

    problem: curvature.Problem
    """Problem for norms and maps, with the whole memory limit."""
    products: curvature.Problem
    """Problem for spectra and eigenvalues, with half the limit; vectors take the other half."""
    groups: Mapping[str, curvature.ParameterGroup]
    """Name → parameter group."""
    units: Mapping[str, curvature.ParameterGroup]
    """Groups for eigenvalues and spectra: each group, or all together under the name ''."""
    limit: int
    """Memory for vectors of eigenvalues and spectra, in bytes."""

    @property
    def size(self) -> int:
        """Number of parameters of the model."""
        return sum(parameter.numel() for parameter in self.problem.model.parameters())

    @property
    def largest(self) -> curvature.ParameterGroup:
        """Unit with most parameters."""
        return max(self.units.values(), key=lambda unit: unit.size)

    def vectors(self) -> int:
        """Count the vectors of the largest unit that fit the memory."""
        like = next(iter(self.products.parameters.values()))
        return self.limit // (self.largest.size * max(4, like.element_size()))


def chosen(
    subjects: Subjects, settings: CurvatureInspection, folder: Path, progress: Progress
) -> Spending:
    """Choose quantities and numbers of probes and products, and show their total cost.

    Args:
        subjects: model, batch, loss and groups.
        settings: settings of the command.
        folder: folder of the run; the choice of an earlier call with the same settings is reused.
        progress: shows the cost.

    Returns:
        Numbers of probes or samples, and of products for spectra and eigenvalues.

    Raises:
        ArgumentError: the memory limit is too small, or there are fewer parameters than
            eigenvalues.

    Cost: one product with H, by default.
    """
    if before := _before(folder, settings):
        return before
    obstacle = _obstacle(subjects) if settings.chooses or settings.eigenvalues is None else ""
    parts, mapped, method = settings.parts, settings.map, settings.method
    if settings.chooses and curvature.root_is_known(subjects.problem):
        large = obstacle or subjects.size > SMALL
        parts, mapped, method = (("outer",), True, "sampled") if large else (PARTS, True, "probes")
    spending = Spending(
        parts=parts, map=mapped, probes=settings.probes, **_spectrum(subjects, settings)
    )
    cost, sampling = curvature.decide(
        spending.work(subjects), probes=settings.probes, method=method, tell=lambda _: None
    )
    if sampling:
        spending = replace(spending, samples=cost.count, batches=sampling.batches)
    if settings.eigenvalues is not None or not obstacle:
        spending, obstacle = _with_eigenvalues(spending, subjects, settings)
    progress.note(f"{'map' if mapped else 'norms'}: {cost}{_rest(spending, subjects, cost)}")
    if obstacle and settings.eigenvalues is None:
        progress.note(f"no eigenvalues: {obstacle}")
    return spending


def _obstacle(subjects: Subjects) -> str:
    """Try one product with H; return the error's message if there is none, else nothing."""
    op = curvature.Hessian(subjects.products, subjects.largest)
    try:
        op @ torch.ones(op.shape[1], 1, dtype=op.dtype, device=op.device)
    except HessblocksError as error:  # too little memory, or no second derivative
        return str(error)
    return ""


def _spectrum(subjects: Subjects, settings: CurvatureInspection) -> dict[str, int]:
    """Choose Lanczos steps and probes of spectra by memory."""
    if not settings.spectrum:
        return {}
    if (steps := min(STEPS[1], subjects.vectors())) < STEPS[0]:
        raise ArgumentError(
            f"--spectrum: {STEPS[0]} vectors of {subjects.largest.size} numbers do not fit "
            f"{in_units(subjects.limit)}, half the memory limit; raise --memory-limit, choose "
            "fewer groups, or leave the spectrum out."
        )
    return {"steps": steps, "spectrum_probes": SPECTRUM_PROBES}


def _with_eigenvalues(
    spending: Spending, subjects: Subjects, settings: CurvatureInspection
) -> tuple[Spending, str]:
    """Add the largest eigenvalues, by default three or as many as there are; or say why not."""
    smallest = min(unit.size for unit in subjects.units.values())
    count = min(EIGENVALUES, smallest) if settings.eigenvalues is None else settings.eigenvalues
    if count > smallest:
        raise ArgumentError(
            f"--eigenvalues: {count} are more than the {smallest} parameters; ask for fewer."
        )
    if count and count + 3 > subjects.vectors():  # a search needs three more vectors
        obstacle = (
            f"{count + 3} vectors of {subjects.largest.size} numbers do not fit "
            f"{in_units(subjects.limit)}, half the memory limit; ask for fewer, or raise "
            "--memory-limit."
        )
        if settings.eigenvalues is None:
            return spending, obstacle
        raise ArgumentError(f"--eigenvalues: {obstacle}")
    by_default = settings.eigenvalues is None and subjects.size > SMALL
    products = count * (PRODUCTS_OF_LARGE if by_default else PRODUCTS)
    return replace(spending, eigenvalues=count, products=products), ""


def _rest(spending: Spending, subjects: Subjects, cost: curvature.Cost) -> str:
    """Describe eigenvalues and spectra, and the total time in gradients and memory."""
    eigen, spectra = spending.unit_products
    counts = {f"{spending.eigenvalues} eigenvalues of H": eigen, "spectrum": spectra}
    units = len(subjects.units)
    texts = [f"; {quantity}: {n * units} products at most" for quantity, n in counts.items() if n]
    if not texts:
        return ""
    gradients = cost.gradients + (eigen + spectra) * units * curvature.WHOLE_PRODUCT
    vectors = min(64, subjects.vectors()) * subjects.largest.size * 4
    peak = max(cost.bytes, subjects.products.plan.peak + vectors)
    return "".join(texts) + f"; in all about {gradients:.0f} gradients, {in_units(peak)}"


def free_memory(device: str) -> int:
    """Return the free memory of a device in bytes."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    return min(int(psutil.virtual_memory().available), main_memory())


def _before(folder: Path, settings: CurvatureInspection) -> Spending | None:
    """Read the choice of an earlier call with the same settings; None if there is none."""
    path = folder / "config.json"
    stored = read_object(path).get("curvature") if path.is_file() else None
    if not isinstance(stored, dict) or not isinstance(stored.get("asked"), dict):
        return None
    values = json.loads(json.dumps({name: getattr(settings, name) for name in SETTINGS}))
    if any((stored | stored["asked"]).get(name) != value for name, value in values.items()):
        return None
    fields = {name: stored[name] for name in Spending.__dataclass_fields__ if name in stored}
    return Spending(**fields | {"parts": tuple(stored["parts"])})
