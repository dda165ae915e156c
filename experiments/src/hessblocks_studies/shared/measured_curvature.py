"""Measure Hessian norms of a model during training, and their unevenness over groups."""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from hessblocks import curvature
from hessblocks.data import Corpus
from hessblocks.linalg import Estimate
from hessblocks.statistics import ends, variance
from hessblocks.storage import Row
from hessblocks_studies.shared.gathering import measured

ALL_MATRICES, COMMON_MATRICES, ALL_GROUPS = "all weight matrices", "common matrices", "all groups"
SETS: dict[str, tuple[str, ...]] = {
    ALL_MATRICES: ("query", "key", "value", "projection", "mlp_in", "mlp_out"),
    COMMON_MATRICES: ("query", "mlp_in", "mlp_out"),
    ALL_GROUPS: (),
}
"""Set of groups over which unevenness is computed → roles of the groups; none means all roles. The
common matrices are in every block, so that fewer matrices do not make a block look more even. They
exclude keys, whose curvature is 0 if queries are 0."""
HETEROGENEITY = "heterogeneity"
"""Largest over smallest nonzero norm of H, over a set of groups of all layers."""
SPREAD = "spread"
"""Standard deviation of log10 of the same norms, in decades, corrected for the variance of the
estimates."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Settings of a curvature measurement."""

    sequences: int
    """Number of held-out windows."""
    tokens: int
    """Tokens per window."""
    probes: int
    """Number of random vectors per group."""


def curvature_rows(
    model: nn.Module,
    corpus: Corpus,
    probe: Probe,
    seed: int,
    without: Collection[str] = (),
    parts: Sequence[curvature.Part] = curvature.PARTS,
) -> list[Row]:
    """Measure the norms of every group and part, and heterogeneity and spread of each of `SETS`.

    Args:
        model: a causal language model; it is set to evaluation mode.
        corpus: corpus of the held-out batch.
        probe: sizes of the measurement.
        seed: seed of batch and probes, so that the spread over seeds includes their noise.
        without: roles that are excluded from the unevenness.
        parts: parts whose norms are measured, including `full`.

    Returns:
        The rows, without study, variant and seed; rows of a set have its name as their group.
    """
    batch = corpus.curvature_batch(probe.sequences, probe.tokens, seed)
    problem = curvature.Problem(model.eval(), batch, loss="causal-lm")
    groups = curvature.parameter_groups(model)
    with warnings.catch_warnings(action="ignore", category=curvature.AttentionBackendWarning):
        norms = curvature.group_norms(problem, groups, probes=probe.probes, seed=seed, parts=parts)
    rows = [
        {name: row[name] for name in row if name != "role"}
        for row in curvature.norm_rows(groups, norms)
    ]
    full = {name: parts["full"] for name, parts in norms.items()}
    return [*rows, *unevenness_rows(groups, full, without)]


def unevenness_rows(
    groups: Mapping[str, curvature.ParameterGroup],
    norms: Mapping[str, Estimate],
    without: Collection[str] = (),
) -> list[Row]:
    """Compute heterogeneity and spread of each of `SETS`.

    Args:
        groups: groups of the model, by name.
        norms: norm of each group.
        without: roles that are excluded.

    Returns:
        The rows, without study, variant and seed; rows of a set have its name as their group.
    """
    rows = []
    for name, roles in SETS.items():
        members = [
            member
            for member, group in groups.items()
            if (not roles or group.role in roles) and group.role not in without
        ]
        rows += _unevenness(name, {member: norms[member] for member in members})
    return rows


def _unevenness(name: str, norms: Mapping[str, Estimate]) -> list[Row]:
    """Compute heterogeneity (error: a quarter of the 95 % interval's width) and spread."""
    estimates = {group: (norm.value, norm.standard_error) for group, norm in norms.items()}
    extremes = ends(estimates)
    if extremes is None or sum(value > 0 for value, _ in estimates.values()) < 2:
        return []
    values = {HETEROGENEITY: (extremes.ratio, extremes.standard_error), SPREAD: spread(estimates)}
    return [
        measured(quantity, value, "estimate", group=name, standard_error=error)
        for quantity, (value, error) in values.items()
    ]


def spread(norms: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """Compute the standard deviation of log10 of norms, and its error due to the norms' errors.

    With x_i = t_i + noise of variance e_i², the expected sample variance of the x_i is that of the
    t_i plus the mean of e_i², which is subtracted. To first order the noise gives it the variance
    Σ (2 (x_i − x̄) / (n − 1))² e_i².

    Args:
        norms: name → (norm, standard error); norms of 0 are left out, at least two must be above 0.

    Returns:
        The spread in decades, 0 if noise explains all of it, and its standard error.
    """
    positive = [(value, error) for value, error in norms.values() if value > 0]
    logs = [math.log10(value) for value, _ in positive]
    noise = [(error / value / math.log(10)) ** 2 for value, error in positive]
    middle = sum(logs) / len(logs)
    inner = max(variance(logs) - sum(noise) / len(noise), 0.0)
    moved = sum(
        (x - middle) ** 2 * variance_of_log for x, variance_of_log in zip(logs, noise, strict=True)
    )
    error = 2 / (len(logs) - 1) * math.sqrt(moved)
    return math.sqrt(inner), error / (2 * math.sqrt(inner)) if inner else math.sqrt(error)
