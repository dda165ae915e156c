"""Comparisons at equal tokens, time and operations; comparisons that grow."""

import json
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hessblocks.data.corpus import Corpus
from hessblocks.errors import ArgumentError, RunError
from hessblocks.progress import Progress
from hessblocks.settings.run_settings import ComparisonSettings
from hessblocks.storage.examination import check_folder
from hessblocks.storage.lines import read_lines
from hessblocks.storage.tables import read_results
from hessblocks.training import comparison
from hessblocks.training.comparison import compare
from hessblocks.training.cost import update_flops
from hessblocks.training.folder import RunFolder
from hessblocks.training.preparation import build_model
from tests.training.helpers import COMPARISON, MODEL, TRAINING, complete, files, numbers, unsealed

UNMAPPED = replace(COMPARISON, curvature=None)
MATCHED = replace(UNMAPPED, match="time", presets=("pre-ln", "sas-p"))


def unmapped(folder: Path) -> tuple[list[Any], list[Any]]:
    """The numbers of a comparison without those of its maps."""
    losses, rows = numbers(folder)
    return losses, [row for row in rows if row.quantity != "frobenius_norm"]


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps of sas-p take 0.5 s, of pre-ln 1 s, of parallel 3 s; which presets were measured."""
    asked: list[str] = []
    seconds = {"pre-ln": 1.0, "sas-p": 0.5, "parallel": 3.0}

    def measured(settings: object, corpus: object) -> list[float]:
        asked.append(settings.preset)  # type: ignore[attr-defined]
        return [seconds[asked[-1]]] * 5

    monkeypatch.setattr("hessblocks.training.comparison.step_seconds", measured)
    return asked


def steps(out: Path) -> dict[str, int]:
    lines = read_lines(out / "metrics.jsonl")
    return {line["preset"]: line["step"] for line in lines}


def rates(out: Path, preset: str) -> list[float]:
    lines = read_lines(out / "runs" / f"{preset}-seed0" / "metrics.jsonl")
    return [line["learning_rate"] for line in lines if line["split"] == "train"]


@pytest.mark.parametrize("preset", ["pre-ln", "sas", "sas-p-no-norm", "modern"])
def test_operations_are_those_of_a_model_that_computes(corpus: Corpus, preset: str) -> None:
    settings = replace(COMPARISON, model=MODEL, presets=(preset,)).runs()[0]
    model = build_model(MODEL, preset, corpus.vocab_size, seed=0)
    model.set_attn_implementation("eager")
    tokens = torch.zeros(TRAINING.batch_size, MODEL.context, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens).loss.backward()
    assert update_flops(settings, corpus.vocab_size) == counter.get_total_flops()


def test_operations_follow_the_rule_of_six(corpus: Corpus) -> None:
    """6 a weight and token, and 12 · context · width a layer and token for scores and mix."""
    settings = replace(COMPARISON, model=MODEL, presets=("pre-ln",)).runs()[0]
    layer = 4 * MODEL.width**2 + 8 * MODEL.width**2
    weights = MODEL.depth * layer + MODEL.width * corpus.vocab_size
    token = 6 * weights + 12 * MODEL.depth * MODEL.context * MODEL.width
    tokens = TRAINING.batch_size * MODEL.context
    assert update_flops(settings, corpus.vocab_size) == token * tokens


def test_slots_may_be_a_list(corpus: Corpus) -> None:
    settings = replace(COMPARISON, model=MODEL, presets=("pre-ln",)).runs()[0]
    listed = replace(settings, model=replace(MODEL, slots=["attention.query.init=zeros"]))
    assert update_flops(listed, corpus.vocab_size) == update_flops(settings, corpus.vocab_size)


def test_equal_tokens_are_equal_steps(corpus: Corpus, undisturbed: Path, tmp_path: Path) -> None:
    complete(corpus, tmp_path / "out", replace(UNMAPPED, match="tokens"))
    assert numbers(tmp_path / "out") == unmapped(undisturbed)
    budget = json.loads((tmp_path / "out" / "budget.json").read_text())
    assert (budget["total"], budget["unit"]) == (12 * 4 * 16, "tokens")


@pytest.mark.slow
def test_equal_operations_give_each_preset_its_own_steps(corpus: Corpus, tmp_path: Path) -> None:
    out = tmp_path / "out"
    longer = replace(TRAINING, steps=40, evaluate_every=40, checkpoint_every=40)
    complete(corpus, out, replace(UNMAPPED, model=MODEL, match="flops", training=longer))
    cost = {
        row.preset: row.value
        for row in read_results(out / "results.csv")
        if row.quantity == "flops"
    }
    found = steps(out)
    assert found["pre-ln"] == 40
    assert found["sas-p"] == int(40 * cost["pre-ln"] / cost["sas-p"]) > 40
    assert found["sas-p"] * cost["sas-p"] <= 40 * cost["pre-ln"]
    assert json.loads((out / "budget.json").read_text())["steps"] == found


def test_equal_time_is_counted_from_the_measured_pace(
    corpus: Corpus, tmp_path: Path, pace: list[str]
) -> None:
    out = tmp_path / "out"
    complete(corpus, out, MATCHED)
    assert steps(out) == {"pre-ln": 12, "sas-p": 24}
    assert pace == ["pre-ln", "sas-p"] * 3
    budget = json.loads((out / "budget.json").read_text())
    assert (budget["reference"], budget["total"], budget["unit"]) == ("pre-ln", 12.0, "seconds")
    twelfth = rates(out, "sas-p")[len(rates(out, "pre-ln")) - 1]
    assert rates(out, "sas-p")[-1] < 1e-4 < twelfth  # the schedule ends at its own last step


@pytest.mark.slow
def test_a_resumed_comparison_uses_the_recorded_pace(
    corpus: Corpus, tmp_path: Path, pace: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(
            sys.modules["hessblocks.training.comparison"], "Run", None
        )  # killed when the budget is known
        with pytest.raises(TypeError):
            complete(corpus, out, MATCHED)
    pace.clear()
    complete(corpus, out, MATCHED)
    assert pace == []
    assert steps(out) == {"pre-ln": 12, "sas-p": 24}


@pytest.mark.slow
def test_a_further_preset_is_measured_beside_the_first_and_trained_alone(
    corpus: Corpus, tmp_path: Path, pace: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    complete(corpus, out, MATCHED)
    before = {name: (out / name).read_bytes() for name in files(out) if name.startswith("runs/")}
    pace.clear()
    fast = comparison.step_seconds

    def halved(settings: Any, corpus: Any) -> list[float]:
        """A machine that has become half as fast."""
        return [2 * seconds for seconds in fast(settings, corpus)]

    monkeypatch.setattr("hessblocks.training.comparison.step_seconds", halved)
    complete(corpus, out, replace(MATCHED, presets=("pre-ln", "parallel", "sas-p")))
    assert pace == ["pre-ln", "parallel"] * 3
    assert steps(out) == {"pre-ln": 12, "parallel": 4, "sas-p": 24}
    assert {name: (out / name).read_bytes() for name in before} == before
    with pytest.raises(ArgumentError, match=r"the budget of .* is that of pre-ln; name it first"):
        complete(corpus, out, replace(MATCHED, presets=("skipless", "pre-ln", "parallel", "sas-p")))


@pytest.mark.slow
def test_a_damaged_budget_is_named(corpus: Corpus, tmp_path: Path, pace: list[str]) -> None:
    complete(corpus, tmp_path / "out", MATCHED)
    (tmp_path / "out" / "budget.json").write_text("{")
    with pytest.raises(RunError, match=r"budget.json: damaged; remove the folder"):
        complete(corpus, tmp_path / "out", MATCHED)


@pytest.mark.slow
def test_the_pace_is_really_measured(corpus: Corpus, tmp_path: Path) -> None:
    complete(corpus, tmp_path / "out", replace(MATCHED, presets=("sas-p",)))
    budget = json.loads((tmp_path / "out" / "budget.json").read_text())
    assert 0 < budget["cost"]["sas-p"] < 10
    assert [name for name in files(tmp_path / "out") if "checkpoint" in name] == []


def test_an_unknown_match_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"--match: 'flop' is unknown; did you mean 'flops'"):
        ComparisonSettings(presets=("sas",), match="flop")


@pytest.mark.slow
def test_a_finished_comparison_takes_more_presets_and_seeds(
    corpus: Corpus, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    complete(corpus, out, replace(UNMAPPED, presets=("sas-p",)))
    before = (out / "runs" / "sas-p-seed0" / "results.csv").read_bytes()
    complete(corpus, out, UNMAPPED)
    assert numbers(out) == unmapped(undisturbed)
    assert (out / "runs" / "sas-p-seed0" / "results.csv").read_bytes() == before
    complete(corpus, out, replace(UNMAPPED, seeds=(0, 1)))
    assert json.loads((out / "config.json").read_text())["seeds"] == [0, 1]
    assert {(row.preset, row.seed) for row in read_results(out / "results.csv")} == {
        (preset, seed) for preset in COMPARISON.presets for seed in (0, 1)
    }


def test_a_folder_of_an_earlier_version_is_refused_and_stays(
    corpus: Corpus, undisturbed: Path, tmp_path: Path
) -> None:
    """A configuration without what could not be chosen then is one with other settings."""
    out = unsealed(Path(shutil.copytree(undisturbed, tmp_path / "out")))
    for path in [out / "config.json", *out.glob("runs/*/config.json")]:
        config = json.loads(path.read_text())
        del config["observation"]
        config.pop("match", None)
        path.write_text(json.dumps(config))
    before = numbers(out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ArgumentError, match=r"holds a run with other settings .* was None"):
            compare(COMPARISON, corpus, out, Progress())
    assert numbers(out) == before


def spoil_cost(out: Path) -> None:
    budget = json.loads((out / "budget.json").read_text())
    budget["cost"]["sas-p"] /= 2
    (out / "budget.json").write_text(json.dumps(budget))


@pytest.mark.parametrize("cost", ["-1", "0", "NaN", "1e999", '"much"', "null", "9" * 5000, "[1]"])
def test_a_budget_with_a_cost_that_is_none_is_damaged(
    corpus: Corpus, tmp_path: Path, pace: list[str], cost: str
) -> None:
    (tmp_path / "budget.json").write_text(
        f'{{"reference": "pre-ln", "cost": {{"pre-ln": 1.0, "sas-p": {cost}}}}}'
    )
    with pytest.raises(RunError, match=r"budget.json: damaged; remove the folder"):
        comparison.steps_of(MATCHED, corpus, RunFolder(tmp_path), Progress())


@pytest.mark.slow
def test_runs_of_an_edited_budget_of_time_are_refused(
    corpus: Corpus, tmp_path: Path, pace: list[str]
) -> None:
    out, settings = tmp_path / "out", MATCHED
    complete(corpus, out, settings)
    whole = (out / "budget.json").read_bytes()
    spoil_cost(out)
    with pytest.raises(ArgumentError, match=r"holds a run with other settings \(training.steps is"):
        complete(corpus, out, settings)
    (out / "budget.json").write_bytes(whole)
    complete(corpus, out, replace(settings, seeds=(0, 1)))
    assert {one.state for one in check_folder(out)} == {"whole"}
