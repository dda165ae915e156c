"""Studies that train: every block builds and learns, loops are right, facts are judged fairly."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.tests.smoke_runs import run_a_point_of_each_kind
from hessblocks.cli.app import main
from hessblocks.data.corpus import Corpus
from hessblocks.figures import Panel, Series
from hessblocks.models.build import build
from hessblocks.settings.run_settings import ModelSettings, RunSettings, TrainingSettings
from hessblocks.storage.tables import Row
from hessblocks.training.trainer import RunTrainer, ShuffledPasses, spread
from hessblocks_studies.blocks_paper import ablations, mirrored_starts, speed
from hessblocks_studies.catalogue import find, names
from hessblocks_studies.data import texts
from hessblocks_studies.engine import POINTS, figure_fields
from hessblocks_studies.engine.captured_steps import capture_steps
from hessblocks_studies.runner import run_study
from hessblocks_studies.shared import trained_points as trained
from hessblocks_studies.shared.differences import UNDECIDED, difference
from hessblocks_studies.shared.step_times import PUBLISHED_SPEED, STEP_TIME
from hessblocks_studies.shared.trained_points import (
    BIGRAMS,
    GPT2,
    LOSS,
    SMOKE,
    TrainedSettings,
    run_settings,
    train,
    train_point,
)
from hessblocks_studies.shared.trained_summary import Runs, late, void_of
from hessblocks_studies.shared.variants import BASES, VALUE_SKIPINIT, VARIANTS, make_block
from tests.breadth import everyday

TRAINED = [
    name
    for name in names()
    if find(name).columns[: len(trained.TRAINED_COLUMNS)] == trained.TRAINED_COLUMNS
]
SETTINGS = RunSettings(
    preset="sas-p",
    seed=1,
    model=ModelSettings(depth=2, width=16, heads=2, mlp_width=32, context=16),
    training=TrainingSettings(
        steps=20, batch_size=4, learning_rate=3e-3, evaluate_every=10, evaluation_sequences=7
    ),
)


def model(variant: str = "sas-p"):
    torch.manual_seed(0)
    block = make_block(variant, width=16, heads=2, mlp_width=32)
    return build(block, depth=2, vocab_size=260, context=16)


ALIKE = re.compile(
    r"beta 0\.[125]|(identity|tied), beta 1|x0\.5|x2|LeakyReLU 0\.2|gains, "
    r"|attention gain|^(tied|normal|orthogonal) values$|^sas, (no|V)|no first|zero"
    r"|^(post-ln|parallel|op|v-skipinit|sas-p-no-norm)$"
)
"""Variants that differ by a number, a start or one slot from one that is trained every day."""


@pytest.mark.parametrize(
    "variant",
    [pytest.param(v, marks=[pytest.mark.slow] * bool(ALIKE.search(v))) for v in VARIANTS],
)
def test_every_variant_learns_and_all_its_parameters_do(corpus: Corpus, variant: str) -> None:
    made = model(variant)
    before = {name: parameter.detach().clone() for name, parameter in made.named_parameters()}
    first, *_, last = train(made, SETTINGS, corpus)
    assert last["value"] < 0.97 * first["value"]
    still = [name for name, p in made.named_parameters() if torch.equal(p, before[name])]
    assert still == [name for name, p in made.named_parameters() if not p.requires_grad]
    if not variant.endswith(VALUE_SKIPINIT):  # whose γ is a fixed 0
        assert still == []


def test_a_run_is_that_of_a_loop_by_hand(corpus: Corpus) -> None:
    made, theirs = model(), model()
    rows = train(made, SETTINGS, corpus)
    windows = corpus.windows("train", 16)
    order = list(ShuffledPasses(windows, 80, 1))
    decayed = [p for p in theirs.parameters() if p.ndim >= 2]
    others = [p for p in theirs.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=3e-3)
    for step in range(20):
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * (0.0 if step == 0 else (20 - step) / 19)
        batch = torch.stack([windows[i]["input_ids"] for i in order[4 * step : 4 * step + 4]])
        optimiser.zero_grad()
        theirs(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimiser.step()
    for (name, ours), (_, hand) in zip(
        made.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert torch.allclose(ours, hand, atol=1e-6), name
    kinds = [(row["step"], row["tokens"], row["quantity"]) for row in rows]
    assert kinds == [
        (0, 0, LOSS),
        *((step, 64 * step, name) for step in (10, 20) for name in (LOSS, "training_loss")),
    ]


def test_steps_are_captured_on_a_gpu_alone_and_change_no_loss(
    corpus: Corpus, request: pytest.FixtureRequest
) -> None:
    """Where there is no GPU a trainer's steps stay its own. Captured products are in TF32."""
    matmul: Any = torch.backends.cuda.matmul
    request.addfinalizer(partial(setattr, matmul, "fp32_precision", matmul.fp32_precision))
    matmul.fp32_precision = "tf32"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings, found = replace(SETTINGS, device=device), []
    own: list[bool] = []
    for change in (capture_steps, lambda _: None):

        def seen(trainer: RunTrainer, change: Callable[[RunTrainer], None] = change) -> None:
            change(trainer)
            own.append("training_step" in vars(trainer))

        rows = train(model(), settings, corpus, change=seen)
        found.append([row["value"] for row in rows])
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    assert own == [device == "cuda", False]


