"""Modes of the entries' sizes: of each seed, with the error of their mean."""

import math

import pytest
import torch

from hessblocks.studies.hessian_paper.histograms import _histogram, modes_of, summarise

SOFTMAX = {"value": -4.65, "query": -6.25}


def rows_of(block: str, group: str, middle: float, seeds: int = 4) -> list[dict]:
    """Triangles around a mode that shifts by 0.1 from seed to seed."""
    return [
        {"study": "histograms", "block": block, "group": group, "seed": seed,
         "log10_size": middle + shift + 0.1 * (seed % 2), "share": share}
        for seed in range(seeds)
        for shift, share in ((-0.1, 0.2), (0.0, 0.6), (0.1, 0.2))
    ]  # fmt: skip


def test_bins_are_a_tenth_of_a_decade_and_hold_all_entries() -> None:
    found = _histogram(torch.tensor([1.1e-5, 1.2e-5, 1.3e-5, 0.0], dtype=torch.float64))
    filled = {round(centre, 2): share for centre, share in found if share}
    assert filled == {-4.95: 0.5, -4.85: 0.25}


def test_the_mode_of_each_seed_is_its_own_fullest_bin() -> None:
    modes = modes_of(rows_of("softmax", "value", -4.65))
    assert modes["softmax", "value"] == pytest.approx([-4.65, -4.55, -4.65, -4.55])


def test_the_error_is_that_of_the_mean_over_seeds() -> None:
    (check,) = summarise(rows_of("softmax", "value", -4.75)).checks
    error = math.sqrt(4 * 0.05**2 / 3 / 4)
    assert check.ours == f"2e-05 ± {error:.2f} decades (4 seeds)"
    assert check.holds is True


@pytest.mark.parametrize(("shift", "holds"), [(0.0, True), (0.5, False), (-0.5, False)])
def test_every_fact_has_two_sides(shift: float, holds: bool) -> None:
    rows = [r for g, m in SOFTMAX.items() for r in rows_of("softmax", g, m + shift)]
    rows += rows_of("linear", "value", -4.85) + rows_of("linear", "query", -4.85 + shift)
    checks = summarise(rows).checks
    assert len(checks) == 3
    assert [check.holds for check in checks] == [holds] * 3
