"""Numbers and names as the terminal shows them."""

import pytest

from hessblocks.cli.terminal.console import show, significant, zero_group_lines
from hessblocks.report import ComparisonRow
from hessblocks.statistics import Average, Heterogeneity


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (15_632.0, 3, "15,600"),
        (487.0, 1, "500"),
        (0.01234, 2, "0.012"),
        (8.76, 3, "8.76"),
        (999.9, 3, "1,000"),
        (123_456_789.0, 3, "1.23e+08"),
        (0.0, 3, "0.00e+00"),
    ],
)
def test_significant_digits(value: float, digits: int, expected: str) -> None:
    assert significant(value, digits) == expected


def row(preset: str, *zero_groups: str) -> ComparisonRow:
    ratio = Heterogeneity(
        ratio=Average(value=1.0, standard_error=None, seeds=1),
        largest="head",
        smallest="head",
        zero_groups=zero_groups,
    )
    return ComparisonRow(
        preset=preset,
        seeds=(0,),
        parameters=1,
        tokens_per_second=None,
        peak_memory=None,
        initial_loss=None,
        final_loss=None,
        before=ratio,
        after=None,
        diverged=(),
    )


def test_zero_groups_are_named_once_for_all_blocks_that_share_them() -> None:
    keys = ("layers.0.attention.key", "layers.1.attention.key", "final.norm", "layers.1.norm")
    lines = zero_group_lines([row("pre-ln"), row("sas", *keys), row("sas-p", *keys)])
    assert lines == [
        "zero curvature before training, left out of the ratio: layers.{0,1}.attention.key, "
        "final.norm, layers.1.norm (sas, sas-p)"
    ]


def test_a_path_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    path = "report  " + "a folder/" * 20 + "[red]/:smile:/report.html"
    show({}, ["a line"], [path], as_json=False)
    assert capsys.readouterr().out == f"a line\n{path}\n"