def test_losses_are_the_mean_over_the_held_out_windows(corpus: Corpus) -> None:
    made = model()
    held_out = corpus.windows("validation", 16)
    windows = [held_out[place] for place in spread(len(held_out), 7)]
    each = [
        float(made(input_ids=w["input_ids"][None], labels=w["labels"][None]).loss.detach())
        for w in windows
    ]
    assert train(made, SETTINGS, corpus)[0]["value"] == pytest.approx(math.fsum(each) / 7)


def test_a_diverging_run_ends_with_an_empty_loss(corpus: Corpus) -> None:
    made = model("pre-ln")
    with torch.no_grad():
        made.lm_head.weight.fill_(float("inf"))
    rows = train(made, SETTINGS, corpus)
    assert rows[-1]["value"] is None
    runs = Runs([{**row, "variant": "x", "seed": 0} for row in rows])
    assert runs.losses == {"x": {0: math.inf}}


def test_a_lost_model_is_not_observed(corpus: Corpus) -> None:
    made = model("pre-ln")
    with torch.no_grad():
        made.lm_head.weight.fill_(float("inf"))
    seen: list[int] = []
    rows = train(made, SETTINGS, corpus, lambda _, step: seen.append(step) or [])
    assert rows[-1]["value"] is None
    assert seen == []


def curve(variant: str, seed: int, losses: list[float | None]) -> list[Row]:
    return [
        {
            "quantity": LOSS,
            "variant": variant,
            "seed": seed,
            "step": 10 * place,
            "value": loss,
            "width": 64,
        }
        for place, loss in enumerate(losses)
    ]


def timed(variant: str, seconds: float, width: int = 64, seed: int = 0) -> list[Row]:
    """A repetition's median of 1.02 times its least."""
    row = {"variant": variant, "seed": seed, "width": width, "standard_error": 0.01}
    return [
        {**row, "quantity": STEP_TIME, "value": seconds},
        {**row, "quantity": speed.FASTEST + STEP_TIME, "value": seconds / 1.02},
    ]


def speed_verdicts(rows: list[Row]) -> dict[str, bool | None]:
    checks = find("speed").summarise(rows).checks
    return {check.fact.partition(" than")[0]: check.holds for check in checks}


def test_a_mean_curve_ends_where_a_seed_diverged() -> None:
    rows = curve("sas", 0, [4.0, 3.0, 2.0]) + curve("sas", 1, [4.0, 3.2, None])
    assert Runs(rows).mean_curve("sas") == [(0, 4.0, 0.0), (10, 3.1, pytest.approx(0.1))]


def test_time_to_the_loss_of_pre_ln_is_compared_seed_by_seed() -> None:
    slow = [row for seed in (0, 1) for row in curve("pre-ln", seed, [4.0, 3.0 + seed, 2.0 + seed])]
    slow += [row for seed in (0, 1) for row in curve(BIGRAMS, seed, [4.0 + seed])]
    fast = [row for seed in (0, 1) for row in curve("sas-p", seed, [4.0, 1.0 + seed, 0.5 + seed])]

    def clocks(*shares: float) -> list[Row]:
        """A repetition for each share, every one slower than the one before."""
        return [
            row
            for seed, share in enumerate(shares, start=1)
            for name, own in (("pre-ln", 1.0), ("sas-p", share))
            for row in timed(name, own * seed, seed=seed)
        ]

    times = clocks(0.9, 0.9, 0.9)
    time = "sas-p needs less time"
    assert speed_verdicts(slow + fast + times)[time] is True
    assert speed_verdicts(slow + curve("sas-p", 0, [4.0, 1.0, 0.5]) + times)[time] is None
    assert speed_verdicts(slow + fast + clocks(0.9, 0.1, 3.0))[time] is None
    assert speed_verdicts(slow + fast + clocks(0.9))[time] is None
    never = [row for seed in (0, 1) for row in curve("sas-p", seed, [4.0, 3.9, 3.8])]
    assert speed_verdicts(slow + never + clocks(1.1, 1.1, 1.1))[time] is False
    assert speed_verdicts(slow + never + clocks(1.1, 1.4, 0.9))[time] is None
    assert speed_verdicts(slow + never + times)[time] is None, "a tenth of the time is left"
    lost = curve("sas-p", 0, [4.0, 1.0, 0.5]) + curve("sas-p", 1, [4.0, None])
    assert speed_verdicts(slow + lost + times)[time] is None


