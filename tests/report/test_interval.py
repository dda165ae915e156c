"""Heterogeneity's interval wherever it is shown: tables, headline, terminal."""

import re

import pytest

from hessblocks.cli.terminal import WIDE, comparison_table, show
from hessblocks.report import Comparison, compare_results, headline, summary
from hessblocks.report.page import comparison_cells
from hessblocks.storage import load_results
from tests.report.folders import Folder

SHOWN = re.compile(r"^[\d,.]+ \[[\d,.]+, [\d,.]+\]$")


@pytest.fixture
def results(tmp_path) -> Comparison:
    return compare_results(load_results(Folder().write(tmp_path)))


def test_the_tables_of_page_and_terminal_show_it(results, capsys) -> None:
    rows = compare_results(results).rows
    show({}, [comparison_table(results)], as_json=False, width=WIDE)
    printed = capsys.readouterr().out
    for row in rows:
        before, after = comparison_cells(row)[-2:]
        assert SHOWN.match(before)
        assert SHOWN.match(after)
        assert f"{before}  " in printed
        assert f" {after}" in printed


def test_over_several_seeds_it_is_the_error_of_the_mean(tmp_path) -> None:
    made = Folder(presets=("sas",), seeds=(0, 1))
    made.change(lambda row: row.update(value=2 * row["value"]), seed=1, group="layers.0.mlp.out")
    results = compare_results(load_results(made.write(tmp_path)))
    before = comparison_cells(results.rows[0])[-2]
    assert " ± " in before
    value, error = before.replace(",", "").split(" ± ")
    assert results.rows[0].before.ratio.value == pytest.approx(float(value), rel=0.05)
    assert results.rows[0].before.ratio.standard_error == pytest.approx(float(error), rel=0.2)


def test_the_headline_and_the_summary_have_it(results) -> None:
    """The headline has the ratio alone, since six brackets hide a sentence; the table is below."""
    (base,) = (row for row in compare_results(results).rows if row.preset == "pre-ln")
    assert f"{comparison_cells(base)[-1].split()[0]} in pre-ln" in " ".join(headline(results))
    for preset in summary(results)["presets"].values():
        ratio = preset["heterogeneity"]["after"]
        assert 1 <= ratio["low"] <= ratio["value"] <= ratio["high"]


def test_norms_without_an_error_have_no_interval(tmp_path) -> None:
    made = Folder(presets=("sas",))
    made.change(lambda row: row.update(standard_error=""), quantity="frobenius_norm")
    before = comparison_cells(compare_results(load_results(made.write(tmp_path))).rows[0])[-2]
    assert re.fullmatch(r"[\d,.]+", before)
