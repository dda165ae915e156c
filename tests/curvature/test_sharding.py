"""Models that are sharded over two processes give what one process finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hessblocks.curvature import ParameterView, sharded
from hessblocks.curvature.groups.views import ParameterGroup, whole
from hessblocks.curvature.sharding import OwnEntries
from hessblocks.curvature.sharding.exchange import Cut
from hessblocks.curvature.sharding.folder import WeightsFolder
from hessblocks.errors import ArgumentError
from tests.breadth import everyday
from tests.curvature.cases import CASES, Case
from tests.curvature.sharded_processes import WAYS, WORK, estimates
from tests.curvature.two_processes import in_two_processes

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


class Found(dict[str, Any]):
    """What two processes find, done where it is asked for first."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        super().__init__()
        self._folders = folders

    def __missing__(self, what: str) -> Any:
        self[what] = in_two_processes(WORK[what], self._folders.mktemp("processes"))
        return self[what]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return Found(tmp_path_factory)


LONG = pytest.mark.slow
"""Two processes are busy for up to fifteen seconds each."""


@pytest.mark.parametrize("way", everyday(WAYS, "padding"))
def test_two_processes_that_share_a_model_find_what_one_finds(found: Found, way: str) -> None:
    errors = found[way]
    assert {"value", "Hessian", "OuterProduct", "Functional"} <= errors.keys()
    assert ("along" in errors) == (way != "own")
    assert ("EmpiricalFisher" in errors) == (way not in ("callable", "own"))  # both a callable
    for what in errors.keys() - {"files", "share"}:
        assert errors[what] < 1e-12, what


@pytest.mark.slow
def test_no_process_holds_the_model_or_a_vector(found: Found) -> None:
    own = found["own vectors"]
    assert own["error"] < 1e-12
    assert own["entries"] == pytest.approx(0.5, abs=1e-3)
    assert 0.5 < own["resident"] <= 0.65
    assert own["left"] == 0


@pytest.mark.slow
def test_a_product_sends_few_messages_and_only_sums_that_are_read(found: Found) -> None:
    """Four a layer of twelve parameters: for weights twice, directions once, sums twice; else 309
    and 306."""
    assert found["own vectors"]["gathers"] <= 120
    assert found["own vectors"]["sums"] <= 80


@LONG
def test_a_folder_is_read_by_rows(found: Found) -> None:
    """Several files; each process has half of the entries."""
    folder = found["folder"]
    assert folder["files"] > 1
    assert folder["share"] == pytest.approx(0.5, abs=1e-3)


@LONG
def test_estimators_and_maps_find_what_one_process_finds(found: Found) -> None:
    alone = estimates(cut=False)
    for what, values in found["estimates"].items():
        shared, one = (torch.as_tensor(v, dtype=torch.float64) for v in (values, alone[what]))
        torch.testing.assert_close(shared, one, rtol=1e-9, atol=1e-12, msg=what)


@LONG
def test_sampled_gradients_of_a_sharded_model_use_its_own_kernels(found: Found) -> None:
    kernels = found["kernels"]
    assert kernels["sharded"] == pytest.approx(kernels["alone"], rel=1e-9)


@pytest.mark.slow
def test_weights_that_an_optimiser_changes_are_noticed(found: Found) -> None:
    assert found["changed"] < 1e-12


@LONG
def test_sums_over_processes_lose_no_more_than_half_precision(found: Found) -> None:
    half = found["half"]
    assert half["sharded"] < 1.5 * half["alone"] < 0.03


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("weights", "processes 0 and 1 hold different weights"),
        ("code", "processes 0 and 1 hold different code"),
        ("again", "sharded already"),
        ("vectors", "use 'batches', or 'own'"),
        ("layers", "found no list of layers; Checkpointed holds 100%"),
        ("many", "start 1 at most"),
        ("leaves", "Leaves leaves a tensor in an attribute"),
        ("reads", "a sharded weight outside of the layer"),
        ("mesh", "a mesh of (2, 1), but the process group has 2"),
        ("exact", "closed forms need them whole"),
        ("exact", "full_state_dict=True"),
    ],
)
def test_what_cannot_be_shared_is_one_sentence(found: Found, case: str, said: str) -> None:
    assert said in found["refusals"][case]


