"""Long work says so soon after its start, without a product more; short work says nothing."""

import itertools
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hessblocks as hb
from hessblocks.curvature import cost as costs
from hessblocks.curvature import frobenius_norms
from hessblocks.curvature import map as maps
from hessblocks.curvature.cost import Cost, Forecast

COST = Cost(method="probes", count=10, groups=10, products=100, gradients=97.0, bytes=0)


def clock(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    own = iter(times)
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: next(own)))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_what_is_spent_once_counts_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock(monkeypatch, 0, 30, 50, 70)
    forecast = Forecast(COST)
    for done in (10, 20, 30):
        forecast(done)
    assert said(caplog) == [
        "10 probes in each of 10 groups: 100 products, about 97 gradients, 0 bytes, about "
        "3.5 minutes; fewer probes take less"
    ]


def test_a_sample_takes_as_many_passes_as_the_data(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock(monkeypatch, 0, 1, 2)
    forecast = Forecast(COST, passes=3)
    forecast(1)
    forecast(2)
    assert "about 5 minutes" in said(caplog)[0]


@pytest.mark.parametrize(("told", "times"), [(False, (0, 0.5, 1)), (True, (0, 30, 60))])
def test_short_work_and_what_was_told_before_are_not_said(
    told: bool,
    times: tuple[float, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock(monkeypatch, *times)
    forecast = Forecast(COST, told=told)
    forecast(10)
    forecast(20)
    assert said(caplog) == []


@pytest.mark.parametrize("function", [hb.group_norms, hb.curvature_map])
@pytest.mark.parametrize("method", ["probes", "sampled"])
def test_norms_and_maps_say_it_from_their_own_products(
    function: Any, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
    data = torch.randn(8, 4), torch.randint(0, 5, (8,))
    problem = hb.Problem(model, data, nn.CrossEntropyLoss())
    groups = hb.custom_groups(model, {"a": "0.*", "b": "2.weight", "c": "2.bias"})
    about = {"parts": ["outer"]} if function is hb.group_norms else {"part": "outer"}
    columns: list[str] = []
    for module in (frobenius_norms, maps):
        real = module.column_squares

        def noted(*given: Any, real: Any = real, **options: Any) -> Any:
            columns.append(given[2])
            return real(*given, **options)

        monkeypatch.setattr(module, "column_squares", noted)
    function(problem, groups, probes=4, method=method, **about)
    assert said(caplog) == []
    ticks = itertools.count(0, 10)
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    columns.clear()
    function(problem, groups, probes=8, method=method, **about)
    assert columns == (["a", "b", "c"] if method == "probes" else [])
    if method == "sampled":
        assert said(caplog)[0].startswith("32 sampled gradients for all 3 groups: 32 products")
    else:
        assert said(caplog) == []  # 21 products, 8 of them in 10 s


def test_the_first_columns_are_counted_by_their_own_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
    problem = hb.Problem(
        model, (torch.randn(8, 4), torch.randint(0, 5, (8,))), nn.CrossEntropyLoss()
    )
    groups = hb.custom_groups(model, {"a": "0.*", "b": "2.weight", "c": "2.bias"})
    done: dict[str, list[int]] = {"norms": [], "map": []}
    for name, module in (("norms", frobenius_norms), ("map", maps)):
        monkeypatch.setattr(module, "Forecast", lambda cost, own=done[name], told=False: own.append)
    hb.group_norms(problem, groups, probes=8)
    hb.curvature_map(problem, groups, probes=8)
    assert done == {"norms": [8, 16, 21], "map": [8, 16, 21]}