def test_time_to_the_loss_of_each_pre_ln_has_its_own_verdict() -> None:
    """With usual queries pre-ln ends at 2.5, with zero ones at 0.5; sas-p, slower, at 1."""
    ends = {"pre-ln": 2.5, BASES[1]: 0.5, "sas-p": 1.0}
    rows = [row for name, end in ends.items() for s in (0, 1) for row in curve(name, s, [4.0, end])]
    rows += [row for seed in (0, 1) for row in curve(BIGRAMS, seed, [4.0])]
    clocks = [
        row
        for name in ("pre-ln", "sas-p")
        for seed, of_all in enumerate((1.0, 2.0, 3.0))
        for row in timed(name, of_all * (1.1 if name == "sas-p" else 1.0), seed=seed)
    ]
    found = {check.fact: check.holds for check in find("speed").summarise(rows + clocks).checks}
    facts = [f"sas-p needs less time than {base} to the last loss of {base}" for base in BASES]
    assert [found[fact] for fact in facts] == [True, False]


def test_a_block_is_faster_where_repetitions_agree_by_medians_and_by_the_fastest_steps() -> None:
    def verdict(*times: float, least: float = 1.0) -> bool | None:
        """Of sas-p; the fastest steps of pre-ln take `least` times as long."""
        rows = [
            {**row, "value": row["value"] * (least if "fastest" in row["quantity"] else 1)}
            for seed in range(3)
            for row in timed("pre-ln", 1.0, seed=seed)
        ]
        rows += [row for seed, time in enumerate(times) for row in timed("sas-p", time, seed=seed)]
        return speed_verdicts(rows)["a training step of sas-p takes less time"]

    assert verdict(0.90, 0.91, 0.90) is True
    assert verdict(1.10, 1.11, 1.10) is False
    assert verdict(0.80, 1.10, 0.90) is None
    assert verdict(0.90) is None
    assert verdict(0.90, 0.91, 0.90, least=0.8) is None


def test_a_speed_is_expected_on_the_published_side_of_1() -> None:
    rows = [row for name in ("pre-ln", "parallel", "sas", "sas-p") for row in timed(name, 1.0)]
    expected = {
        check.fact.removeprefix("a training step of ").partition(" ")[0]: check.expected
        for check in find("speed").summarise(rows).checks
        if "training step" in check.fact
    }
    assert {name: text.partition(" (")[0] for name, text in expected.items()} == {
        name: "above 1" if factor > 1 else "below 1"
        for name, factor in PUBLISHED_SPEED.items()
        if name in expected
    }
    assert "published 1.16" in expected["sas-p"]


def test_the_clock_of_a_curve_is_that_of_its_own_width() -> None:
    rows = curve("pre-ln", 0, [4.0, 3.0])
    rows += [*timed("pre-ln", 2.0), *timed("pre-ln", 9.0, width=128)]
    panel, speeds = find("speed").summarise(rows).figure.panels[:2]
    assert panel.series[0].x == (20.0,)
    assert speeds.series[0].x == (64.0, 128.0)


@pytest.mark.parametrize(("name", "place"), [("speed", 0), ("masked-lm", 1)])
def test_pre_ln_of_zero_queries_has_the_clock_of_pre_ln(name: str, place: int) -> None:
    rows = [row for base in BASES for row in curve(base, 0, [3.0, 2.0])]
    panel = find(name).summarise(rows + timed("pre-ln", 0.5)).figure.panels[place]
    assert isinstance(panel, Panel)
    assert {series.name: series.x for series in panel.series} == dict.fromkeys(BASES, (5.0,))


def test_wider_blocks_have_more_heads_of_at_most_64() -> None:
    for scale, size in trained.SIZES.items():
        assert size in [texts.widened(size, width) for width in speed.WIDTHS[scale]]
        assert all(width % texts.widened(size, width).heads == 0 for width in speed.WIDTHS[scale])
    sizes = [texts.widened(trained.LAPTOP, width) for width in speed.WIDTHS["laptop"]]
    assert [(size.width, size.heads, size.mlp_width) for size in sizes] == [
        (64, 4, 256), (128, 4, 512), (256, 4, 1024), (512, 8, 2048),
    ]  # fmt: skip


def test_a_block_has_one_name_at_both_depths() -> None:
    rows = [
        row
        for depth in (3, 12)
        for name in ("pre-ln", "sas", "sas-p")
        for row in curve(f"{name}, {depth} layers", 0, [4.0, 3.0])
    ]
    panels = find("depth").summarise(rows).figure.panels
    assert [[series.name for series in panel.series] for panel in panels] == [
        ["pre-ln", "sas", "sas-p"]
    ] * 2


@pytest.mark.parametrize(
    ("sas", "alike", "gains"),
    [((3.01, 2.51), True, True), ((3.01, 2.3), False, True), ((2.5, 2.51), True, False)],
)
def test_depth_is_judged_against_pre_ln_to_both_sides_and_against_less_depth(
    sas: tuple[float, float], alike: bool, gains: bool
) -> None:
    losses = {
        f"{name}, {depth} layers": [loss + 0.001 * seed for seed in range(3)]
        for name, found in (("pre-ln", (3.0, 2.5)), ("sas", sas), (BIGRAMS, (4.0, 4.0)))
        for depth, loss in zip((3, 12), found, strict=True)
    }
    rows = [
        row
        for name, seeds in losses.items()
        for seed, loss in enumerate(seeds)
        for row in curve(name, seed, [4.0, loss])
    ]
    holds = {check.fact: check.holds for check in find("depth").summarise(rows).checks}
    assert holds["sas trains like pre-ln per step at 12 layers"] is alike
    assert holds["sas gains from depth"] is gains


