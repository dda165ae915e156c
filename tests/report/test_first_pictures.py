"""The picture that a page opens with: norms by layer, nats over bits."""

import math
import re
from pathlib import Path

import pytest

import hessblocks as hb
from hessblocks.report import write_curvature_report
from hessblocks.report.curvature_figures import layers_map
from hessblocks.report.pretrained_pages import _over_bits, price_headline
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


@pytest.mark.parametrize(
    ("asked", "words"), [(4.5, "At 4 bits of 4.5 asked"), (4.01, "At 4 bits on")]
)
def test_the_headline_of_price_says_which_bits_were_asked_for(asked: float, words: str) -> None:
    rows = [
        {"name": name, "forecast": 0.1, "forecast_error": 0.01, "measured": None, "outside": ""}
        for name in ("allocation", "all, 4 bits")
    ]
    summary = {"together": rows, "uniform": "4 bits", "bits": 4.0, "asked": asked}
    assert price_headline(summary)[0].startswith(words)
