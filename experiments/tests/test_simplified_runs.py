"""Runs of layers without skips or norms: what stands for them, growth, verdicts."""

from itertools import pairwise

import pytest
import torch

from hessblocks.blocks import RMSNorm
from hessblocks.errors import ArgumentError
from hessblocks_studies.pretrained import simplified_runs as runs
from hessblocks_studies.pretrained.pretrained_ground import TINY, ground


def states() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, 8, generator=generator)
    x[:, 0] *= 1000  # sinks
    return x


def test_sinks_keep_what_they_have_and_rule_no_constant() -> None:
    x = states()
    assert runs.sinks(x)[:, 0].all()
    assert not runs.sinks(x)[:, 1:].any()
    skip = runs.FoldedSkip(x)
    assert 0.5 < skip.alpha.item() < 2
    branch = torch.ones_like(x)
    found = skip(branch, x) - branch
    assert torch.equal(found[:, 0] + 1, x[:, 0] + 1)
    assert torch.allclose(runs.sizes(found[:, 1:]), skip.alpha.expand(4, 5, 1), rtol=1e-5)
    norm = RMSNorm().build(8)
    constant = runs.ConstantNorm(norm, x)
    assert torch.equal(constant(x)[:, 0], norm(x)[:, 0])
    assert torch.allclose(constant(x)[:, 1:], constant.scale * x[:, 1:])
    same = x / runs.sizes(x)  # whose norm is a constant already
    assert torch.allclose(runs.ConstantNorm(norm, same)(same), norm(same), atol=1e-5)


@pytest.mark.parametrize("healed", [True, False])
def test_a_run_grows_by_its_cheaper_neighbour_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch, healed: bool
) -> None:
    place = ground(TINY)
    # a healed model has other weights outside the run too
    base = runs.changed(place, place.original.model.layers, runs.NORMS, [0] if healed else [])
    layers = runs.changed(place, base, runs.SKIPS, [2])

    def path(limit: float) -> list[tuple[range, float]]:
        monkeypatch.setattr(runs, "LIMIT", limit)
        steps = runs.grown(place, layers, runs.SKIPS, range(2, 3), healed=healed)
        return [(run, kl.value) for run, _, kl in steps]

    def cost(run: range) -> float:
        after = runs.changed(place, base, runs.SKIPS, run)
        return place.choosing.cost(after, 0).kl.value

    everything = path(1e9)
    assert everything[0][0] == range(2, 3)
    assert everything[-1][0] == range(place.original.config.depth)
    assert [kl for _, kl in everything] == pytest.approx([cost(run) for run, _ in everything])
    second = min((range(1, 3), range(2, 4)), key=cost)
    assert everything[1][0] == second
    assert path(0.0) == everything[:1]
    assert path(max(kl for _, kl in everything[:3]))[:3] == everything[:3]


def test_a_point_prices_layers_and_runs_and_changes_no_original() -> None:
    place = ground(TINY)
    before = {name: value.clone() for name, value in place.original.state_dict().items()}
    points = [point for point in runs.settings("smoke", None) if point.kind == runs.SKIPS]
    assert [point.updates for point in points] == [(0,), (0, 1)]
    rows = [row for point in points for row in runs.measure(point)]
    assert [row["quantity"] for row in rows].count(runs.ALONE) == place.original.config.depth
    growing = [row for row in rows if row["quantity"] == runs.GROWING]
    grown = [row for row in rows if row["quantity"] == runs.RUN]
    assert [row["healing"] for row in grown] == [0, 1]
    for rows_of in (growing, grown):
        lengths = [row["last"] - row["first"] for row in rows_of]
        assert all(before <= after for before, after in pairwise(lengths))
    assert [row["value"] for row in grown] == [
        [row["value"] for row in growing if row["healing"] == updates][-1] for updates in (0, 1)
    ]
    after = place.original.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    runs.summarise(rows)


def test_verdicts_follow_the_costs() -> None:
    common = {"standard_error": 0.001, "healing": 0}
    rows = [
        {**common, "rule": kind, "first": n, "last": n, "quantity": runs.ALONE, "value": value}
        for kind, value in ((runs.SKIPS, 0.01), (runs.NORMS, 0.04))
        for n in range(30)
    ]
    fixed = {"rule": runs.SKIPS, "first": 12, "last": 27, "quantity": runs.FIXED, "value": 0.04}
    assert [one.holds for one in runs.summarise([*rows, common | fixed]).checks] == [True, True]
    fixed["value"] = 0.06
    for row in rows[30:41]:
        row["value"] = 0.06
    assert [one.holds for one in runs.summarise([*rows, common | fixed]).checks] == [False, False]


def test_a_model_that_is_not_there_is_refused_in_a_sentence() -> None:
    with pytest.raises(ArgumentError, match=r"the package no_such_llm is not there; `pip install"):
        ground("no_such_llm")
