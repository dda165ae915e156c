"""The picture that a page opens with: norms by layer, nats over bits."""

import math
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Drawn

import hessblocks as hb
from hessblocks.drawing import draw, page_picture
from hessblocks.figures import Figure
from hessblocks.report import pretrained_pages, write_curvature_report
from hessblocks.report.curvature_figures import layers_map
from hessblocks.report.pretrained_pages import _over_bits, price_headline
from hessblocks.report.templates import layer_map
from hessblocks.storage import load_curvature


@pytest.mark.usefixtures("blank")
def test_curvature_opens_with_norms_by_layer_and_ten_rows(tmp_path: Path) -> None:
    small = {"depth": 2, "width": 8, "heads": 2, "vocab_size": 11, "data": "random", "tokens": 6}
    hb.measure_curvature(
        "preset:pre-ln", out=tmp_path, probes=4, parts="outer", eigenvalues=0, **small
    )
    results = load_curvature(tmp_path)
    figure = layers_map(results)
    assert figure is not None
    (panel,) = figure.panels
    row = panel.values[panel.rows.index("attention.value")]
    norms = [results.norms[f"layers.{n}.attention.value"]["outer"].value for n in (0, 1)]
    assert row == pytest.approx([math.log10(norm) for norm in norms])
    page = write_curvature_report(tmp_path).read_text()
    first = page.partition('id="layers">')[2].partition("</h2>")[0]
    assert first.startswith(f"Curvature is largest in {results.by_size()[0]}".split("layers")[0])
    table = page.partition('aria-label="Norms of the groups"')[2].partition("</table>")[0]
    assert len(re.findall("<tr>", table)) == 1 + 10
    assert f"<summary>{len(results.norms) - 10} more</summary>" in page


def test_price_opens_with_nats_over_bits() -> None:
    costs = {"all, 3 bits": (3.0, 0.4), "all, 4 bits": (4.0, 0.1), "allocation": (3.5, 0.15)}
    rows = [
        {"name": name, "bits": bits, "forecast": nats, "measured": None}
        for name, (bits, nats) in [*costs.items(), ("all, 0.1 pruned", (None, 0.2))]
    ]
    figure = _over_bits({"together": rows})
    assert figure is not None
    points = {line.name: (line.x, line.y) for panel in figure.plots for line in panel.series}
    assert points == {
        "all alike, forecast": ((3.0, 4.0), (0.4, 0.1)),
        "allocation, forecast": ((3.5,), (0.15,)),
    }
    assert _over_bits({"together": rows[-2:]}) is None


def test_simplify_opens_with_nats_over_speed(tmp_path: Path) -> None:
    costs = {"removed": {"kl": 0.3, "kl_error": 0.01}, "healed": {"kl": 0.2, "kl_error": 0.01}}
    summary = {
        "before": {"prompt": 100.0, "decoding": 10.0},
        "after": {"prompt": 120.0, "decoding": 11.0},
        "texts": [costs],
        "updates": 5,
        "saved": 0.1,
        "kept": "healed",
    }
    drawn: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pretrained_pages, "drawn_picture", lambda figure, *_: drawn.append(figure) or ["svg"]
        )
        shown = pretrained_pages._front(tmp_path, summary)
        assert pretrained_pages._front(tmp_path, {"texts": []}) == {"front": []}
    assert shown["front_title"] == (
        "10.0% fewer parameters: 0.20 ± 0.01 nats per token, prompt at 1.20, decoding at 1.10 "
        "times the speed"
    )
    ((panel,),) = (figure.plots for figure in drawn)
    assert panel.y_scale == "linear"
    assert {line.name: (*line.x, *line.y) for line in panel.series} == {
        "original": (1.0, 0.0),
        "prompt, refitted": (1.2, 0.3),
        "prompt, healed": (1.2, 0.2),
        "decoding, refitted": (1.1, 0.3),
        "decoding, healed": (1.1, 0.2),
    }


def test_maps_have_colours_of_their_own_in_dark_mode() -> None:
    """Inverted, as pictures of lines are, the highest values would be darkest."""
    figure = layer_map({"bits": {"q": (3.0, 4.0), "k": (4.0, 3.0)}}, "Bits")
    assert figure is not None
    with_cells, plain = page_picture(draw(figure)), page_picture(Drawn(figsize=(1, 1)))
    assert b"prefers-color-scheme: dark" in with_cells
    assert b"prefers-color-scheme" not in plain


BILL = [
    {"place": f"model.layers.{place}.weight", "how": how, "forecast": n, "forecast_error": error}
    for place, how, n, error in (
        ("0.mlp.down_proj", "3 bits", 0.012, 0.001),
        ("0.mlp.down_proj", "4 bits", 0.010, 0.001),
        ("1.mlp.up_proj", "3 bits", 0.008, 0.0004),
        ("1.mlp.gate_proj", "3 bits", 0.002, 0.0004),
    )
]
"""Rows of summary.json, the dearest change first."""


def test_the_allocation_stands_between_its_neighbours() -> None:
    costs = {"all, 2 bits": (2.0, 2.2), "all, 3 bits": (3.0, 0.4), "all, 4 bits": (4.0, 0.1)}
    costs["allocation"] = (3.5, 0.15)
    rows = [
        {"name": name, "bits": bits, "forecast": nats, "measured": None, "outside": ""}
        | {"forecast_error": 0.0}
        for name, (bits, nats) in costs.items()
    ]
    summary = {"together": rows, "asked": 3.5, "bits": 3.5, "bill": BILL}
    first, dearest = pretrained_pages.price_headline(summary)
    assert dearest == (
        "Dearest alone, 3 bits: layers.0.mlp.down_proj 0.012 ± 0.001, "
        "layers.1.mlp.up_proj 0.0080 ± 0.0004."
    )
    assert first == (
        "At 3.5 bits on average the allocation is expected to cost 0.150 nats per token; "
        "all matrices would cost 0.400 at 3 bits, 0.100 at 4 bits."
    )


@pytest.mark.parametrize(
    ("asked", "words"), [(4.5, "At 4 bits of 4.5 asked"), (4.01, "At 4 bits on")]
)
def test_the_headline_of_price_says_which_bits_were_asked_for(asked: float, words: str) -> None:
    rows = [
        {"name": name, "forecast": 0.1, "forecast_error": 0.01, "measured": None, "outside": ""}
        for name in ("allocation", "all, 4 bits")
    ]
    summary = {"together": rows, "bits": 4.0, "asked": asked, "bill": BILL}
    assert price_headline(summary)[0].startswith(words)
