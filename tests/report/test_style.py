"""Marks that can be told apart, axes that have a zero, numbers as text."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hessblocks.blocks.presets import PRESETS
from hessblocks.figures import (
    PHONE,
    Figure,
    Heatmap,
    Panel,
    log_axis,
    page_text,
    plain_math,
)
from hessblocks.figures.style import BESIDE, MARKS, marks
from hessblocks.figures.text import number
from hessblocks.report.captions import short_names, with_error, with_interval
from hessblocks.report.pretrained_pages import bits_map
from hessblocks.statistics import Average
from hessblocks_studies.engine import figure_fields
from hessblocks_studies.gallery import read_figure

ALIAS = "pre-ln, zero queries"
"""What the studies call `pre-ln-zero`."""
OWN = {name: mark for name, mark in {**MARKS, **BESIDE}.items() if name != ALIAS}


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_preset_has_its_own_mark() -> None:
    assert set(PRESETS) == set(MARKS)
    assert marks([ALIAS, "other"])[ALIAS] == MARKS["pre-ln-zero"]
    assert marks([ALIAS, *(f"other {n}" for n in range(12))])["other 1"] != MARKS["pre-ln-zero"]


@pytest.mark.parametrize("trait", ["colour", "marker", "dashes"])
def test_no_two_share_a_trait(trait) -> None:
    assert len({getattr(mark, trait) for mark in OWN.values()}) == len(OWN)


def test_colours_stand_out_from_white() -> None:
    assert min(1.05 / (luminance(mark.colour) + 0.05) for mark in OWN.values()) > 2


NIGHT = ((-0.574, 1.43, 0.144), (0.426, 0.43, 0.144), (0.426, 1.43, -0.856))
"""What `hue-rotate(180deg)` multiplies a colour by (Filter Effects, section 9.1.6)."""


def at_night(colour: str) -> str:
    """A colour as page.css filters it for a dark page."""
    inverted = [0.91 - 0.82 * int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    turned = [sum(a * b for a, b in zip(row, inverted, strict=True)) for row in NIGHT]
    return "#" + "".join(f"{round(255 * min(max(one, 0), 1)):02x}" for one in turned)


def test_colours_stand_out_from_a_dark_page() -> None:
    paper = luminance(at_night("#ffffff")) + 0.05
    assert min((luminance(at_night(mark.colour)) + 0.05) / paper for mark in OWN.values()) > 3


@pytest.mark.parametrize("name", ["sas", "gpt2", "bigram table"])
def test_who_has_a_mark_keeps_it_in_any_company(name: str) -> None:
    alone, among = marks([name]), marks(["mine", "pre-ln", name, "other"])
    assert alone[name] == among[name] == OWN[name]
    assert len({mark.colour for mark in among.values()}) == 4


def test_beside_blocks_nobody_wears_the_mark_of_a_block() -> None:
    worn = {(mark.colour, mark.marker) for mark in OWN.values()}
    mine = marks(["pre-ln", *(f"other {place}" for place in range(20))])
    assert not worn & {(mine[name].colour, mine[name].marker) for name in mine if name != "pre-ln"}
    assert {(mark.colour, mark.marker) for mark in marks(["query", "value"]).values()} <= worn


@pytest.mark.parametrize("count", [len(OWN) + 1, 17, 40])
def test_no_two_of_many_names_look_alike(count: int) -> None:
    names = [*OWN, *(f"other {place}" for place in range(count - len(OWN)))]
    looks = marks(names)
    assert {name: looks[name] for name in OWN} == OWN
    assert len({(look.colour, look.marker) for look in looks.values()}) == count
    assert len({(look.colour, look.dashes) for look in looks.values()}) == count


@pytest.mark.parametrize(
    ("values", "lowest", "highest", "zero"),
    [
        ([2.0, 30.0], 0, 2, False),
        ([0.0, 0.05, 7.0], -2, 1, True),
        ([5.0], 0, 1, False),
        ([100.0], 2, 3, False),
        ([0.0], 0, 1, True),
    ],
)
def test_a_log_axis_spans_whole_decades_and_has_a_place_for_zero(
    values, lowest, highest, zero
) -> None:
    found = log_axis(values)
    low, high = found["limits"]
    assert found["y_scale"] == ("symlog" if zero else "log")
    assert low == pytest.approx(-(10.0**lowest) / 3 if zero else 10.0**lowest)
    assert 10.0**highest < high < 2 * 10.0**highest
    assert all(low <= value <= high for value in values)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345, "12,300"),
        (999.9, "1,000"),
        (5.0678, "5.07"),
        (0.0123456, "0.0123"),
        (0, "0"),
        (4e-7, "4e-07"),
    ],
)
def test_numbers_have_three_digits(value, text) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (5.0678, 0.021, "5.07 ± 0.02"),
        (631.2, 71.4, "631 ± 71"),
        (10_000, 1131, "10,000 ± 1,100"),
        (25.1, 3.4, "25 ± 3"),
        (8.9e37, 2e38, "8.9e+37 ± 2e+38"),
        (5.0678, None, "5.07"),
        (631.2, 1e-12, "631"),
    ],
)
def test_a_value_is_shown_to_the_digit_of_its_error(value, error, text) -> None:
    assert with_error(Average(value=value, standard_error=error, seeds=1)) == text


def test_small_errors_have_an_exponent_and_what_is_not_known_a_dash() -> None:
    def shown(value: float, error: float) -> str:
        return with_error(Average(value=value, standard_error=error, seeds=1))

    assert shown(1.234e-7, 3e-9) == "1.23e-07 ± 3e-09"
    assert shown(4.8e-6, 7e-7) == "4.8e-06 ± 7e-07"
    assert shown(-2e-10, 5e-8) == "-2e-10 ± 5e-08"
    assert shown(0.000004, 0.000002) == "0.000004 ± 0.000002"
    assert shown(0.5, math.nan) == shown(math.nan, 0.1) == "–"


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (8.214, 7.06, 9.88, "8.2 [7.1, 9.9]"),
        (15_632, 14_711, 16_688, "15,600 [14,700, 16,700]"),
        (1.207, 1.0, 1.426, "1.21 [1.00, 1.43]"),
        (1.1, 1.0, 35.2, "1 [1, 35]"),
        (8.9e37, 2e37, 3e38, "8.9e+37 [2e+37, 3e+38]"),
        (25.1, 25.1, 25.1, "25.1"),
        (25.1, 25.1 - 1e-8, 25.1, "25.1"),
    ],
)
def test_an_estimate_is_shown_to_the_digit_of_its_interval(value, low, high, text) -> None:
    assert with_interval(value, low, high) == text


def test_names_of_the_same_group_are_gathered() -> None:
    groups = [f"layers.{layer}.attention.key" for layer in (0, 1, 2, 5)]
    assert short_names([*groups, "layers.1.norm", "head"]) == (
        "layers.0-2.attention.key, layers.5.attention.key, layers.1.norm, head"
    )


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Loss $L$ (nats per token)", "Loss <i>L</i> (nats per token)"),
        (
            "$H=H_o+H_f$ of <b>",
            "<i>H</i> = <i>H</i><sub>o</sub> + <i>H</i><sub>f</sub> of &lt;b&gt;",
        ),
        (r"$\max\|H\|_F\,/\,\min\|H\|_F$", "max‖<i>H</i>‖<sub>F</sub> / min‖<i>H</i>‖<sub>F</sub>"),
        (r"$\alpha_\mathrm{SA}$", "<i>α</i><sub>SA</sub>"),
        (plain_math("costs $5 & $6"), "costs $5 &amp; $6"),
    ],
)
def test_mathematics_is_the_same_on_the_page(text, html) -> None:
    assert page_text(text) == html


STORED = sorted(Path(__file__).parents[2].glob("docs/results/*-figure.json"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_figure_is_read_and_stays_as_it_is(path) -> None:
    again = figure_fields(read_figure(path))
    assert json.loads(json.dumps(again)) == json.loads(path.read_text())


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_block_has_its_own_mark_in_every_figure(path) -> None:
    """In all panels: a name has one mark, and nobody else has that of a block."""
    figure = read_figure(path)
    looks = marks(figure.names)
    blocks = OWN.keys() & looks.keys()
    assert {name: looks[name] for name in blocks} == {name: OWN[name] for name in blocks}
    others = {
        (look.colour, look.marker) for name, look in looks.items() if name not in (*OWN, ALIAS)
    }
    assert not blocks or not others & {(mark.colour, mark.marker) for mark in OWN.values()}


def test_small_marks_keep_their_colours_in_a_picture() -> None:
    """The page of findings has one small point of each of these blocks."""
    pixels = np.asarray(Image.open(STORED[0].with_name("findings.png")).convert("RGB"))
    for name in ("skipless", "op", "v-skipinit", "modern", "parallel", "sas-p-no-norm"):
        colour = [int(OWN[name].colour[at : at + 2], 16) for at in (1, 3, 5)]
        assert np.abs(pixels.astype(int) - colour).max(-1).min() <= 6, name


def test_a_phone_has_one_column_and_maps_with_their_layers_below_each_other() -> None:
    bars = Panel(title="", x_label="", y_label="", series=())
    values = ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    map_ = Heatmap(title="", label="", values=values, rows=("q", "k"), columns=("0", "1", "2"))
    wide = Figure(title="", caption="", panels=(bars, map_), columns=2, size=(9.0, 3.0))
    shown = wide.for_phone()
    assert (shown.columns, shown.size[0], shown.panels[0]) == (1, PHONE, bars)
    assert shown.panels[1] == map_.turned
    assert map_.turned.values == ((1.0, 4.0), (2.0, 5.0), (3.0, 6.0))
    assert map_.turned.turned == map_


def test_figures_were_stored() -> None:
    assert len(STORED) > 10


def test_a_map_of_equal_bits_is_not_drawn() -> None:
    def shares(*bits: float) -> list[dict[str, float | str]]:
        return [{"place": f"layers.{n}.mlp.up.weight", "bits": b} for n, b in enumerate(bits)]

    assert bits_map(shares(5.0, 5.0)) is None
    assert bits_map(shares(5.0, 4.0)) is not None