def test_paper_scale_has_the_published_text_and_steps() -> None:
    for name in TRAINED:
        (points, *_) = find(name).settings("paper", 1)
        assert points.size.data == "hub:codeparrot", name
    assert find("longer").settings("paper", 1)[0].size.steps == 120_000
    assert find("skipless").settings("paper", 1)[0].size.steps == 43_000


SETTINGS_OF_A_POINT = TrainedSettings(study="x", variant="sas", seed=0, size=SMOKE)


def test_a_points_settings_are_those_of_its_run() -> None:
    settings = replace(SETTINGS_OF_A_POINT, optimiser="sgd", decay="cosine")
    found = run_settings(settings)
    assert found.model == ModelSettings(depth=2, width=32, heads=2, mlp_width=128, context=32)
    assert found.training == TrainingSettings(
        steps=40, batch_size=8, learning_rate=3e-3, optimiser="sgd", schedule="cosine",
        weight_decay=0.0, evaluate_every=10, evaluation_sequences=32,
    )  # fmt: skip
    assert (found.preset, found.seed) == ("sas", 0)


@pytest.mark.slow
def test_runs_repeat_to_the_last_digit(corpus: Corpus) -> None:
    short = replace(SETTINGS_OF_A_POINT, size=replace(SMOKE, steps=4))
    assert train_point(short) == train_point(short)
    assert train_point(short) != train_point(replace(short, seed=1))


LOSSES = {
    "good": {0: 1.00, 1: 1.02, 2: 1.01},
    "bad": {0: 1.50, 1: 1.53, 2: 1.50},
    "noisy": {0: 0.60, 1: 1.90, 2: 1.20},
    "lonely": {0: 3.0},
    "broken": {0: math.inf, 1: 1.0, 2: 1.0},
}
RUNS = Runs(
    [
        row
        for variant, seeds in LOSSES.items()
        for seed, loss in seeds.items()
        for row in curve(variant, seed, [None if loss == math.inf else loss])
    ]
)


@pytest.mark.parametrize(
    ("slow", "fast", "verdict"),
    [
        ("bad", "good", True),
        ("good", "bad", False),
        ("noisy", "good", None),
        ("lonely", "good", None),
        ("broken", "good", None),
        ("absent", "good", None),
    ],
)
def test_slower_needs_more_than_the_spread_of_seeds(
    slow: str, fast: str, verdict: bool | None
) -> None:
    assert with_table(3.5).slower(slow, fast, "").holds is verdict
    for runs in (RUNS, Runs([])):  # without a table nothing is decided
        check = runs.slower(slow, fast, "")
        assert (check.holds, check.ours.endswith(UNDECIDED)) == (None, True)


@pytest.mark.parametrize("worse", [0.0, 0.4])
def test_the_base_that_a_verdict_is_about_must_have_learnt_too(worse: float) -> None:
    base = "pre-ln, zero queries"
    finals = {"pre-ln": 3.0, base: 3.0 + worse, "sas": 3.0 + worse, BIGRAMS: 3.4}
    rows = ended(finals)
    check = Runs(rows).match("sas", base, "a fact")
    assert check.holds is (None if worse else True)
    assert check.ours.endswith(void_of(base)) is bool(worse)


def with_table(table: float) -> Runs:
    """The same runs beside a bigram table and a pre-ln whose losses are about 3."""
    losses = {"pre-ln": {0: 3.0, 1: 3.01, 2: 2.99}, BIGRAMS: dict.fromkeys(range(3), table)}
    rows = [
        row
        for variant, seeds in (LOSSES | losses).items()
        for seed, loss in seeds.items()
        for row in curve(variant, seed, [None if loss == math.inf else loss])
    ]
    return Runs(rows)


def test_verdicts_count_only_where_pre_ln_has_learnt_more_than_pairs_of_tokens() -> None:
    long, short = with_table(3.5), with_table(3.2)
    assert [runs.controls[""].holds for runs in (long, short)] == [True, False]
    for compared in ("slower", "match"):
        check = getattr(long, compared)("bad", "good", "a fact")
        assert check.holds is (compared == "slower")
        void = getattr(short, compared)("bad", "good", "a fact")
        assert void.holds is None
        assert void.ours == f"{check.ours}; {void_of('pre-ln')}"
    assert short.close("bad", "good", "a fact", 0.6).holds is None
    unclear = with_table(3.305)
    check = unclear.slower("bad", "good", "a fact")
    assert (unclear.controls[""].holds, check.holds) == (None, None)
    assert check.ours.endswith("; undecided, as its control is")
    summary = short.summary("title", [], [short.slower("bad", "good", "a fact")])
    assert [check.holds for check in summary.checks] == [None, False]


