"""Every result that is saved can be read again, and what is no result is refused."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import hessblocks as hb
from hessblocks.bill import Allocation, Bill
from hessblocks.errors import ArgumentError, RunError
from hessblocks.inspection.reading import KINDS
from hessblocks.linalg import DenseOperator, DiagonalEstimate, Eigenvalues, solve
from hessblocks.signal import propagate
from hessblocks.simplify import Removals
from hessblocks.storage import Rows, Tabular
from hessblocks.training.following import Following

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


@cache
def results() -> dict[str, Any]:
    """One of each kind."""
    torch.manual_seed(0)
    model = hb.build("pre-ln", depth=2, width=8, heads=2, vocab_size=11, context=6)
    ids = torch.randint(0, 11, (3, 6))
    problem, groups = hb.Problem(model, ids), hb.parameter_groups(model)
    few = hb.select_groups(groups, ["*.query", "*.1.mlp.in"])
    matrix = DenseOperator(torch.diag(torch.tensor([4.0, 1.0, 0.5, 0.25])), symmetric=True)
    bill = hb.price(problem, hb.change_each(few, hb.rounded(bits=4), hb.rounded(bits=2)), samples=8)
    callback = hb.SignalCallback(ids)
    callback.rows = [{"step": 1, "quantity": "loss", "value": math.nan, "layer": None}]
    found = [
        hb.trace(matrix, probes=8),
        hb.diagonal(matrix, probes=8),
        hb.extreme_eigenvalues(matrix, 2),
        hb.spectral_density(matrix),
        solve(matrix, torch.ones(4, 2)),
        hb.group_norms(problem, few, probes=4),
        hb.curvature_map(problem, few, "outer", probes=4),
        hb.check_derivatives(problem, few),
        propagate(model, {"input_ids": ids, "labels": ids}),
        *(next(iter(bill.values())), bill.check()),
        next(iter(hb.price(problem, hb.cache_changes(model, keys=4), samples=4).values())),
        hb.measure_curvature(model, {"input_ids": ids}, probes=4, map=True, groups=["*.query"]),
    ]
    return {type(one).__name__: one for one in found} | {"Rows": callback}


def alike(a: Any, b: Any) -> bool:
    """Equal to the last bit, and of the same class."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, type(a)) and len(a) == len(b) and all(map(alike, a, b))
    if is_dataclass(a):
        return type(a) is type(b) and all(
            alike(getattr(a, one.name), getattr(b, one.name)) for one in fields(a)
        )
    return type(a) is type(b) and (a == b or (a != a and b != b))


WITH_TENSORS = {"DiagonalEstimate", "Eigenvalues", "Solution", "Spectrum"}


