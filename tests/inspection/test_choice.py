"""What `measure_curvature` chooses by default, and how a run goes on with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import hessblocks as hb
from hessblocks.curvature import cost as costs
from hessblocks.errors import ArgumentError, RunError
from hessblocks.inspection import spending
from hessblocks.progress import Progress
from hessblocks.storage import read_results
from hessblocks.storage.store import POINTS

pytestmark = [
    pytest.mark.usefixtures("blank"),
    pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning"),
]
BATCH = {"input_ids": torch.randint(20, (2, 6), generator=torch.Generator().manual_seed(0))}


class Notes(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.steps: list[int] = []
        self.total = 0

    @contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        self.total = total or self.total
        with super().stage(name, detail, total):
            yield

    def step(self, done: int, loss: float | None) -> None:
        self.steps.append(done)

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"depth": 1, "width": 8, "heads": 2, "vocab_size": 20}
    return hb.build("pre-ln", context=6, **sizes)


def measured(model: torch.nn.Module, out: Path, **fields: Any) -> tuple[Any, Notes]:
    notes = Notes()
    return hb.measure_curvature(model, BATCH, out=out, progress=notes, **fields), notes


def test_a_small_model_is_measured_whole_with_three_eigenvalues(
    model: torch.nn.Module, tmp_path: Path
) -> None:
    results, notes = measured(model, tmp_path)
    assert results.parts == ("outer", "functional", "full")
    assert results.config["curvature"]["probes"] == 16
    assert set(results.cells) == set(results.parts)
    (values,) = results.eigenvalues.values()
    exact = torch.linalg.eigvalsh(hb.Hessian(hb.Problem(model, BATCH)).dense())
    assert [one.value for one in values] == pytest.approx(exact.flip(0)[:3].tolist(), rel=1e-2)
    line, told = notes.lines
    assert told.startswith("in all, start")
    products = sum(min(16, group.size) for group in hb.parameter_groups(model).values())
    gradients = costs.SECOND_ORDER * products
    assert f"{products} products, about {gradients:.0f} gradients" in line
    whole = gradients + 120 * costs.WHOLE_PRODUCT
    assert f"; 3 eigenvalues of H: 120 products at most; in all about {whole:.0f} gradients" in line


def test_a_large_model_is_sampled_with_its_map_and_three_eigenvalues(
    model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending, "SMALL", 100)
    results, notes = measured(model, tmp_path)
    chosen = results.config["curvature"]
    assert results.parts == ("outer",)
    assert (chosen["samples"], chosen["eigenvalues"], chosen["products"]) == (64, 3, 30)
    assert set(results.cells) == {"outer"}
    assert {norm["outer"].method for norm in results.norms.values()} == {"sampled", "exact"}
    assert [len(values) for values in results.eigenvalues.values()] == [3]
    line, told = notes.lines
    assert told.startswith("in all, start")
    groups = hb.parameter_groups(model)
    assert line.startswith(f"map: 64 sampled gradients for all {len(groups)} groups: 64 products")


def test_eigenvalues_asked_for_have_forty_products_each_in_a_large_model_too(
    model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending, "SMALL", 100)
    results, _ = measured(model, tmp_path, eigenvalues=1)
    assert results.config["curvature"]["products"] == 40


def test_without_second_derivatives_h_o_is_sampled_and_a_line_says_why(
    model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RunError("no second derivative of this attention")

    monkeypatch.setattr(hb.Hessian, "_matmat", fails)
    results, notes = measured(model, tmp_path)
    assert results.parts == ("outer",)
    assert not results.eigenvalues
    assert notes.lines[1:2] == ["no eigenvalues: no second derivative of this attention"]


def test_eigenvalues_that_do_not_fit_the_memory_are_reported(
    model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending.Subjects, "vectors", lambda self: 5)
    results, notes = measured(model, tmp_path / "default")
    assert not results.eigenvalues
    assert "no eigenvalues: 6 vectors of" in notes.lines[1]
    with pytest.raises(ArgumentError, match=r"--eigenvalues: 6 vectors of .* do not fit"):
        measured(model, tmp_path / "three", eigenvalues=3)


@pytest.mark.parametrize("small", [10**7, 100], ids=["probes", "sampled"])
def test_the_bar_counts_the_gradients_that_were_told(
    model: torch.nn.Module, tmp_path: Path, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending, "SMALL", small)
    _, notes = measured(model, tmp_path)
    told = int(notes.lines[0].partition("in all about ")[2].split()[0])
    assert abs(notes.total - told) <= 1
    assert notes.steps == sorted(notes.steps)
    assert notes.total - 1 <= notes.steps[-1] <= notes.total
    assert len(set(notes.steps)) > 20  # samples and products of eigenvalues count one by one


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_what_it_chose(
    model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as less:
        less.setattr(spending, "SMALL", 100)
        first, _ = measured(model, tmp_path)
    lines = (tmp_path / POINTS).read_bytes().splitlines(keepends=True)
    assert len(lines) == len(first.norms) + 1
    (tmp_path / POINTS).write_bytes(b"".join(lines[1:-1]))
    again, notes = measured(model, tmp_path)
    assert again.norms == first.norms
    assert again.cells == first.cells
    assert again.eigenvalues == first.eigenvalues
    assert all(line.startswith("in all, start") for line in notes.lines)  # nothing is chosen again
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
        ({"memory_limit": 1e-6}, "memory_limit: one row of a batch needs"),
        ({"loss": "classification", "data": "random"}, "--loss: classification needs labelled"),
        (
            {"loss": "masked-lm", "data": "random", "tokens": 6},
            "--loss: masked-lm needs a tokenizer with a",
        ),
        ({"data": "nowhere.txt", "tokens": 6}, "has no tokenizer"),
    ],
    ids=str,
)
def test_what_is_refused(
    model: torch.nn.Module, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        hb.measure_curvature(model, **{"data": BATCH, **fields}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_memory_that_is_free_is_no_more_than_there_is() -> None:
    assert 0 < spending.free_memory("cpu") <= torch.iinfo(torch.int64).max