def test_each_kind_of_run_has_its_own_control() -> None:
    losses = {
        f"{name}, {kind} layers": {seed: loss + 0.01 * seed for seed in range(3)}
        for kind, table in ((3, 3.1), (12, 3.9))
        for name, loss in (("pre-ln", 3.0), ("sas", 3.2), ("bigram table", table))
    }
    runs = Runs(
        [
            row
            for variant, seeds in losses.items()
            for seed, loss in seeds.items()
            for row in curve(variant, seed, [loss])
        ]
    )
    verdicts = [
        runs.slower(f"sas, {kind} layers", f"pre-ln, {kind} layers", "a fact").holds
        for kind in (3, 12)
    ]
    assert verdicts == [None, True]


def test_to_match_is_to_be_neither_worse_nor_better() -> None:
    """Losses within 0.05 nats of each other match."""
    values = {
        "one": {0: 3.00, 1: 3.01, 2: 2.99},
        "same": {0: 3.01, 1: 3.02, 2: 3.00},
        "better": {0: 2.80, 1: 2.81, 2: 2.79},
        "worse": {0: 3.20, 1: 3.21, 2: 3.19},
        "near": {0: 3.00, 1: 3.06, 2: 3.03},
    }
    verdicts = {
        name: difference(values, name, "one").matches("a fact", "", limit=0.05).holds
        for name in values
    }
    assert verdicts == {"one": True, "same": True, "better": False, "worse": False, "near": None}


def test_close_allows_what_it_says() -> None:
    runs = with_table(3.5)
    assert runs.close("bad", "good", "", 0.6).holds is True
    assert runs.close("bad", "good", "", 0.3).holds is False
    assert runs.close("bad", "good", "", 0.5).holds is None


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smoke scale, smaller still: a test runs all of them."""
    sizes = {"depth": 2, "width": 16, "mlp_width": 32, "context": 16, "steps": 8, "vocab_size": 260}
    small = replace(SMOKE, **sizes, evaluations=4, evaluation_sequences=8)
    steps = max(trained.SIZES["smoke"].steps // 5, small.evaluations)
    monkeypatch.setitem(trained.SIZES, "smoke", replace(small, steps=steps))
    monkeypatch.setattr(speed, "ROUNDS", 2)


WIDE = ("ladder", "restrict-updates", "speed", "ablations", "depth", "longer", "mirrored-starts")
"""Studies of dozens of runs; those whose points are of more than one kind measure one of each every
day."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in WIDE)) for n in TRAINED],
)
def test_a_study_runs_at_smoke_scale(corpus: Corpus, tiny: None, tmp_path: Path, name: str) -> None:
    result = run_study(name, out=tmp_path, scale="smoke", seeds=1)
    losses = [row for row in result.rows if row["quantity"] == LOSS]
    assert losses
    study = find(name)
    assert all(set(row) <= set(study.columns) for row in result.rows)
    for count in (0, 1, len(result.rows) // 2, len(result.rows)):
        summary = study.summarise(result.rows[:count])
        json.dumps([summary.to_dict(), figure_fields(summary.figure)], allow_nan=False)
    assert summary.figure.panels


@pytest.mark.usefixtures("corpus", "tiny", "blank")
def test_a_stored_point_moved_to_another_device_voids_its_differences(tmp_path: Path) -> None:
    before = {
        check.fact: check for check in run_study("skipless", out=tmp_path, scale="smoke").checks
    }
    store = tmp_path / "skipless" / POINTS
    lines = store.read_text(encoding="utf-8").splitlines()
    (place,) = (
        number
        for number, text in enumerate(lines)
        if '"variant":"skipless"' in text and '"seed":1' in text
    )
    assert lines[place].count('"device":"cpu"') == 1
    lines[place] = lines[place].replace('"device":"cpu"', '"device":"cuda"')
    store.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["report", str(tmp_path)]) == 0
    after = json.loads((tmp_path / "skipless" / "summary.json").read_text("utf-8"))["checks"]
    ours = {check["fact"]: check["ours"] for check in after}
    assert "differ in device" not in before["skipless trains slower than pre-ln"].ours
    assert (
        "void, since the runs differ in device (cpu, cuda)"
        in (ours["skipless trains slower than pre-ln"])
    )
    untouched = "v-skipinit trains slower than pre-ln"
    assert ours[untouched] == before[untouched].ours


KINDS: dict[str, Callable[[Any], object]] = {
    "ladder": lambda point: point.variant,
    "restrict-updates": lambda point: (bool(point.last_tied), point.rate_share is not None),
    "speed": lambda point: point.variant == trained.ALL,
}
"""What tells the points of a study apart that are measured in different ways."""