@pytest.mark.parametrize("ending", ["json", "safetensors"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_read_as_it_was_saved(kind: str, ending: str, tmp_path: Path) -> None:
    result: Tabular = results()[kind]
    path = tmp_path / f"result.{ending}"
    if ending == "json" and kind in WITH_TENSORS:
        with pytest.raises(ArgumentError, match=r"safetensors"):
            result.save(path)
        return
    result.save(path)
    found = hb.read(path)
    assert type(found) is KINDS[kind]
    assert repr(found) == repr(result)
    assert alike(found.to_rows(), result.to_rows())
    if kind != "Rows":  # a callback is none without its training
        assert alike(found, result)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    if ending == "json":
        json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)


def classes(base: type) -> set[type]:
    return {base}.union(*(classes(one) for one in base.__subclasses__()))


def test_every_kind_of_result_can_be_read() -> None:
    ours = {one for one in classes(Tabular) if one.__module__.startswith("hessblocks")}
    assert {one for one in ours if one.rows_alone} == {Allocation, Bill, Removals}
    assert ours - classes(Following) - {Tabular, Allocation, Bill, Removals} == set(KINDS.values())


def test_norms_can_be_worked_with_again(tmp_path: Path) -> None:
    norms = results()["GroupNorms"]
    norms.save(tmp_path / "norms.json")
    again = hb.read(str(tmp_path / "norms.json"))
    assert again == norms
    assert str(again.heterogeneity("full")) == str(norms.heterogeneity("full"))
    assert again.to_rows() == norms.to_rows()


def test_a_run_folder_is_read(tmp_path: Path) -> None:
    model, ids = (
        hb.build("sas", depth=1, width=8, heads=2, vocab_size=9, context=4),
        torch.ones(2, 4),
    )
    asked = {"probes": 4, "groups": ["*.query"], "parts": ["full"]}
    found = hb.measure_curvature(model, {"input_ids": ids.long()}, out=tmp_path / "run", **asked)
    assert hb.read(tmp_path / "run") == found
    with pytest.raises(ArgumentError, match="expected a folder that `hessblocks curvature` wrote"):
        hb.read(tmp_path)


def test_half_precision_and_shared_memory_are_kept(tmp_path: Path) -> None:
    values = torch.linspace(0, 1, 8).bfloat16()[::2]
    result = DiagonalEstimate(values=values, standard_errors=values)
    result.save(tmp_path / "a.safetensors")
    assert alike(hb.read(tmp_path / "a.safetensors"), result)


def test_tensors_are_for_safetensors(tmp_path: Path) -> None:
    values = torch.zeros(3)
    with pytest.raises(ArgumentError, match=r"safetensors, or without tensors \.json, got"):
        DiagonalEstimate(values=values, standard_errors=values).save(tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


def written() -> dict[str, Any]:
    estimate = {"value": 1.0, "standard_error": 0.5, "probes": 3, "method": "estimate"}
    return {"hessblocks": "Estimate", "fields": estimate}


CHANGES: dict[str, Any] = {
    "a list": [],
    "no kind": {"fields": {}},
    "an unknown kind": written() | {"hessblocks": "os.system"},
    "a kind that is no name": written() | {"hessblocks": ["Estimate"]},
    "no tensors": {
        "hessblocks": "DiagonalEstimate",
        "fields": {"values": "0", "standard_errors": "1"},
    },
    "a field is missing": written() | {"fields": {}},
    "a text for a number": written() | {"fields": written()["fields"] | {"value": "1"}},
    "another word": written() | {"fields": written()["fields"] | {"method": "guess"}},
    "one field more": written() | {"fields": written()["fields"] | {"more": 1}},
    "fields that are none": written() | {"fields": 3},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_a_result_is_refused_in_one_sentence(change: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(CHANGES[change]), encoding="utf-8")
    with pytest.raises(RunError, match=r"^\S+result\.json: .*; mend or remove it") as caught:
        hb.read(path)
    assert "\n" not in str(caught.value)


def eigenvalues(**given: Tensor) -> Eigenvalues:
    tensors = {"values": torch.ones(2), "residuals": torch.ones(2), "vectors": torch.ones(3, 2)}
    return Eigenvalues(**tensors | given, converged=True, products=1)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "given",
    [
        {"residuals": torch.ones(3)},
        {"vectors": torch.ones(3, 3)},
        {"vectors": torch.ones(3)},
        {"values": torch.ones(2).long()},
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(
    given: dict[str, Tensor], tmp_path: Path
) -> None:
    eigenvalues().save(tmp_path / "good.safetensors")
    assert hb.read(tmp_path / "good.safetensors").converged  # type: ignore[attr-defined]
    eigenvalues(**given).save(tmp_path / "bad.safetensors")
    with pytest.raises(RunError, match="not a result that hessblocks saved"):
        hb.read(tmp_path / "bad.safetensors")


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    eigenvalues().save(whole)
    (tmp_path / "half.safetensors").write_bytes(whole.read_bytes()[:-4])
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "pickle.json").write_bytes(pickle.dumps(print))
    (tmp_path / "half.json").write_text(json.dumps(written())[:-3], encoding="utf-8")
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    for name in ("half.safetensors", "model.safetensors", "pickle.json", "half.json", "deep.json"):
        with pytest.raises(RunError, match=name):
            hb.read(tmp_path / name)
    with pytest.raises(RunError, match=r"absent\.json: cannot be read"):
        hb.read(tmp_path / "absent.json")
    with pytest.raises(ArgumentError, match=r"\.csv holds rows alone"):
        hb.read(tmp_path / "rows.csv")


def test_a_bill_and_bits_that_hold_functions_are_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=11, context=6)
    problem = hb.Problem(model, torch.randint(0, 11, (3, 6)))
    bill = hb.price(
        problem, hb.change_each(model, hb.rounded(bits=4), hb.rounded(bits=2)), samples=8
    )
    for result in (bill, bill.allocate(bits=3)):
        result.save(tmp_path / "result.json")
        found = hb.read(tmp_path / "result.json")
        assert isinstance(found, Rows)
        assert alike(found.to_rows(), result.to_rows())
        assert repr(found) == repr(result)


def test_rows_are_a_table_too(tmp_path: Path) -> None:
    Rows(line="two", rows=[{"a": 1}, {"a": "x"}]).save(tmp_path / "rows.json")
    assert hb.read(tmp_path / "rows.json").to_rows() == [{"a": 1}, {"a": "x"}]
