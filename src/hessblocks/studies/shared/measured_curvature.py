"""What a training study keeps of a model's curvature: norms, how uneven they are, spectra."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from hessblocks.curvature import Hessian, ParameterGroup, Problem, group_norms, parameter_groups
from hessblocks.data import Corpus
from hessblocks.linalg import Estimate, jensen_shannon_distance, spectral_density
from hessblocks.statistics import ends, variance
from hessblocks.storage import Row

MATRICES = ("query", "key", "value", "projection", "mlp_in", "mlp_out")
"""Roles of the weight matrices of a layer: what all blocks have in common, as far as they have it."""
NORM = "frobenius_norm"
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
        model: a causal language model.
        corpus: where the held-out batch comes from, the same for every model.
        probe: sizes.

    Returns:
        The rows, without study, variant and seed.
    """
    batch = corpus.curvature_batch(probe.sequences, probe.tokens)
    problem = Problem(model, batch, loss="causal-lm")
    groups = parameter_groups(model)
    norms = group_norms(problem, groups, probes=probe.probes)
    rows: list[Row] = [
        {
            "quantity": NORM,
            "layer": groups[name].layer,
            "group": name,
            "part": part,
            "value": norm.value,
            "standard_error": norm.standard_error,
            "method": norm.method,
        }
        for name, parts in norms.items()
        for part, norm in parts.items()
    ]
    matrices = {name: group for name, group in groups.items() if group.role in MATRICES}
    rows += _unevenness({name: norms[name]["full"] for name in matrices})
    if probe.spectrum_steps:
        rows.append(_distance(problem, matrices, probe))
    return rows


def _unevenness(norms: Mapping[str, Estimate]) -> list[Row]:
    """Heterogeneity, its error a fourth of the 95 % interval's width, and spread."""
    found = ends({name: (norm.value, norm.standard_error) for name, norm in norms.items()})
    logs = [math.log10(norm.value) for norm in norms.values() if norm.value > 0]
    if found is None or len(logs) < 2:
        return []
    return [
        {
            "quantity": HETEROGENEITY,
            "value": found.ratio,
            "standard_error": found.standard_error,
            "method": "estimate",
        },
        {"quantity": SPREAD, "value": math.sqrt(variance(logs)), "method": "estimate"},
    ]


def _distance(problem: Problem, groups: Mapping[str, ParameterGroup], probe: Probe) -> Row:
    """Mean distance between all pairs of spectra."""
    spectra = [
        spectral_density(
            Hessian(problem, group), steps=probe.spectrum_steps, probes=probe.spectrum_probes
        )
        for group in groups.values()
    ]
    pairs = itertools.combinations(spectra, 2)
    distances = [jensen_shannon_distance(a, b) for a, b in pairs]
    return {
        "quantity": DISTANCE,
        "value": sum(distances) / len(distances),
        "method": "estimate",
    }
