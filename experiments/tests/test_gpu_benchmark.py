"""Every part of `python -m benchmarks gpu` runs here at a tiny size, so that it runs where a GPU
is."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import hessblocks as hb
from benchmarks import __main__ as command
from benchmarks import _gpu_parts as parts
from benchmarks import gpu
from benchmarks._gpu_clock import Clock
from benchmarks._gpu_figures import draw
from benchmarks.blocks import Sizes
from tests.pictures import empty_pictures

TINY = Sizes(depth=2, width=32, heads=2, vocab_size=64, context=8, batch=2)
SMALL = {"contexts": (8, 16), "tokens": 16, "rounds": 1, "compiler": "eager"}
warned = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")

compiled = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def measured(clock: Clock) -> dict[str, Any]:
    return gpu.measured(clock, published=TINY, small=TINY, gpt2=TINY, decoded=TINY, **SMALL)


@pytest.mark.slow
@warned
def test_products_kernels_and_decoding_are_measured() -> None:
    """Every part is a slow test, since steps are of every block and compiled too."""
    clock = Clock(1000)
    products = parts.products(clock, TINY, (8,), 8)
    assert products["8"]["Hessian"]["gradients"] > 0
    assert parts.kernels(clock, (8,), heads=2, width=8)["8"]["plain"]["peak_bytes"] > 0
    assert parts.decoding(clock, TINY)["sas-p"]["cache_bytes"] > 0
    assert not clock.failed


@pytest.mark.slow
@warned
@compiled
def test_every_part_is_measured_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_pictures(monkeypatch)
    found = measured(Clock(1000))
    assert not found["failed"]
    assert set(found["left out"]) <= {"tiled kernels"}
    for name in hb.PRESETS:
        assert found["decoding"][name]["tokens_per_second"] > 0
        if name != "pre-ln":
            assert found["steps"][name]["speed_over_pre_ln"] > 0
    assert found["decoding"]["sas-p"]["cache_bytes"] > 0
    assert found["steps"]["sas-p"]["peak_bytes"] < found["steps"]["post-ln"]["peak_bytes"]
    assert found["compiled steps"]["sas-p"]["speed_over_pre_ln"] > 0
    for context in ("8", "16"):
        assert found["products"][context]["Hessian"]["gradients"] > 0
        assert found["kernels"][context]["plain"]["peak_bytes"] > 0
    assert len(found["map"]["rows"]["full"]) == found["map"]["groups"] ** 2
    names = {path.name for path in draw(found, tmp_path)}
    assert names == {f"gpu_{name}.png" for name in ("steps", "products", "decoding", "map")}


@compiled
def test_speed_alone_runs_to_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = replace(TINY, depth=1)
    run = partial(
        gpu.speed, published=sizes, decoded=sizes, rounds=1, compiler="eager", seconds=1000
    )
    monkeypatch.setattr(gpu, "speed", run)
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gpu", "--only", "speed"])
    command.main()
    found = json.loads((tmp_path / "gpu_speed.json").read_text())["figures"]
    assert not found["failed"]
    assert not found["left out"]
    for name in ("sas-p", "sas"):
        for part in ("compiled steps", "steps"):
            assert found[part][name]["speed_over_pre_ln"] > 0
        assert found["decoding"][name]["tokens_per_second"] > 0
    assert [*found["compiled steps"]][1] == "sas-p"


@warned
def test_what_has_no_time_left_is_left_out_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(Clock(1))
    assert not found["failed"]
    assert "no time" in found["left out"]["steps of sas"]
    assert "steps of sas: left out: no time" in capsys.readouterr().out
    assert draw(found, Path("nowhere")) == []


@warned
def test_a_map_that_does_not_fit_says_what_a_column_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1000)
    monkeypatch.setattr(parts, "FIRST", 0)
    plain = clock.item

    def item(what: str, run: Any, expected: float = 0.0) -> Any:
        return plain(what, run, 1e9 if what == "map of all groups" else expected)

    monkeypatch.setattr(clock, "item", item)
    found = parts.full_map(clock, TINY)
    assert found is not None
    assert found["seconds_of_first_column"] > 0
    assert "rows" not in found
    assert "map of all groups" in clock.left_out


def test_a_part_that_fails_is_reported_and_the_next_goes_on() -> None:
    clock = Clock(1000)
    share = clock.share(0.5)
    assert share.item("broken", lambda: 1 / 0) is None
    assert share.item("whole", lambda: 1) == 1
    assert clock.failed == {"broken": "ZeroDivisionError: division by zero"}
    assert share.left < clock.left


def test_a_failed_part_is_status_1_and_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gpu"])
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "main", lambda: {"steps": 1, "failed": {"map": "why"}})
    with pytest.raises(SystemExit, match="gpu: failed: map"):
        command.main()
    assert (tmp_path / "gpu.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without cuda")
def test_without_cuda_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gpu"])
    with pytest.raises(SystemExit, match=r"^gpu: this machine has no usable CUDA device; .*\.$"):
        command.main()
