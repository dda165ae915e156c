"""docs/curvature.md and products.md say what is: code prints what is shown, figures are those of
the benchmark."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "curvature.md").read_text(encoding="utf-8")
PRODUCTS = (ROOT / "docs" / "products.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+\.?\d*(?:e-?\d+)?")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.mark.slow  # all the code of the page, ten seconds
@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
def test_the_ten_lines_print_what_is_shown_and_the_rest_runs_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code, *rest), (shown,), printed = blocks("python"), blocks("text"), io.StringIO()
    assert len([line for line in code.splitlines() if line]) <= 11
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/curvature.md", "exec"), names)
    for other in rest:
        exec(compile(other, "docs/curvature.md", "exec"), names)
    assert {path.name for path in tmp_path.iterdir()} == {
        "norms.png",
        "norms.csv",
        "norms.json",
    }
    assert NUMBER.sub("#", printed.getvalue()) == NUMBER.sub("#", shown)
    pairs = zip(NUMBER.findall(printed.getvalue()), NUMBER.findall(shown), strict=True)
    for got, expected in pairs:
        assert float(got) == pytest.approx(float(expected), rel=0.3)


def test_the_costs_are_those_of_the_benchmark() -> None:
    path = ROOT / "benchmarks" / "results" / "curvature_products.json"
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    time, memory = figures["time"], figures["memory"]
    rows = {
        "a product with H": time["ours, Hessian"],
        "a product with H_o": time["ours, OuterProduct"],
        "a product with H_f": time["ours, Functional"],
        "building the graph that products replay": time["ours, build"],
        "replay with closed forms (ours)": time["ours, Hessian"],
        "forward over reverse, 16 probes vmapped": time["forward over reverse, 16 probes vmapped"],
        "curvlinops 3.0.1, a matrix of 16 columns": time["curvlinops, matrix"],
        "curvlinops 3.0.1, one vector": time["curvlinops, one vector"],
        "hessian-eigenthings 1.0.0a5, one vector": time["hessian-eigenthings, one vector"],
    }
    for name, value in rows.items():
        assert f"| {name} | {value:.2f}" in PRODUCTS, name
    assert time["ours, Hessian"] <= 2.0
    assert time["ours, Hessian"] < time["curvlinops, matrix"]
    assert time["ours, Hessian"] < time["hessian-eigenthings, one vector"]
    for part in ("Hessian", "OuterProduct", "Functional"):
        assert f"{memory[f'{part} / gradient']:.2f}" in PRODUCTS
        assert memory[f"{part} / gradient"] <= 3
