"""What `measure_curvature` chooses where nothing is asked, by a budget, and how a run goes on with
it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import hessblocks as hb
from hessblocks.curvature import cost as costs
from hessblocks.errors import ArgumentError
from hessblocks.inspection import spending
from hessblocks.progress import Progress
from hessblocks.storage import read_results
from hessblocks.storage.examination import check_folder
from hessblocks.storage.store import POINTS

pytestmark = [
    pytest.mark.usefixtures("blank"),
    pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning"),
]
BATCH = {"input_ids": torch.randint(20, (2, 6), generator=torch.Generator().manual_seed(0))}


SHORT = [(4.9, 3), pytest.param(7.0, 2, marks=pytest.mark.slow), (13.0, 1)]
"""Seconds of a product and eigenvalues; the middle is paid rarely."""


class Notes(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"depth": 1, "width": 8, "heads": 2, "vocab_size": 20}
    return hb.build("pre-ln", context=6, **sizes)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What every product is said to take."""
    found = {"product": 0.001}

    def clocked(run: Any, device: object) -> float:
        run()
        return found["product"]

    monkeypatch.setattr(costs, "_clocked", clocked)
    return found


def measured(model: torch.nn.Module, out: Path, **fields: Any) -> tuple[Any, Notes]:
    notes = Notes()
    return hb.measure_curvature(model, BATCH, out=out, progress=notes, **fields), notes


def test_what_fits_the_budget_is_measured_by_probes_with_three_eigenvalues(
    model: torch.nn.Module, tmp_path: Path, seconds: dict[str, float]
) -> None:
    found, notes = measured(model, tmp_path)
    assert found.parts == ("outer", "functional", "full")
    assert found.config["curvature"]["probes"] == 16
    assert set(found.cells) == set(found.parts)
    (values,) = found.eigenvalues.values()
    exact = torch.linalg.eigvalsh(hb.Hessian(hb.Problem(model, BATCH)).dense())
    assert [one.value for one in values] == pytest.approx(exact.flip(0)[:3].tolist(), rel=1e-2)
    (line,) = notes.lines
    assert "; 3 eigenvalues of H: 120 products at most; in all about" in line


@pytest.mark.slow
def test_what_does_not_fit_is_sampled_with_its_map(
    model: torch.nn.Module, tmp_path: Path, seconds: dict[str, float]
) -> None:
    seconds["product"] = 3.0
    found, notes = measured(model, tmp_path)
    asked = found.config["curvature"]
    assert found.parts == ("outer",)
    assert asked["samples"] == 64
    assert set(found.cells) == {"outer"}
    assert {norm["outer"].method for norm in found.norms.values()} == {"sampled", "exact"}
    assert 24 <= asked["products"] < 120
    # two samples were timed, of which each later one is 0.4; all together keep to the minutes
    assert 3.0 * (64 * 0.4 + spending.STEP * asked["products"]) <= 60 * spending.MINUTES
    line, more = notes.lines
    groups = hb.parameter_groups(model).values()
    assert line.startswith(f"map: 64 sampled gradients for all {len(groups)} groups: 64 products")
    products = sum(min(16, group.size) for group in groups)
    assert 0 <= int(more.partition("--budget ")[2].split()[0]) - 3 * products / 60 < 1.1
    for word in ("--parts full", "--spectrum", "--eigenvalues"):
        assert word in more


@pytest.mark.parametrize(("product", "count"), SHORT)
def test_eigenvalues_come_before_more_samples_and_are_fewer_where_time_is_short(
    model: torch.nn.Module,
    tmp_path: Path,
    seconds: dict[str, float],
    product: float,
    count: int,
) -> None:
    seconds["product"] = product  # the fewest products take more than a third of the minutes
    found, _ = measured(model, tmp_path)
    asked = found.config["curvature"]
    assert 8 <= asked["samples"] < 64
    assert [len(values) for values in found.eigenvalues.values()] == [count]
    assert 8 * count <= asked["products"] < 10 * count
    taken = 0.4 * asked["samples"] + spending.STEP * asked["products"]
    assert product * taken <= 60 * spending.MINUTES


