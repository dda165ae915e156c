"""Choose quantities, probes and samples to measure: by options, time budget, or an earlier run."""

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hessblocks import curvature
from hessblocks.conventions import PARTS, Part
from hessblocks.errors import ArgumentError, HessblocksError, duration, in_units, main_memory
from hessblocks.linalg import FEWEST_PROBES
from hessblocks.progress import Progress
from hessblocks.settings import CurvatureInspection
from hessblocks.storage import read_object

MINUTES, MOST_MINUTES = 5.0, 6.0
"""Default budget, and the time limit if the machine becomes slower meanwhile."""
EIGENVALUES = 3
"""Default number of largest eigenvalues."""
PRODUCTS = 40
"""Most products per eigenvalue."""
FEWEST_PRODUCTS = 8
"""Fewest products per eigenvalue; with fewer, the residual is too large to be useful."""
STEPS = (12, 40)
"""Fewest and most Lanczos steps of a spectrum; each step stores one vector."""
SPECTRUM_PROBES = (2, 10)
"""Fewest and most random vectors of a spectrum."""
SHARE = 1 / 3
"""Largest share of a budget for a spectrum, and share that is reserved for eigenvalues."""
MOST = 2 / 3
"""Largest share of a budget for the fewest products of eigenvalues."""
FEWEST = 2
"""Fewest probes, for the number of samples, if the budget is the default one."""
STEP = 1.4
"""Cost of a Lanczos step in products, with Gram-Schmidt over the basis (measured at 135M parameters
and 7 vectors)."""
FAR = 4
"""If the estimated time exceeds FAR budgets, samples are taken without a closer estimate."""
PAGE = (2.0, 0.03)
"""Seconds to write a page: fixed part, and part per group."""
ASKED = ("parts", "map", "probes", "method", "budget", "eigenvalues", "spectrum", "each_group")
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
    budget: float | None = None
    """Time budget of the user, in minutes."""

    def to_config(self, settings: CurvatureInspection) -> dict[str, Any]:
        """Describe the choice for config.json, without unused numbers; add differing settings."""
        chosen = {"map": self.map, **{name: value for name, value in vars(self).items() if value}}
        asked = {name: getattr(settings, name) for name in ASKED}
        other = {name: value for name, value in asked.items() if value != chosen.get(name)}
        return chosen | {"spectrum": settings.spectrum, "asked": other}


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
    def largest(self) -> curvature.ParameterGroup:
        """Unit with most parameters."""
        return max(self.units.values(), key=lambda unit: unit.size)

    def vectors(self) -> int:
        """Count the vectors of the largest unit that fit the memory."""
        like = next(iter(self.products.parameters.values()))
        return self.limit // (self.largest.size * max(4, like.element_size()))


