"""Temperature and likeness of tokens: the closed form sees both, and the verdicts follow the
norms."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.tests.test_numbers import BATCH, dense_hessian
from hessblocks import drawing
from hessblocks.drawing import write_picture
from hessblocks.signal import propagate
from hessblocks.storage import Row
from hessblocks_studies.engine import figure_fields
from hessblocks_studies.engine.study import Check
from hessblocks_studies.gallery import read_figure
from hessblocks_studies.growth.growth_points import Size
from hessblocks_studies.our_questions import temperature
from hessblocks_studies.our_questions.temperature import STUDY, TemperatureSettings, layer
from hessblocks_studies.our_questions.temperature_laws import (
    UNIFORM,
    VOID,
    Curves,
    even_temperatures,
)
from hessblocks_studies.runner import run_study

BLOCK = "no norm"


def point(**fields: object) -> TemperatureSettings:
    plain = {"block": BLOCK, "temperature": 1.0, "apart": 1.0, "width": 6, "sums": 3, "seed": 0}
    return TemperatureSettings(**{**plain, **fields})


@pytest.mark.parametrize(("tau", "apart"), [(0.1, 1.0), (1.0, 1.0), (10.0, 1.0), (1.0, 0.3)])
@pytest.mark.parametrize("block", temperature.BLOCKS)
def test_measured_norms_are_those_of_dense_autodiff(
    block: str, tau: float, apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temperature, "addition_batch", lambda sums, seed: BATCH)
    monkeypatch.setattr(temperature, "seed_of", lambda *_: 7)
    settings = point(block=block, temperature=tau, apart=apart)
    rows = Curves(block=block, axis="temperature", rows=temperature.measure(settings)).rows
    model = layer(settings, 7)
    for group in temperature.GROUPS:
        (norm,) = (
            row["value"] for row in rows if (row.get("group"), row.get("part")) == (group, "full")
        )
        name = f"model.layers.0.attention.{group}.weight"
        assert norm == pytest.approx(float(dense_hessian(model, name, "").norm()), rel=1e-9)


def test_tokens_are_of_one_size_whatever_they_share() -> None:
    for apart, likeness in ((1.0, 0.0), (0.6, 0.64), (0.0, 1.0)):
        model = layer(point(apart=apart, width=512), 3)
        seen = propagate(model, BATCH["input_ids"], jacobian_steps=0).inputs
        assert seen.norm == pytest.approx(1, abs=0.1)
        assert seen.token_similarity == pytest.approx(likeness, abs=0.1)


def test_an_attention_without_preference_has_the_entropy_that_is_named() -> None:
    signal = propagate(layer(point(temperature=1e12), 3), BATCH["input_ids"], jacobian_steps=0)
    assert signal.layers[0].attention_entropy == pytest.approx(UNIFORM)


def made(
    query: Callable[[float], float],
    *,
    entropy: Callable[[float], float] = lambda tau: UNIFORM * tau / (0.5 + tau),
    alike: Callable[[float], float] = lambda apart: 1 - apart**2,
    power: float = 4.0,
    seeds: int = 3,
) -> list[Row]:
    """Rows of one block: queries and keys of any size at τ, as ε^power where tokens are alike,
    values 1."""
    rows: list[Row] = []
    for settings in STUDY.settings("smoke", seeds):
        tau, apart, seed = settings.temperature, settings.apart, settings.seed
        if settings.block != BLOCK:
            continue
        place: Row = {"block": BLOCK, "temperature": tau, "apart": apart, "seed": seed}
        own = query(tau) * (1 + 0.001 * seed)
        sizes = {
            ("query", "outer"): own * apart**power,
            ("query", "functional"): own * apart**3,
            ("query", "full"): own * apart**3,
            ("key", "full"): own * apart**3,
            ("value", "outer"): 1.0,
            ("value", "full"): 1.0,
        }
        rows += [
            {**place, "quantity": "attention_entropy", "value": entropy(tau)},
            {**place, "quantity": "likeness", "value": alike(apart)},
            *(
                {**place, "quantity": "frobenius_norm", "group": g, "part": p, "value": size}
                for (g, p), size in sizes.items()
            ),
        ]
    return rows


def shrinking(tau: float) -> float:
    """As argued: τ⁻² where attention is uniform, less and less below τ = 1."""
    return min(tau**-2, tau**8)


def growing(tau: float) -> float:
    """As measured: τ⁻² down to a temperature at which all is one-hot."""
    return tau**-2 if tau > 1e-5 else 0.0


def verdict(checks: list[Check], words: str) -> bool | None:
    (check,) = (check for check in checks if words in check.fact)
    return check.holds


def test_what_theory_says_holds() -> None:
    checks = list(STUDY.summarise(made(shrinking)).checks)
    assert {check.fact for check in checks if check.holds is not True} == {
        f"{BLOCK}: value over query block, at τ = 0.1 beside τ = 100"
    } | {check.fact for check in checks if not check.fact.startswith(BLOCK)}


def test_a_query_block_that_grows_towards_one_hot_attention_contradicts() -> None:
    checks = list(STUDY.summarise(made(growing)).checks)
    assert verdict(checks, f"{BLOCK}: query block at τ = 0.01 beside") is False
    assert verdict(checks, f"{BLOCK}: value over query block") is True
    assert verdict(checks, f"{BLOCK}: query and key blocks are 0 in the limit") is True


@pytest.mark.parametrize(("power", "holds"), [(4.0, True), (3.9, False), (4.1, False)])
def test_a_slope_may_be_neither_steeper_nor_flatter(power: float, holds: bool) -> None:
    checks = list(STUDY.summarise(made(growing, power=power)).checks)
    assert verdict(checks, f"{BLOCK}: outer query block, ε") is holds


def test_verdicts_are_void_where_the_limit_is_not_reached() -> None:
    warm = list(STUDY.summarise(made(growing, entropy=lambda tau: 0.5 * UNIFORM)).checks)
    own = [check for check in warm if check.fact.startswith(BLOCK)]
    void = [check for check in own if check.ours.endswith(VOID)]
    assert [check.holds for check in void] == [None] * 4
    assert [verdict(own, f"{BLOCK}: at τ = {tau}") for tau in ("10000", "0.01")] == [False, False]
    apart = list(STUDY.summarise(made(growing, alike=lambda apart: 0.9)).checks)
    assert sum(check.ours.endswith(VOID) for check in apart) == 4


def test_one_seed_decides_no_slope() -> None:
    checks = list(STUDY.summarise(made(growing, seeds=1)).checks)
    assert verdict(checks, f"{BLOCK}: query block, τ") is None
    assert verdict(checks, f"{BLOCK}: query block at τ = 0.01") is None


def test_the_even_temperature_is_where_the_curves_cross() -> None:
    rows = made(lambda tau: 400 * growing(tau), seeds=1)
    found = even_temperatures(Curves(block=BLOCK, axis="temperature", rows=rows))
    assert found == {0: pytest.approx(20)}
    assert even_temperatures(Curves(block="pre-ln", axis="temperature", rows=rows)) == {}


@pytest.mark.usefixtures("blank")
def test_the_study_runs_and_is_summed_up_from_any_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(temperature.TEMPERATURES, "smoke", (0.01, 1.0, 100.0))
    monkeypatch.setitem(temperature._SIZES, "smoke", Size(width=4, sums=1, seeds=1))
    result = run_study("temperature", out=tmp_path, scale="smoke")
    assert all(set(row) <= set(STUDY.columns) for row in result.rows)
    for count in (0, 1, 5, len(result.rows) // 2, len(result.rows)):
        summary = STUDY.summarise(result.rows[:count])
        json.dumps([summary.to_dict(), figure_fields(summary.figure)], allow_nan=False)
    assert len(summary.figure.panels) == 6
    shown = {series.name for panel in summary.figure.panels for series in panel.shown}
    assert "value, functional" in shown
    figure = read_figure(tmp_path / "temperature" / "figure.json")
    png = write_picture(drawing.draw(figure), tmp_path / "figures", "temperature")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert all(math.isfinite(row["value"]) for row in result.rows)
