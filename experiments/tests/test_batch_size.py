"""The batch's size: labels of the model's own, norms of the exact blocks, and verdicts that follow the slopes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hessblocks.curvature import Problem, group_norms, parameter_groups
from hessblocks.data.corpus import Corpus
from hessblocks.data.python_code import load_corpus
from hessblocks.drawing import draw, write_picture
from hessblocks.figures import read_figure
from hessblocks.storage import Row
from hessblocks_studies.data import texts
from hessblocks_studies.engine.study import Check
from hessblocks_studies.fair_trial import batch_size
from hessblocks_studies.fair_trial.batch_size import (
    DRAWN,
    GROUPS,
    STUDY,
    TEXT,
    VOID,
    drawn_labels,
    norms,
    upper,
)
from hessblocks_studies.runner import run_study
from hessblocks_studies.shared.trained_points import make_model
from tests.data.helpers import write_code

BATCHES = (1, 2, 4, 8, 16)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HESSBLOCKS_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = load_corpus(write_code(tmp_path_factory.mktemp("code")), 260)
        patch.setattr(texts, "_text", lambda data, vocabulary: found)
        yield found


def model(**size: int):
    small = {"depth": 1, "width": 8, "heads": 2, "mlp_width": 8, "context": 6, "vocab_size": 20}
    point = STUDY.settings("smoke", 1)[0]
    made = make_model(replace(point, size=replace(point.size, **{**small, **size})))
    return made.double().eval()


WINDOWS = torch.randint(0, 20, (3, 6), generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
def test_measured_norms_are_those_of_products_with_all_unit_vectors() -> None:
    made, labels = model(), WINDOWS.roll(1, 0)
    rows = norms(made, WINDOWS[:2], labels[:2])
    groups = {name.rpartition(".")[2]: group for name, group in parameter_groups(made).items()}
    problem = Problem(made, {"input_ids": WINDOWS[:2], "labels": labels[:2]}, loss="causal-lm")
    truth = group_norms(problem, {name: groups[name] for name in GROUPS}, probes=64)
    assert len(rows) == 8
    for row in rows:
        assert row["value"] == pytest.approx(truth[row["group"]][row["part"]].value, rel=1e-8)
        assert (row["sequences"], row["method"]) == (2, "exact")


def test_labels_of_the_model_change_the_functional_part_alone() -> None:
    made = model()
    text = norms(made, WINDOWS, WINDOWS)
    other = norms(made, WINDOWS, drawn_labels(made, WINDOWS, seed=1))
    for one, two in zip(text, other, strict=True):
        same = one["value"] == pytest.approx(two["value"], rel=1e-12)
        assert same == (one["part"] == "outer")


def test_labels_are_drawn_from_what_is_predicted_of_the_next_token() -> None:
    made = model()
    with torch.no_grad():
        made.get_output_embeddings().weight.mul_(1e6)  # as good as certain
        likeliest = made(input_ids=WINDOWS).logits.argmax(-1)
    labels = drawn_labels(made, WINDOWS, seed=1)
    assert torch.equal(labels[:, 1:], likeliest[:, :-1])
    assert torch.equal(labels[:, 0], WINDOWS[:, 0])
    unsure = model(vocab_size=40)
    one, again, other = (drawn_labels(unsure, WINDOWS, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_slopes_are_fitted_from_the_root_of_the_largest_batch_on() -> None:
    assert list(upper(dict.fromkeys(BATCHES, 1.0))) == [4, 8, 16]
    assert list(upper(dict.fromkeys((1, 2, 4, 8), 1.0))) == [4, 8]


def made_up(functional: float = -0.5, drawn: float = -0.5, outer: float = 0.0) -> list[Row]:
    """Norms of three seeds as powers of the batch, with a scatter of 0.001 in the power; few tokens are off."""
    powers = {(TEXT, "functional"): functional, (DRAWN, "functional"): drawn}
    return [
        {
            "quantity": "frobenius_norm", "step": step, "labels": labels, "group": group, "part": part,
            "seed": seed, "sequences": n,
            "value": n ** (powers.get((labels, part), outer) + 0.001 * seed) * (9 if n < 4 else 1),
        }
        for step in (0, 20) for labels in (TEXT, DRAWN) for group in GROUPS
        for part in ("outer", "functional") for seed in range(3) for n in BATCHES
    ]  # fmt: skip


def verdicts(rows: list[Row]) -> dict[str, bool | None]:
    def words(check: Check) -> str:
        assert check.fact.endswith(("before training", "after training"))
        return check.fact.rpartition(",")[0].removeprefix("slope of ")

    checks = STUDY.summarise(rows).checks
    assert len(checks) == 14
    found = {words(check): check.holds for check in checks}
    assert len(found) == 7  # the same before and after
    return {name: verdict for name, verdict in found.items() if "value" not in name}


def test_residuals_that_cancel_are_told_from_those_that_do_not() -> None:
    control = "H_f where labels are drawn from the model, mean over groups"
    facts = ("the query block's H_f", "the query block's H_o")
    faster = "the query block's H_f falls faster than its H_o"
    names = (control, *facts, faster)

    def found(**powers: float) -> list[bool | None]:
        seen = verdicts(made_up(**powers))
        return [seen[name] for name in names]

    assert found() == [True, True, True, True]
    assert found(functional=-0.2) == [True, False, True, True]
    assert found(functional=-0.8) == [True, False, True, True]
    assert found(functional=-0.4, outer=-0.3) == [True, None, False, True]
    assert found(functional=0.2) == [True, False, True, False]
    assert found(drawn=-0.2) == [False, None, None, None]


def test_a_failed_control_says_so() -> None:
    checks = STUDY.summarise(made_up(drawn=-0.2)).checks
    assert sum(check.ours.endswith(VOID) for check in checks) == 12


def test_the_study_runs_and_is_summed_up_from_any_part(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(batch_size.SIZES["smoke"], steps=2, width=8, heads=2, mlp_width=8)
    size = replace(small, context=16, vocab_size=260, evaluation_sequences=8)
    monkeypatch.setitem(batch_size.SIZES, "smoke", size)
    monkeypatch.setitem(batch_size._BATCHES, "smoke", ((1, 2, 4), 5))
    result = run_study("batch-size", out=tmp_path, scale="smoke", seeds=2)
    assert all(set(row) <= set(STUDY.columns) for row in result.rows)
    for count in (0, 1, 5, len(result.rows) // 2, len(result.rows)):
        summary = STUDY.summarise(result.rows[:count])
        json.dumps([summary.to_dict(), summary.figure.to_dict()], allow_nan=False)
    assert {row.get("step") for row in result.rows} == {None, 0, 2}
    of_step = [row for row in result.rows if row.get("step") == 2 and row.get("labels")]
    kinds = ([row["value"] for row in of_step if row["labels"] == kind] for kind in (TEXT, DRAWN))
    same = [one == pytest.approx(two, rel=1e-9) for one, two in zip(*kinds, strict=True)]
    assert same == [True, False] * (len(same) // 2)
    assert [len(panel.shown) for panel in summary.figure.panels] == [8, 8, 8, 8]
    figure = read_figure(tmp_path / "batch-size" / "figure.json")
    png = write_picture(draw(figure), tmp_path / "figures", "batch-size")
    assert png.read_bytes().startswith(b"\x89PNG")