@pytest.mark.slow
def test_no_process_waits_for_one_whose_loss_is_not_finite(found: Found) -> None:
    own, other = found["failures"]
    assert "the loss of batch 0" in own
    assert "another process failed" in other
    own, other = found["outside"]
    assert "outside the model's vocabulary" in own
    assert "another process failed" in other


def test_sharding_needs_processes_and_safetensors(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="start with torchrun"):
        sharded(nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match=r"no model\.safetensors"):
        WeightsFolder(tmp_path)


@pytest.mark.parametrize("make", [CASES["masked-lm"], CASES["sas"], CASES["gpt2"]])
def test_the_rows_of_all_processes_are_the_saved_model(
    make: Callable[[], Case], tmp_path: Path
) -> None:
    model: Any = make().model
    trunk = model.transformer if hasattr(model, "transformer") else model
    trunk.save_pretrained(tmp_path)  # of a trunk alone names lack their prefix
    if trunk is not model:
        model.config.save_pretrained(tmp_path)
        json_file = tmp_path / "config.json"
        fields = json.loads(json_file.read_text(encoding="utf-8"))
        fields["architectures"] = [type(model).__name__]
        json_file.write_text(json.dumps(fields), encoding="utf-8")
    folder = WeightsFolder(tmp_path)
    empty = folder.empty_model()
    assert type(empty) is type(model)
    expected = dict(model.named_parameters())
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    assert [name for name, _ in empty.named_parameters()] == list(expected)
    for name, parameter in expected.items():
        cuts = [Cut(shape=tuple(parameter.shape), rank=rank, count=3) for rank in range(3)]
        rows = torch.cat([folder.rows([name], cut, None) for cut in cuts])
        assert torch.equal(rows.reshape(parameter.shape), parameter)


def test_a_folder_that_does_not_fit_its_configuration_is_refused(tmp_path: Path) -> None:
    model: Any = CASES["gpt2"]().model
    model.save_pretrained(tmp_path)
    model.config.n_embd = 8
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match=r"\(7, 8\) by config.json and \(7, 4\) in the file"):
        WeightsFolder(tmp_path).empty_model()
    model.config.n_layer, model.config.n_embd = 3, 4
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match=r"has no tensor 'transformer\.h\.2"):
        WeightsFolder(tmp_path).empty_model()


CODE = {
    "own": (
        {"model_type": "planted", "auto_map": {"AutoConfig": "planted.C"}},
        "holds no model that transformers knows .*code that a folder brings along is never "
        "executed",
    ),
    "kernels": (
        {"attn_implementation": "kernels-community/flash-attn"},
        r"code from elsewhere \(attn_implementation kernels-community/flash-attn\), .* take that "
        r"line out",
    ),
}


@pytest.mark.parametrize(("fields", "message"), CODE.values(), ids=CODE)
def test_code_that_a_folder_brings_or_asks_for_is_not_executed(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model: Any = CASES["gpt2"]().model
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    (tmp_path / "planted.py").write_text("open(__file__ + '.executed', 'w')\n")
    with pytest.raises(ArgumentError, match=message):
        WeightsFolder(tmp_path).empty_model()
    assert not list(tmp_path.glob("*.executed"))


VIEWS = [
    whole("p", torch.empty(5, 4, 3)),
    whole("p", torch.empty(())),
    ParameterView(parameter="p", shape=(2, 3, 4), stride=(24, 4, 1), offset=8),
    ParameterView(parameter="p", shape=(4, 2, 2), stride=(12, 4, 2), offset=1),
    ParameterView(parameter="p", shape=(3, 4), stride=(1, 13), offset=2),
    ParameterView(parameter="p", shape=(7,), stride=(8,), offset=3),
]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_the_entries_of_all_processes_are_those_of_the_group_once(
    view: ParameterView, count: int
) -> None:
    shape = () if not view.shape else (15, 4)
    parameter = torch.arange(60.0 if shape else 1.0).reshape(shape)
    group = ParameterGroup(name="some", role="other", layer=None, views=(view, view))
    entries = torch.cat([view.read(parameter[None])] * 2, dim=1)
    for rank in range(count):
        cut = Cut(shape=shape, rank=rank, count=count)
        own = OwnEntries.of(group, {"p": cut})
        rows, read = cut.part(parameter), torch.empty(1, own.group.size)
        own.group.collect({"p": rows[None]}, read)
        assert own.read(entries).tolist() == read.tolist()
        start, stop = cut.bounds
        assert own.group.size == int(((entries >= start) & (entries < stop)).sum())
