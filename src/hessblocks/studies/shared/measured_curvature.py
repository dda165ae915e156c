"""What a training study keeps of a model's curvature: norms, how uneven they are, spectra."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from hessblocks.curvature import (
    AttentionBackendWarning,
    Hessian,
    ParameterGroup,
    Problem,
    group_norms,
    norm_rows,
    parameter_groups,
)
from hessblocks.data import Corpus
from hessblocks.linalg import Estimate, jensen_shannon_distance, spectral_density
from hessblocks.statistics import ends, variance
from hessblocks.storage import Row
from hessblocks.studies.shared.gathering import measured

MATRICES = ("query", "key", "value", "projection", "mlp_in", "mlp_out")
"""Roles of the weight matrices of a layer: what all blocks have in common, as far as they have it."""
HETEROGENEITY = "heterogeneity"
"""Largest over smallest norm of H over the weight matrices of all layers, zeros left out."""
SPREAD = "spread"
"""Standard deviation of log10 of the same norms, in decades."""
DISTANCE = "spectrum_distance"
"""Jensen-Shannon distance between the spectra of two matrices' blocks of H, mean over all pairs."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """How curvature is measured."""

    sequences: int
    """Held-out windows."""
    tokens: int
    """Tokens of each."""
    probes: int
    """Random vectors a group."""
    spectrum_steps: int
    """Lanczos steps of each spectrum; 0 for no spectra."""
    spectrum_probes: int
    """Random vectors of each spectrum."""


def curvature_rows(model: nn.Module, corpus: Corpus, probe: Probe) -> list[Row]:
    """Norms of every group and part, heterogeneity, spread, and the distance of the spectra.

    Args:
        model: a causal language model, put into evaluation mode.
        corpus: where the held-out batch comes from, the same for every model.
        probe: sizes.

    Returns:
        The rows, without study, variant and seed.
    """
    batch = corpus.curvature_batch(probe.sequences, probe.tokens)
    problem = Problem(model.eval(), batch, loss="causal-lm")
    groups = parameter_groups(model)
    matrices = {name: group for name, group in groups.items() if group.role in MATRICES}
    with warnings.catch_warnings(action="ignore", category=AttentionBackendWarning):
        norms = group_norms(problem, groups, probes=probe.probes)
        distance = [_distance(problem, matrices, probe)] if probe.spectrum_steps else []
    unevenness = _unevenness({name: norms[name]["full"] for name in matrices})
    rows = [{name: row[name] for name in row if name != "role"} for row in norm_rows(groups, norms)]
    return rows + unevenness + distance


def _unevenness(norms: Mapping[str, Estimate]) -> list[Row]:
    """Heterogeneity, its error a fourth of the 95 % interval's width, and spread."""
    found = ends({name: (norm.value, norm.standard_error) for name, norm in norms.items()})
    logs = [math.log10(norm.value) for norm in norms.values() if norm.value > 0]
    if found is None or len(logs) < 2:
        return []
    return [
        measured(HETEROGENEITY, found.ratio, "estimate", standard_error=found.standard_error),
        measured(SPREAD, math.sqrt(variance(logs)), "estimate"),
    ]


def _distance(problem: Problem, groups: Mapping[str, ParameterGroup], probe: Probe) -> Row:
    """Mean distance between all pairs of spectra."""
    steps, probes = probe.spectrum_steps, probe.spectrum_probes
    operators = (Hessian(problem, group) for group in groups.values())
    spectra = [spectral_density(operator, steps=steps, probes=probes) for operator in operators]
    distances = [jensen_shannon_distance(a, b) for a, b in itertools.combinations(spectra, 2)]
    return measured(DISTANCE, sum(distances) / len(distances), "estimate")