@pytest.mark.parametrize(
    ("left", "fewest", "found"),
    [(100, 1, (3, 30)), (22.5, 1, (2, 16)), (1, 1, (1, 8)), (-50, 1, (1, 8)), (1, 3, (3, 24))],
)
def test_a_machine_that_slows_down_finds_fewer(
    left: float, fewest: int, found: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 eigenvalues by 30 products were chosen; a product takes a second now, a step 1.4."""
    monkeypatch.setattr(spending.time, "perf_counter", lambda: 1000.0)
    chosen = spending.Spending(
        parts=("outer",), map=True, probes=16, samples=64, eigenvalues=3, products=30
    )
    assert spending.in_time(chosen, 1000.0 + left, 1.0, fewest=fewest) == found


class SlowsDown(Notes):
    """Makes products take a thousand times as long once the cost was told."""

    def __init__(self, seconds: dict[str, float]) -> None:
        super().__init__()
        self.seconds = seconds

    def note(self, text: str) -> None:
        super().note(text)
        self.seconds["product"] *= 1000


@pytest.mark.parametrize(("asked", "count"), [({}, 1), ({"eigenvalues": 2}, 2)])
def test_eigenvalues_that_time_took_are_said_and_those_asked_for_are_found(
    model: torch.nn.Module,
    tmp_path: Path,
    seconds: dict[str, float],
    asked: dict[str, Any],
    count: int,
) -> None:
    seconds["product"], notes = 4.9, SlowsDown(seconds)
    found = hb.measure_curvature(model, BATCH, out=tmp_path, progress=notes, **asked)
    (values,) = found.eigenvalues.values()
    assert len(values) == count
    assert ("1 of 3 eigenvalues" in notes.lines[-1]) == (not asked)


def test_fewer_samples_and_no_eigenvalues_where_even_these_take_too_long(
    model: torch.nn.Module, tmp_path: Path, seconds: dict[str, float]
) -> None:
    seconds["product"] = 20.0
    none, notes = measured(model, tmp_path)
    assert none.config["curvature"]["samples"] < 64
    assert not none.eigenvalues
    assert "eigenvalues of H" not in notes.lines[0]


@pytest.mark.parametrize(("product", "tried"), [(3.0, True), (1000.0, False)])
def test_all_parts_are_tried_where_they_are_not_far_beyond_the_budget(
    model: torch.nn.Module,
    tmp_path: Path,
    seconds: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    product: float,
    tried: bool,
) -> None:
    seconds["product"], parts = product, []
    right = costs.total_products

    def counted(problem: Any, vector: Any, block: Any) -> Any:
        parts.append(len(block.parts))
        return right(problem, vector, block)

    monkeypatch.setattr(costs, "total_products", counted)
    found, _ = measured(model, tmp_path)
    assert found.parts == ("outer",)
    # a product of all three, which needs second derivatives, is not taken for its time alone
    assert set(parts) == ({3} if tried else set())


def test_only_a_budget_of_the_users_own_is_refused(
    model: torch.nn.Module, tmp_path: Path, seconds: dict[str, float]
) -> None:
    seconds["product"] = 1000.0
    found, notes = measured(model, tmp_path / "own")
    assert found.config["curvature"]["samples"] == 8
    assert "minutes" in notes.lines[0]
    with pytest.raises(ArgumentError, match=r"budget: too small; 8 products"):
        measured(model, tmp_path / "given", budget=6.0)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_what_it_chose(
    model: torch.nn.Module,
    tmp_path: Path,
    seconds: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds["product"] = 3.0
    first, _ = measured(model, tmp_path)
    lines = (tmp_path / POINTS).read_bytes().splitlines(keepends=True)
    assert len(lines) == len(first.norms) + 1
    (tmp_path / POINTS).write_bytes(b"".join(lines[1:-1]))
    seconds["product"] = 1e-6
    again, notes = measured(model, tmp_path)
    assert again.norms == first.norms
    assert again.cells == first.cells
    assert again.eigenvalues == first.eigenvalues
    assert not notes.lines
    assert {one.state for one in check_folder(tmp_path)} == {"whole"}
    with pytest.raises(ArgumentError, match=r"other settings \(curvature.*asked.method"):
        measured(model, tmp_path, method="probes", parts="full")


def test_eigenvalues_and_spectrum_are_of_all_groups_or_of_each(
    model: torch.nn.Module, tmp_path: Path
) -> None:
    asked = {"parts": "full", "probes": 4, "groups": ["*.query", "*.key"], "spectrum": True}
    whole, notes = measured(model, tmp_path / "whole", eigenvalues=1, **asked)
    each, _ = measured(model, tmp_path / "each", eigenvalues=1, each_group=True, **asked)
    assert list(whole.spectra["full"]) == list(whole.eigenvalues) == [""]
    assert list(each.eigenvalues) == list(each.norms)
    assert set(each.spectra["full"]) <= set(each.norms)
    (top,) = whole.eigenvalues[""]
    assert all(one.value <= top.value * 1.01 for (one,) in each.eigenvalues.values())
    assert "spectrum: 400 products at most" in notes.lines[0]
    rows = read_results(tmp_path / "each" / "results.csv")
    assert [row.group for row in rows if row.quantity == "eigenvalue_residual"] == list(each.norms)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"eigenvalues": 10**6}, "--eigenvalues: 1000000 are more than the .* parameters"),
        ({"budget": 1e-6}, "budget: too small"),
        ({"memory_limit": 1e-6}, "memory_limit: one row of a batch needs"),
        ({"loss": "classification", "data": "random"}, "--loss: classification needs labelled"),
        (
            {"loss": "masked-lm", "data": "random", "tokens": 6},
            "--loss: masked-lm needs a tokenizer with a",
        ),
        ({"data": "nowhere.txt", "tokens": 6}, "has no tokenizer beside it"),
    ],
    ids=str,
)
def test_what_is_refused(
    model: torch.nn.Module, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        hb.measure_curvature(model, **{"data": BATCH, **fields}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow  # a thousand products are taken indeed
def test_a_budget_is_shared_by_all_that_is_asked(
    model: torch.nn.Module, tmp_path: Path, seconds: dict[str, float]
) -> None:
    seconds["product"] = 0.5
    asked = {"budget": 10.0, "parts": "outer", "method": "sampled", "groups": "layers.0.*"}
    found, _ = measured(model, tmp_path, spectrum=True, eigenvalues=2, **asked)
    spent = found.config["curvature"]
    spectrum = 0.5 * spent["steps"] * spent["spectrum_probes"]
    assert spectrum <= 200
    assert 0.5 * spent["samples"] * 0.7 + spectrum + 0.5 * spent["products"] <= 600
    assert json.loads((tmp_path / "config.json").read_text())["curvature"]["budget"] == 10


def test_memory_that_is_free_is_no_more_than_there_is() -> None:
    assert 0 < spending.free_memory("cpu") <= costs.torch.iinfo(torch.int64).max