@pytest.mark.parametrize("name", everyday(KINDS, "restrict-updates", "speed"))
def test_a_point_of_each_kind_of_a_wide_study_is_measured(
    corpus: Corpus, tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(speed, "TIMED", ("pre-ln", "sas-p", GPT2))
    run_a_point_of_each_kind(find(name), KINDS[name], tmp_path, monkeypatch)


@pytest.mark.parametrize("start", mirrored_starts.STARTS)
def test_a_mirrored_start_is_a_linear_map(start: str, corpus: Corpus) -> None:
    torch.manual_seed(0)
    first, second = mirrored_starts.maps(start, 8, 16)
    product = second @ first
    if start == "identity":
        assert torch.allclose(product, torch.eye(8), atol=1e-5)
    if start == "orthogonal":
        assert torch.allclose(product @ product.T, torch.eye(8), atol=1e-5)
        assert not torch.allclose(product, torch.eye(8), atol=0.1)
    made, heard = model(mirrored_starts.NO_SKIP), []

    def change(trainer: RunTrainer) -> None:
        mirrored_starts.mirror(start, trainer)
        x, y = torch.randn(2, 5, 16)
        for layer in made.model.layers:
            values = [layer.mlp(z).detach() for z in (x, y, x + 2 * y)]
            heard.append(torch.allclose(values[0] + 2 * values[1], values[2], atol=1e-5))
        assert not torch.equal(made.model.layers[0].mlp.input.weight, torch.zeros(1))

    train(made, SETTINGS, corpus, change=change)
    assert heard == [True, True]


def ended(finals: Mapping[str, float]) -> list[Row]:
    """Three seeds of each variant, whose final losses are a thousandth apart."""
    return [
        row
        for name, loss in finals.items()
        for seed in range(3)
        for row in curve(name, seed, [loss + 0.001 * seed])
    ]


def tuned(variant: str, **losses: list[float]) -> list[Row]:
    """Runs at some rates, `_3` for a rate of 3, a loss a seed."""
    return [
        row
        for rate, seeds in losses.items()
        for seed, loss in enumerate(seeds)
        for row in curve(
            f"{variant}{trained.AT_RATE}{rate[1:]}", seed, [None if math.isinf(loss) else loss]
        )
    ]


GOOD, BAD = [2.00, 2.01, 2.00], [2.50, 2.52, 2.51]


def test_each_block_stands_with_its_best_rate() -> None:
    rows = tuned("pre-ln", _1=BAD, _3=GOOD, _10=[math.inf] * 3)
    rows += tuned("sas", _1=GOOD, _3=[1.50, 1.51, 1.50], _10=BAD)
    runs = Runs(rows)
    assert runs.losses == {
        "pre-ln": dict(enumerate(GOOD)),
        "sas": {0: 1.50, 1: 1.51, 2: 1.50},
    }
    assert runs.curve("sas", 1) == [(0.0, 1.51)]
    assert [(line["variant"], line["best_rate"],
        line["rate_settled"]) for line in runs.table()] == [
        ("pre-ln", 3.0, True), ("sas", 3.0, True),
    ]  # fmt: skip
    rows += [row for seed in range(3) for row in curve(BIGRAMS, seed, [4.0])]
    check = Runs(rows).slower("pre-ln", "sas", "a fact")
    assert (check.holds, check.ours) == (True, "+0.500 ± 0.000 [+0.500, +0.500] nats (3 seeds)")


def test_a_rate_at_the_end_of_the_grid_that_one_seed_found_better_leaves_the_best_open() -> None:
    """Nothing was tried beyond it."""
    runs = Runs(tuned("sas", _1=[2.1], _3=[2.0, 2.01, 2.0], _10=[1.99]))
    assert (runs.rates["sas"].best, runs.rates["sas"].settled) == (3.0, False)
    assert Runs(tuned("sas", _1=[2.1], _3=[2.0, 2.01, 2.0], _10=[2.01])).rates["sas"].settled


@pytest.mark.parametrize(("lower", "holds"), [(0.0, True), (0.018, None)])
def test_a_rate_that_one_seed_found_better_may_not_reverse_who_is_slower(
    lower: float, holds: bool | None
) -> None:
    """sas ends 0.01 above pre-ln at its rate; at another rate one seed of it ended `lower` below
    that."""
    finals = {"pre-ln": 2.0, BIGRAMS: 3.5}
    rows = ended(finals)
    rows += tuned("sas", _1=[2.5], _3=[2.01, 2.011, 2.012], _10=[2.01 - lower], _30=[2.6])
    check = Runs(rows).slower("sas", "pre-ln", "a fact")
    assert check.holds is holds
    other = Runs(rows).slower("pre-ln", "sas", "the other way")
    assert other.holds is (False if holds else None)


def test_blocks_of_which_none_has_learnt_more_than_pairs_match_nothing() -> None:
    finals = {"pre-ln": 3.0, BIGRAMS: 3.5, "a": 3.4, "b": 3.41, "c": 3.0}
    rows = ended(finals)
    runs = Runs(rows)
    for compared in (runs.match, runs.close):
        check = compared("a", "b", "")
        assert (check.holds, check.ours.endswith(void_of("a"))) == (None, True)
        assert compared("a", "c", "").holds is False


@pytest.mark.parametrize(("lower", "best"), [(0.019, 1.0), (0.021, 3.0)])
def test_one_seed_that_is_a_little_lower_elsewhere_makes_no_other_rate_the_best(
    lower: float, best: float
) -> None:
    """Of a grid whose first rate alone has all seeds; where all rates have as many, the lowest is
    the best."""
    once = tuned("sas", _1=[2.0, 2.01, 2.02], _3=[2.0 - lower], _10=[2.5], **{"_0.3": [2.4]})
    assert Runs(once).rates["sas"].best == best
    assert Runs(once).rates["sas"].settled is (best == 1.0)
    even = tuned("sas", _1=[2.0], _3=[2.0 - lower], _10=[2.5], **{"_0.3": [2.4]})
    assert Runs(even).rates["sas"].best == 3.0


def test_what_trains_slower_is_not_asked_of_a_block_that_has_learnt_nothing() -> None:
    """pre-ln has learnt, the faster of the two compared has not: their order says nothing."""
    finals = {"pre-ln": 3.0, BIGRAMS: 3.5, "a": 3.4, "b": 3.5, "c": 3.1}
    rows = ended(finals)
    runs = Runs(rows)
    assert runs.slower("b", "c", "").holds is True
    check = runs.slower("b", "a", "")
    assert check.holds is None
    assert check.ours.endswith("void, since a does not end 0.3 nats below the bigram table")


def test_each_of_two_kinds_must_have_its_control() -> None:
    """A gain from depth asks whether pre-ln has learnt at both depths."""
    finals = {
        "pre-ln, 3 layers": 3.0,
        "pre-ln, 12 layers": 3.4,
        "sas, 3 layers": 3.0,
        "sas, 12 layers": 2.9,
    }
    finals |= dict.fromkeys((f"{BIGRAMS}, 3 layers", f"{BIGRAMS}, 12 layers"), 3.5)
    rows = ended(finals)
    check = Runs(rows).slower("sas, 3 layers", "sas, 12 layers", "")
    assert (check.holds, check.ours.endswith(void_of("pre-ln, 12 layers"))) == (None, True)


def test_an_edit_of_a_block_has_the_rates_of_the_block() -> None:
    grid = trained.Grid(rates=(1.0,), own={"sas-p": (2.0,), "sas-p, slower": (3.0,)})
    names = ("sas-p", "sas-p, no first values", "sas-p, slower", "sas-p-no-norm", "sas")
    assert [grid.of(name) for name in names] == [(2.0,), (2.0,), (3.0,), (1.0,), (1.0,)]


def test_a_grid_elsewhere_has_the_own_rates_of_blocks_there_too() -> None:
    grid = trained.Grid(rates=(1.0, 3.0), own={"sas": (2.0,)}).times(0.1)
    assert (grid.of("sas"), grid.of("pre-ln")) == (pytest.approx((0.2,)), pytest.approx((0.1, 0.3)))


def test_rates_that_all_diverge_settle_nothing() -> None:
    runs = Runs(tuned("sas", _3=[math.inf], _1=[math.inf], _10=[math.inf]))
    assert runs.rates["sas"].settled is False


def test_the_best_rate_is_that_of_the_seeds_which_all_rates_have() -> None:
    """Over all its own seeds the rate 3 would be worse than the others."""
    rows = tuned("sas", _1=[2.2], _3=[2.0, 2.6, 2.6], _10=[2.1])
    runs = Runs(rows)
    assert (runs.rates["sas"].best, runs.rates["sas"].settled) == (3.0, True)
    assert list(runs.losses["sas"].values()) == [2.0, 2.6, 2.6]


@pytest.mark.parametrize("lacking", ["a rate above", "a rate below", "a seed"])
def test_a_verdict_waits_until_the_best_rate_lies_inside_the_grid(lacking: str) -> None:
    grids = {"_1": BAD, "_3": [1.5, 1.51, 1.5], "_10": BAD}
    if lacking == "a seed":
        grids |= {"_1": [2.5, 2.5, 2.5], "_3": [1.5]}
    else:
        del grids["_10" if lacking == "a rate above" else "_1"]
    rows = tuned("pre-ln", _1=BAD, _3=GOOD, _10=BAD) + tuned("sas", **grids)
    runs = Runs(rows)
    for check in (runs.slower("pre-ln", "sas", "a fact"), runs.match("sas", "pre-ln", "a fact")):
        assert check.holds is None
        assert check.ours.endswith(
            "; the best rate is not yet inside the grid, with all seeds, of sas"
        )


@pytest.mark.parametrize("name", ["skipless", "speed", "depth", "ablations", "masked-lm"])
def test_every_block_of_a_comparison_is_trained_at_several_rates(name: str) -> None:
    points = find(name).settings("laptop", 1)
    rates: dict[object, set[float]] = {}
    for point in points:
        if point.variant not in (*trained.REFERENCES, trained.ALL):
            key = (point.variant, point.size.depth, getattr(point, "decay", None))
            rates.setdefault(key, set()).add(point.size.learning_rate)
            assert point.name == f"{point.variant} at rate {point.size.learning_rate:g}"
        else:
            assert point.name == point.variant
    assert all(len(each) >= 3 for each in rates.values())
    several = [point for point in find(name).settings("laptop", 3) if point.seed > 0]
    own = {
        (p.variant, p.size.depth, getattr(p, "decay", None)): p.size.learning_rate
        for p in several
        if p.tuned
    }
    for key, rate in own.items():
        slow = 0.1 if key[0] in ablations.NO_MLP_SKIP else 1
        block = str(key[0]).partition(", ")[0]
        sas = 3e-2 if name == "masked-lm" else 1e-2
        others = {"v-skipinit": 3e-3, "skipless": 3e-3, "sas-p": 3e-2, "sas": sas}
        first = others.get(block, 1e-2) * slow
        if name == "ablations":
            first, *_ = ablations.OWN_RATES["laptop"].get(str(key[0]), (first,))
        assert rate == pytest.approx(first), "all seeds are at the likeliest rate alone"
    assert set(own) == set(rates)
    smoke = find(name).settings("smoke", 1)
    assert [point.name for point in smoke] == [point.variant for point in smoke]


def test_a_single_rate_is_that_of_the_block_and_needs_no_name() -> None:
    rates = {
        point.variant: point.size.learning_rate for point in find("ablations").settings("smoke", 1)
    }
    slow = {variant: rate for variant, rate in rates.items() if variant in ablations.NO_MLP_SKIP}
    assert slow == dict.fromkeys(ablations.NO_MLP_SKIP, pytest.approx(3e-4))
    assert {rate for variant, rate in rates.items() if variant not in slow} == {3e-3}


def test_a_late_panel_has_the_end_of_every_curve_and_the_whole_level() -> None:
    steps = tuple(float(step) for step in range(101))
    curves = [
        Series(name="sas", x=steps, y=steps, error=steps),
        Series(name="lost", x=(0,), y=(1,)),
    ]
    level = Series(name=BIGRAMS, x=(0.0, 100.0), y=(3.0, 3.0))
    panel = Panel(title="", x_label="", y_label="", series=(*curves, level))
    sas, table = late(panel, 0.2).series
    assert (table.x, table.y) == ((20.0, 100.0), (3.0, 3.0))
    assert sas.x == sas.y == sas.error
    assert (min(sas.x) >= 20, max(sas.x), len(sas.x)) == (True, 100.0, 12)


LIKE = {"device": "cpu", "precision": "float32", "start": "preset", "commit": "0123abc"}


def ends_of(losses: Mapping[str, float], **changed: object) -> list[Row]:
    """Final losses of variants over three seeds; `changed` holds for seed 1 of sas."""
    return [
        {"variant": variant, "seed": seed, "step": 8, "quantity": LOSS, "value": loss + seed / 100}
        | LIKE
        | (changed if (variant.partition(" at")[0], seed) == ("sas", 1) else {})
        for variant, loss in losses.items()
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("condition", "value"),
    [("device", "cuda"), ("precision", "tf32"), ("start", "mlp.input.std=1"), ("commit", "f")],
)
def test_runs_under_unlike_conditions_have_no_difference(condition: str, value: str) -> None:
    """One point moved to "cuda" is enough; the bigram table has no device."""
    losses = {"pre-ln": 3.0, "sas": 3.01, BIGRAMS: 3.6}
    assert Runs(ends_of(losses)).alike("sas", "pre-ln", "f").holds is True
    runs = Runs(ends_of(losses, **{condition: value}))
    check = runs.alike("sas", "pre-ln", "f")
    assert check.holds is None
    assert check.ours.startswith(f"void, since the runs differ in {condition} (")
    assert not runs.unlike("sas", BIGRAMS)


def test_rates_of_unlike_spacing_have_no_difference() -> None:
    losses = {
        f"{block} at rate {rate}": 3 + abs(place - 1) / 10
        for block, rates in (("pre-ln", (1e-2, 3e-2, 1e-1)), ("sas", (1e-2, 2e-2, 4e-2)))
        for place, rate in enumerate(rates)
    }
    assert Runs(ends_of(losses)).unlike("sas", "pre-ln") == "spacing of rates (0.3, 0.5)"
    assert not Runs(ends_of({**losses})).unlike("sas", "sas")


def test_a_trained_point_tells_its_conditions() -> None:
    settings = TrainedSettings(study="s", variant="sas", seed=0, size=replace(SMOKE, steps=2))
    found = trained.conditions_of(settings, "cuda", "tf32")
    assert {name: found[name] for name in ("device", "precision", "start")} == {
        "device": "cuda",
        "precision": "tf32",
        "start": "preset",
    }
    moved = replace(settings, slots=("attention.key.std=1", "mlp.input.std=0.125"))
    assert trained.conditions_of(moved, "cpu", "float32")["start"] == "mlp.input.std=0.125"
