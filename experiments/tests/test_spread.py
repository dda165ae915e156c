"""Curvature of a model, and its spread over groups."""

import numpy as np
import pytest
import torch

from hessblocks.curvature import Problem, group_norms, parameter_groups
from hessblocks.models import build
from hessblocks.storage import NORM
from hessblocks_studies.shared import SPREAD, Probe, curvature_rows, text_of
from hessblocks_studies.shared.measured_curvature import HETEROGENEITY, SETS, spread
from hessblocks_studies.shared.trained_points import SMALLEST

ATTENTION = {f"attention.{name}" for name in ("query", "key", "value", "projection")}
COMMON = {"attention.query", "mlp.in", "mlp.out"}

PROBE = Probe(sequences=2, tokens=8, probes=4)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    size = SMALLEST
    return build("pre-ln", depth=1, width=16, heads=2, vocab_size=size.vocab_size, context=32)


def test_each_seed_has_a_batch_and_probes_of_its_own(model: torch.nn.Module) -> None:
    """Norms of one and the same model, measured anew with two seeds."""
    probe, corpus, batches = PROBE, text_of(SMALLEST), []
    for seed in (1, 2):
        batches.append(corpus.curvature_batch(probe.sequences, probe.tokens, seed))
        problem = Problem(model.eval(), batches[-1], loss="causal-lm")
        norms = group_norms(problem, parameter_groups(model), probes=probe.probes, seed=seed)
        found = {
            row["group"]: row["value"]
            for row in curvature_rows(model, corpus, probe, seed)
            if (row["quantity"], row.get("part")) == (NORM, "full")
        }
        assert found == {group: each["full"].value for group, each in norms.items()}
    assert (batches[0]["input_ids"] != batches[1]["input_ids"]).any()


def test_unevenness_is_that_of_the_measured_norms_of_its_set(model: torch.nn.Module) -> None:
    """Of the matrices alone, of those that all blocks have, and of everything; without keys."""
    rows = curvature_rows(model, text_of(SMALLEST), PROBE, 1, without=["key"])
    norms = {
        row["group"]: (row["value"], row["standard_error"] or 0.0)
        for row in rows
        if row["quantity"] == NORM and row["part"] == "full"
    }
    found = {row["group"]: row for row in rows if row["quantity"] == SPREAD}
    assert set(found) == set(SETS)
    for name, kept in zip(SETS, (ATTENTION | COMMON, COMMON, None), strict=True):
        own = {
            group: norm
            for group, norm in norms.items()
            for matrix in [group.partition("layers.0.")[2]]
            if (kept is None or matrix in kept) and matrix != "attention.key"
        }
        value, error = spread(own)
        assert found[name]["value"] == pytest.approx(value), name
        assert found[name]["standard_error"] == pytest.approx(error), name
    uneven = [row for row in rows if row["quantity"] == HETEROGENEITY]
    assert len(uneven) == len(SETS)
    assert all(row["standard_error"] is not None for row in uneven)


def test_noise_of_the_estimates_is_not_spread() -> None:
    """Norms that are equal, and norms of 1 and 10, each with errors of 20 %: the mean over many
    draws."""
    generator = np.random.default_rng(0)
    for truth in (np.ones(24), np.array([1.0, 10.0] * 12)):
        want = float(np.log10(truth).std(ddof=1))
        found = []
        for _ in range(300):
            seen = truth * np.exp(0.2 * generator.normal(size=24))
            norms = {str(place): (float(v), 0.2 * float(v)) for place, v in enumerate(seen)}
            found.append(spread(norms))
        values = np.array([value for value, _ in found])
        assert (values**2).mean() == pytest.approx(want**2, abs=0.003)
        if want:
            errors = np.array([error for _, error in found])
            assert errors.mean() == pytest.approx(values.std(), rel=0.2)


def test_the_spread_of_exact_norms_is_their_standard_deviation() -> None:
    value, error = spread(
        {"a": (1.0, 0.0), "b": (10.0, 0.0), "c": (100.0, 0.0), "zero": (0.0, 0.0)}
    )
    assert (value, error) == (pytest.approx(1.0), 0.0)
