"""Sampled gradients of models that FSDP2 shards over two processes are those of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hessblocks.curvature.groups.views import ParameterGroup, ParameterView, whole
from hessblocks.curvature.products import distributed
from hessblocks.curvature.products.distributed import LocalEntries, rows_like
from tests.curvature.sharded_processes import MODELS, WORK
from tests.curvature.two_processes import in_two_processes

ROUNDING = 1e-4
"""Largest relative error of sums in float32."""
WHOLE = (
    "model: its parameters are sharded over processes (FSDP2), which allows only sampled gradients"
)
REFUSALS = {
    **dict.fromkeys(("product", "norms", "loss", "check", "derivatives"), WHOLE),
    "last block": "closed forms need them whole",
    "shard": "shard: processes that hold parts of one model compute the same rows",
    "mesh": "is not sharded by rows over all processes",
    "factor": "model: its backward pass does not average gradients",
    "synchronisation": "model: its backward pass does not average gradients",
    "batches": "processes 0 and 1 hold different batches",
    "unused": "the backward pass gives 'more.weight' no gradient",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        name: in_two_processes(work, tmp_path_factory.mktemp("processes"))
        for name, work in WORK.items()
    }


@pytest.mark.parametrize("model", MODELS)
def test_prices_and_norms_are_those_of_one_process(results: dict[str, Any], model: str) -> None:
    alone, together = results[model]["alone"], results[model]["together"]
    assert alone.keys() == together.keys()
    for quantity, expected in alone.items():
        scale = max(map(abs, expected))
        assert scale > 0
        assert together[quantity] == pytest.approx(expected, rel=ROUNDING, abs=ROUNDING**2 * scale)


@pytest.mark.parametrize("model", MODELS)
def test_each_process_holds_half_and_leaves_modes_and_gradients(
    results: dict[str, Any], model: str
) -> None:
    assert results[model]["restored"]
    assert results[model]["local"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("case", "message"), REFUSALS.items(), ids=REFUSALS)
def test_what_a_sharded_model_cannot_give_is_one_sentence(
    results: dict[str, Any], case: str, message: str
) -> None:
    assert message in results["refusals"][case]


VIEWS = [
    whole("weight", torch.empty(7, 6)),
    ParameterView(parameter="weight", shape=(3, 6), stride=(6, 1), offset=12),
    ParameterView(parameter="weight", shape=(7, 2), stride=(6, 3), offset=1),
    ParameterView(parameter="weight", shape=(2, 3, 2), stride=(18, 1, 4), offset=0),
]


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_the_entries_of_all_processes_are_those_of_the_group_once(
    monkeypatch: pytest.MonkeyPatch, view: ParameterView, count: int
) -> None:
    """Nine processes share seven rows: two of them have none."""
    model = nn.Linear(6, 7, bias=False)
    group = ParameterGroup(name="group", role="other", layer=None, views=(view,))
    monkeypatch.setattr(distributed, "DTensor", nn.Parameter)
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda: count)
    entries, seen = torch.arange(42.0).view(7, 6), []
    for rank in range(count):
        monkeypatch.setattr(distributed.dist, "get_rank", lambda rank=rank: rank)
        local = LocalEntries([group], model)
        vector = torch.zeros(*local.sizes)
        local.add_to(vector, {"weight": rows_like(entries, model.weight)})
        seen += vector.tolist()
    expected = entries.as_strided(view.shape, view.stride, view.offset).flatten().tolist()
    assert sorted(seen) == sorted(expected)