class _TimeBudget:
    """Time budget: the remaining time, and its division into norms, spectra and eigenvalues."""

    def __init__(self, settings: CurvatureInspection, of: Subjects) -> None:
        self.settings, self.of = settings, of
        self.units = len(of.units)
        self.page = _page(len(of.groups))
        self.end = time.perf_counter() + 60 * (settings.budget or MINUTES) - self.page
        self.product = 0.0
        self.spectra = 0.0  # seconds reserved for spectra
        asked = settings.spectrum or settings.eigenvalues
        if asked or settings.eigenvalues is None:
            try:
                self.product = curvature.product_seconds(of.products, of.largest)
            except HessblocksError:  # too little memory, or no second derivative
                if asked:
                    raise
        self.step = STEP * self.product

    def left(self) -> float:
        """Compute the remaining seconds of the budget."""
        return self.end - time.perf_counter()

    def for_norms(self) -> float:
        """Compute the seconds for norms and map, without those for spectra and eigenvalues."""
        left = self.left() - self.spectra
        # one product more, since estimating the cost of norms takes time too
        each = (FEWEST_PRODUCTS + 1) * self.units * self.step
        count = self.settings.eigenvalues
        if count is None:
            count = min(EIGENVALUES, int(MOST * left / max(each, 1e-9)))
        fewest = count * each
        kept = max(SHARE * left, fewest) if 0 < fewest <= MOST * left else 0.0
        return max(left - kept, 1e-9)

    def spectrum(self, parts: tuple[Part, ...]) -> dict[str, int]:
        """Choose Lanczos steps and probes of spectra by memory and budget."""
        if not self.settings.spectrum:
            return {}
        steps = min(STEPS[1], self.of.vectors())
        if steps < STEPS[0]:
            raise ArgumentError(
                f"--spectrum: {STEPS[0]} vectors of {self.of.largest.size} numbers do not fit "
                f"{in_units(self.of.limit)}, half the memory limit; raise --memory-limit, choose "
                "fewer groups, or leave the spectrum out."
            )
        each = self.step * steps * len(parts) * self.units
        probes = SPECTRUM_PROBES[1]
        if self.settings.budget is not None:
            probes = min(probes, int(SHARE * self.left() / each))
        if probes < SPECTRUM_PROBES[0]:
            raise ArgumentError(
                f"budget: too small; a spectrum takes {duration(SPECTRUM_PROBES[0] * each)} at "
                "least, a third of the budget: give more, or leave it out"
            )
        self.spectra = probes * each if self.settings.budget is not None else 0.0
        return {"steps": steps, "spectrum_probes": probes}

    def with_eigenvalues(self, spending: Spending, cost: curvature.Cost) -> Spending:
        """Add the largest eigenvalues: the requested number, or by default as many as fit."""
        asked = self.settings.eigenvalues
        fitting = self.of.vectors() - 3  # a search needs three more vectors
        smallest = min(unit.size for unit in self.of.units.values())
        count = min(EIGENVALUES, fitting, smallest) if asked is None else asked
        if count < 1 or not self.product:
            return spending
        if count > fitting:
            raise ArgumentError(
                f"--eigenvalues: {count + 3} vectors of {self.of.largest.size} numbers do not fit "
                f"{in_units(self.of.limit)}, half the memory limit; ask for fewer, or raise "
                "--memory-limit."
            )
        products = PRODUCTS * count
        if asked is None or self.settings.budget is not None:
            spare = self.left() - (cost.seconds or 0.0) - self.spectra
            products = min(products, int(spare / self.step / self.units))
        if asked is None:
            count = min(count, products // FEWEST_PRODUCTS)
        if count > 0 and products >= FEWEST_PRODUCTS * count:
            return replace(spending, eigenvalues=count, products=products)
        if asked is None:
            return spending
        least = FEWEST_PRODUCTS * count * self.units
        raise ArgumentError(
            f"budget: too small; {count} eigenvalues take {least} products, about "
            f"{duration(least * self.step)}, at least: give more, or --eigenvalues 0"
        )

    def sentence(self, spending: Spending, cost: curvature.Cost) -> str:
        """Describe eigenvalues and spectra, and the total time and memory."""
        eigen = spending.products * self.units
        spectra = spending.steps * spending.spectrum_probes * len(spending.parts) * self.units
        counts = {f"{spending.eigenvalues} eigenvalues of H": eigen, "spectrum": spectra}
        texts = [f"; {what}: {n} products at most" for what, n in counts.items() if n]
        seconds = (cost.seconds or 0.0) + self.step * (eigen + spectra) + self.page
        vectors = min(64, self.of.vectors()) * self.of.largest.size * 4
        peak = max(cost.bytes, self.of.products.plan.peak + vectors if texts else 0)
        return "".join(texts) + f"; in all about {duration(seconds)}, {in_units(peak)}"


def end_of(settings: CurvatureInspection, groups: int) -> float:
    """Compute the time at which measurements must end, before the page of `groups` groups.

    Returns:
        Seconds of `perf_counter`; infinity if eigenvalues were requested without a budget.
    """
    if settings.budget is None and settings.eigenvalues is not None:
        return math.inf
    return time.perf_counter() + 60 * (settings.budget or MOST_MINUTES) - _page(groups)


def _page(groups: int) -> float:
    return PAGE[0] + PAGE[1] * groups


def in_time(spending: Spending, end: float, seconds: float, *, fewest: int = 1) -> tuple[int, int]:
    """Reduce eigenvalues and products if the machine has become slower since they were chosen.

    Args:
        spending: choice by the earlier time of a product.
        end: time at which measurements must end, in seconds of `perf_counter`.
        seconds: present time of a product.
        fewest: fewest eigenvalues to compute in any case.

    Returns:
        Numbers of eigenvalues and products, at most those of `spending`.
    """
    left = (end - time.perf_counter()) / (STEP * seconds)
    most = spending.products if left >= spending.products else int(left)
    products = max(FEWEST_PRODUCTS * fewest, most)
    return max(fewest, min(spending.eigenvalues, products // FEWEST_PRODUCTS)), products


def chosen(
    of: Subjects, settings: CurvatureInspection, folder: Path, progress: Progress
) -> Spending:
    """Choose quantities and numbers of probes and products, and show their total cost.

    Args:
        of: model, batch, loss and groups.
        settings: settings of the command.
        folder: folder of the run; the choice of an earlier call with the same settings is reused.
        progress: shows the cost.

    Returns:
        Numbers of probes or samples, and of products for spectra and eigenvalues.

    Raises:
        ArgumentError: the memory limit or the budget is too small.

    Cost: one or two products.
    """
    if before := _before(folder, settings):
        return before
    smallest = min(unit.size for unit in of.units.values())
    if settings.eigenvalues and settings.eigenvalues > smallest:
        raise ArgumentError(
            f"--eigenvalues: {settings.eigenvalues} are more than the {smallest} parameters; ask "
            "for fewer."
        )
    purse = _TimeBudget(settings, of)
    cost, spending, more = _norms(of, settings, purse)
    spending = purse.with_eigenvalues(spending, cost)
    text = f"{'map' if spending.map else 'norms'}: {cost}"
    progress.note(text + purse.sentence(spending, cost))
    if more is not None and more < math.inf:
        progress.note(
            "more: H and its two parts by probes with --budget "
            f"{math.ceil((more + purse.page) / 60)} (minutes), one of them with --parts full, "
            f"--spectrum ({duration(purse.step * STEPS[1] * SPECTRUM_PROBES[1])}), --eigenvalues"
        )
    return spending


def _norms(
    of: Subjects, settings: CurvatureInspection, purse: _TimeBudget
) -> tuple[curvature.Cost, Spending, float | None]:
    """Choose norms and map: the requested ones, else all parts if they fit, else samples of H_o.

    If the map of all parts does not fit, their norms alone are chosen.

    Returns:
        The cost, the choice, and the seconds of all parts if samples are chosen instead.
    """

    def priced(
        parts: tuple[Part, ...],
        mapped: bool,
        bounded: bool,
        method: str = settings.method,
        probes: int = settings.probes,
    ) -> tuple[curvature.Cost, Spending]:
        work = curvature.Work(
            problem=of.problem,
            groups=of.groups,
            parts=parts,
            blocks="all" if mapped else "diagonal",
        )
        spectrum = purse.spectrum(parts)
        cost, sampling = curvature.decide(
            work,
            probes=probes,
            method=method,
            budget=purse.for_norms() / 60 if bounded else None,
            tell=lambda _: None,
        )
        spending = Spending(
            parts=parts,
            map=mapped,
            probes=settings.probes if sampling else cost.count,
            samples=cost.count if sampling else 0,
            batches=sampling.batches if sampling else 0,
            budget=settings.budget,
            **spectrum,
        )
        return cost, spending

    given = settings.budget is not None
    if not settings.chooses or not curvature.root_is_known(of.problem):
        return *priced(settings.parts, settings.map, given), None
    # a column of the map, all three parts, costs about as much as a product with the whole H
    needed = purse.product * sum(min(settings.probes, one.size) for one in of.groups.values())
    if needed <= FAR * purse.left():
        with suppress(ArgumentError):  # second derivatives may not fit the memory
            for mapped in (True, False):
                found = priced(PARTS, mapped, False)
                needed = found[0].seconds or 0.0
                if needed <= (purse.for_norms() if given else purse.left()):
                    return *found, None
            if given and needed * FEWEST_PROBES / settings.probes <= purse.for_norms():
                return *priced(PARTS, False, True), None
    found = priced(("outer",), True, False, "sampled")
    if given or (found[0].seconds or 0.0) > purse.for_norms():
        try:
            found = priced(("outer",), True, True, "sampled")
        except ArgumentError:  # too little time for a standard error
            if given:
                raise
            found = priced(("outer",), True, False, "sampled", FEWEST)
    return *found, needed


def free_memory(device: str) -> int:
    """Return the free memory of a device in bytes."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    with suppress(OSError):  # only Linux has this file
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        (free,) = (line.split()[1] for line in lines if line.startswith("MemAvailable"))
        return min(1024 * int(free), main_memory())
    return main_memory()


def _before(folder: Path, settings: CurvatureInspection) -> Spending | None:
    """Read the choice of an earlier call with the same settings; None if there is none."""
    path = folder / "config.json"
    found = read_object(path).get("curvature") if path.is_file() else None
    if not isinstance(found, dict) or not isinstance(found.get("asked"), dict):
        return None
    asked = json.loads(json.dumps({name: getattr(settings, name) for name in ASKED}))
    if any((found | found["asked"]).get(name) != value for name, value in asked.items()):
        return None
    known = {name: found[name] for name in Spending.__dataclass_fields__ if name in found}
    return Spending(**known | {"parts": tuple(found["parts"])})
