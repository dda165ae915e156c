"""docs/side_by_side.md: every block runs in no more lines than its page counts for the other tool,
and finds its numbers."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import curvlinops
import hessian_eigenthings
import pytest
import torch
from torch import Tensor, nn

import hessblocks as hb

PAGE = (Path(__file__).parents[2] / "docs" / "side_by_side.md").read_text(encoding="utf-8")
LINES = {"curvlinops": 8, "hessian-eigenthings": 4, "PyHessian": 5}
"""Of the other tool's own example, from model, loss and data to the last number, as the page says
in words."""
IN_WORDS = {8: "eight lines", 4: "four\nlines", 5: "five lines"}


def blocks() -> list[tuple[str, str]]:
    """Heading and code of each block."""
    found = []
    for section in re.split(r"^#+ ", PAGE, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        found += [(heading, code) for code in re.findall(r"```python\n(.*?)```", section, re.S)]
    return found


@cache
def ran() -> tuple[dict[str, Any], Tensor]:
    """What all blocks leave behind, and the Hessian by torch alone."""
    names: dict[str, Any] = {}
    for _, code in blocks():
        exec(compile(code, "docs/side_by_side.md", "exec"), names)
    model = names["model"]
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    x, y = (torch.cat(part) for part in zip(*names["data"], strict=True))

    def loss(*values: Tensor) -> Tensor:
        named = dict(zip(parameters, values, strict=True))
        logits = torch.func.functional_call(model, named, (x,))
        return nn.functional.cross_entropy(logits, y)

    grid = torch.autograd.functional.hessian(loss, tuple(parameters.values()))
    sizes = [p.numel() for p in parameters.values()]
    rows = [
        torch.cat([b.reshape(m, n) for b, n in zip(row, sizes, strict=True)], dim=1)
        for row, m in zip(grid, sizes, strict=True)
    ]
    return names, torch.cat(rows)


LONG = pytest.mark.slow
"""All the code of the page, ten seconds."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def theirs(kind: Any) -> Any:
    names, _ = ran()
    model = names["model"]
    return kind(model, names["loss"], list(model.parameters()), names["data"])


@pytest.mark.parametrize("tool", LINES)
def test_no_block_is_longer_than_the_example_of_the_other_tool(tool: str) -> None:
    code = next(code for heading, code in blocks() if heading == tool)
    assert len([line for line in code.splitlines() if line]) <= LINES[tool]
    section = PAGE.split(f"## {tool}\n")[1].partition("```python")[0]
    assert IN_WORDS[LINES[tool]] in section


@LONG
def test_the_products_are_those_of_curvlinops() -> None:
    names, matrix = ran()
    hessian, gauss_newton = (
        theirs(curvlinops.HessianLinearOperator),
        theirs(curvlinops.GGNLinearOperator),
    )
    torch.testing.assert_close(names["Hv"], hessian @ names["v"])
    torch.testing.assert_close(names["GGNv"], gauss_newton @ names["v"])
    torch.testing.assert_close(names["matrix"], matrix, rtol=1e-9, atol=1e-12)


@LONG
def test_a_function_has_the_hessian_of_its_module() -> None:
    names, matrix = ran()
    of_function = hb.Hessian(names["of_function"]).dense()
    torch.testing.assert_close(of_function, matrix, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(names["H_last"].dense(), matrix[-99:, -99:], rtol=1e-9, atol=1e-12)


@LONG
def test_eigenvalues_trace_and_density_are_those_of_hessian_eigenthings() -> None:
    names, matrix = ran()
    operator = hessian_eigenthings.HessianOperator(
        names["model"], names["data"], hessian_eigenthings.supervised_loss(names["loss"])
    )
    values = torch.linalg.eigvalsh(matrix)
    five = values[values.abs().argsort(descending=True)[:5]]
    found = hessian_eigenthings.lanczos(operator, k=5, max_iter=200, reorthogonalize=True, seed=0)
    for one in (names["top"].values, found.eigenvalues):
        torch.testing.assert_close(one.double().sort()[0], five.sort()[0], rtol=1e-5, atol=1e-8)
    exact = float(matrix.trace())
    other = hessian_eigenthings.trace(operator, num_matvecs=99, seed=0)
    assert abs(names["t"].value - exact) <= 4 * names["t"].standard_error
    assert other.estimate == pytest.approx(names["t"].value, rel=0.1)
    mean = names["density"].average(lambda values: values)
    assert abs(mean.value - exact / len(matrix)) <= 4 * mean.standard_error


@LONG
def test_the_numbers_of_pyhessians_script_are_those_of_the_assembled_hessian() -> None:
    names, matrix = ran()
    values = torch.linalg.eigvalsh(matrix)
    largest = values[values.abs().argmax()]
    assert float(names["largest"].values[0]) == pytest.approx(float(largest), rel=1e-8)
    assert abs(names["trace"].value - float(matrix.trace())) <= 4 * names["trace"].standard_error
    steps, losses = names["steps"].tolist(), names["losses"]
    middle = len(steps) // 2
    assert abs(steps[middle]) < 1e-6
    bend = (losses[middle - 1] - 2 * losses[middle] + losses[middle + 1]) / steps[middle + 1] ** 2
    assert bend == pytest.approx(float(largest), rel=0.02)


@LONG
def test_kfac_is_compared_with_what_it_stands_for() -> None:
    names, _ = ran()
    exact = names["GGN"].dense()
    kfac = names["kfac"] @ torch.eye(len(exact), dtype=torch.float64)
    error = float((exact - kfac).norm() / exact.norm())
    assert 0 < error < 1
    assert float(names["error"]) == pytest.approx(error, rel=0.3)
    weights = names["problem"].parameters
    step = dict(zip(weights, names["step"], strict=True))
    there = {name: w - 0.25 * step[name] for name, w in weights.items()}
    assert names["problem"].value(there) < names["problem"].value()
    assert [t.shape for t in names["step"]] == [p.shape for p in names["parameters"]]
