"""Results say themselves in one line, and are rows, tables, pages, files and pictures."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import hessblocks as hb
from hessblocks.curvature import parameter_groups
from hessblocks.errors import ArgumentError, RunError
from hessblocks.linalg import DenseOperator, DiagonalEstimate
from hessblocks.signal import propagate
from hessblocks.statistics import Heterogeneity
from hessblocks.storage import CurvatureResults, Tabular
from hessblocks.storage.tabular import opened

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
MATRIX = torch.diag(torch.tensor([4.0, 1.0, 0.5, -2.0]).double())


def measured(model: nn.Module, ids: Tensor) -> CurvatureResults:
    """What a run folder held, which is gone."""
    with TemporaryDirectory() as folder:
        return hb.measure_curvature(model, {"input_ids": ids}, probes=4, out=f"{folder}/run")


def priced(problem: hb.Problem) -> dict[str, Any]:
    """A bill and what is made of it."""
    edits = hb.rounded(bits=2), hb.rounded(bits=4)
    bill = hb.price(problem, hb.change_each(problem.model, *edits), samples=4)
    return {
        "bill": bill,
        "price": bill.sum(name for name in bill if "4 bits" in name),
        "check": bill.check(2),
        "allocation": bill.allocate(bits=3),
    }


@cache
def results() -> dict[str, Any]:
    """One of each kind."""
    torch.manual_seed(0)
    model = hb.build("pre-ln", depth=2, width=8, heads=2, vocab_size=11, context=6)
    ids = torch.randint(0, 11, (3, 6))
    problem, groups = hb.Problem(model, ids), parameter_groups(model)
    matrix = DenseOperator(MATRIX, symmetric=True)
    few = {name: groups[name] for name in list(groups)[:4]}
    return {
        "estimate": hb.trace(matrix, probes=8),
        "eigenvalues": hb.extreme_eigenvalues(matrix, 2),
        "diagonal": hb.diagonal(matrix, probes=8),
        "spectrum": hb.spectral_density(matrix),
        "map": hb.curvature_map(problem, few, "outer", probes=4),
        "norms": hb.group_norms(problem, few, probes=4),
        "uneven": hb.curvature_map(problem, few, "outer", probes=4).heterogeneity,
        "signal": propagate(model, ids),
        "problem": problem,
        "group": next(iter(groups.values())),
        "operator": hb.Hessian(problem),
        "attention": hb.exact_attention_curvature(model, ids),
        "last block": hb.exact_last_block(model, ids),
        "measured": measured(model, ids),
        **priced(problem),
    }


NAMES = (
    *("estimate", "eigenvalues", "diagonal", "spectrum", "map", "norms", "uneven"),
    *("signal", "problem", "group", "operator", "attention", "last block", "measured"),
    *("bill", "price", "check", "allocation"),
)
TABLES = (
    *("estimate", "eigenvalues", "diagonal", "spectrum", "map", "norms", "signal"),
    *("measured", "bill", "price", "check", "allocation"),
)
PLOTS = ("spectrum", "map", "norms", "signal", "bill", "check")


@pytest.mark.parametrize("name", NAMES)
def test_a_result_is_printed_as_one_short_line(name: str) -> None:
    shown = repr(results()[name])
    assert "\n" not in shown
    assert "tensor(" not in shown
    assert 5 < len(shown) < 320


def test_lines_say_what_was_found() -> None:
    found = results()
    assert repr(found["eigenvalues"]).startswith("eigenvalues 4, 1, 0.5, -2 (residuals up to ")
    assert "spectrum of 4 eigenvalues from -2 to 4, mean 0.875" in repr(found["spectrum"])
    assert "Hessian(" in repr(found["operator"])
    last = "exact, float32, cpu, groups query, key, value, projection, "
    assert repr(found["attention"]) == f"AttentionHessian({last.removesuffix(', ')})"
    assert repr(found["last block"]).startswith(f"LastBlockHessian({last}")
    assert "symmetric" in repr(found["operator"])
    assert ", rows 3, batches 1, loss causal-lm)" in repr(found["problem"])
    assert "times (95 % interval" in repr(found["uneven"])
    nothing = Heterogeneity(ratio=0.0, largest="", smallest="", zero_groups=("a",))
    assert repr(nothing) == "every norm is zero"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_rows_a_data_frame_a_page_and_a_file(name: str, tmp_path: Path) -> None:
    result: Tabular = results()[name]
    rows = result.to_rows()
    assert rows
    frame = result.to_dataframe()
    assert len(frame) == len(rows)
    assert set(frame.columns) == {column for row in rows for column in row}
    page = result._repr_html_()
    assert page.count("<tr") == 1 + min(len(rows), 20)
    result.save(tmp_path / "rows.csv")
    written = (tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()
    assert len(written) == 1 + len(rows)
    result.save(tmp_path / "rows.safetensors")
    kept = json.loads(opened(tmp_path / "rows.safetensors")[1]["hessblocks"])
    assert kept["hessblocks"] == ("Rows" if result.rows_alone else type(result).__name__)


def test_another_ending_is_refused_and_names_are_escaped(tmp_path: Path) -> None:
    class Odd(Tabular):
        def to_rows(self) -> list[dict[str, Any]]:
            return [{"<b>": "<script>", "value": None}] * 30

        def __str__(self) -> str:
            return "<odd>"

    with pytest.raises(ArgumentError, match=r"without tensors \.json, got"):
        Odd().save(tmp_path / "rows.xlsx")
    assert not list(tmp_path.iterdir())
    page = Odd()._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "None" not in page
    assert "and 10 more rows" in page


def test_without_pandas_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(RunError, match="pip install pandas"):
        results()["spectrum"].to_dataframe()
    monkeypatch.delitem(sys.modules, "pandas")
    monkeypatch.setattr("hessblocks.storage.tabular.find_spec", lambda name: None)
    assert results()["spectrum"]._repr_html_() is None


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_a_figure_of_its_own_or_drawn_on_given_axes(name: str) -> None:
    alone = results()[name].plot()
    assert isinstance(alone, Figure)
    ours = Figure()
    left, right = ours.subplots(1, 2)
    assert results()[name].plot(ax=right) is ours
    assert right.get_title(loc="left")
    assert right.has_data()
    assert not left.has_data()


def test_norms_are_the_dictionary_that_they_were() -> None:
    norms = results()["norms"]
    first = next(iter(norms))
    assert set(norms[first]) == {"outer", "functional", "full"}
    assert norms == dict(norms)
    assert norms.heterogeneity("full").ratio.value >= 1
    with pytest.raises(ArgumentError, match="part"):
        norms.heterogeneity("whole")


def test_a_long_diagonal_is_shown_without_making_all_its_rows() -> None:
    values = torch.zeros(3_000_000)
    long = DiagonalEstimate(values=values, standard_errors=values)
    page = long._repr_html_()
    assert page.count("<tr") == 21
    assert "and 2,999,980 more rows" in page
