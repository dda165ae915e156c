"""`hessblocks curvature` on tiny models: numbers against the dense Hessian, resumption, bad
input."""

import csv
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, GPT2Model

import hessblocks as hb
from hessblocks.curvature.frobenius_norms import group_norms
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.curvature.products import passes
from hessblocks.curvature.products.graph import BatchGraph
from hessblocks.curvature.products.problem import Problem
from hessblocks.errors import ArgumentError
from hessblocks.inspection import curvature_run
from hessblocks.report import PAGES
from hessblocks.storage import load_curvature, read_results, write_results
from hessblocks.storage.store import POINTS
from tests.breadth import everyday
from tests.cli.helpers import Outcome, Shell, sentence
from tests.report.few_pictures import draw_no_curvature
from tests.training.helpers import files

PRESET = ["--depth", "2", "--width", "8", "--heads", "2", "--vocab-size", "260"]
SMALL = ["--sequences", "2", "--tokens", "6", "--probes", "4", "--eigenvalues", "0"]
FEW = ["--groups", "layers.1.attention.*", "--parts", "full"]
LONG = pytest.mark.slow
"""Three seconds for each further source."""

pytestmark = [
    pytest.mark.usefixtures("blank"),
    pytest.mark.filterwarnings("default::hessblocks.curvature.AttentionBackendWarning"),
]


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Figures take seconds; one test draws them."""
    if "with_figures" not in request.fixturenames:
        page = replace(PAGES["curvature"], write=lambda out: out / "report.html")
        monkeypatch.setitem(PAGES, "curvature", page)


def measure(shell: Shell, source: object, out: Path, *words: object) -> Outcome:
    return shell("curvature", source, "--data", shell.code, *SMALL, "--out", out, *words)


def preset(shell: Shell, out: Path, *words: object) -> Outcome:
    return measure(shell, "preset:pre-ln", out, *PRESET, *words)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def gpt2(folder: Path, vocabulary: int = 300, kind: Any = GPT2LMHeadModel) -> Path:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_embd=8, n_head=2, vocab_size=vocabulary, n_positions=16,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    kind(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2(tmp_path_factory.mktemp("model") / "tiny-gpt2")


@pytest.mark.parametrize("level", ["role", "head", "tensor"])
def test_every_group_that_is_printed_can_be_typed_again(
    shell: Shell, tmp_path: Path, level: str
) -> None:
    sas = ["preset:sas", tmp_path / "out", *PRESET, "--level", level]
    outcome = measure(shell, *sas)
    assert outcome.status == 0, outcome.errors
    lines = outcome.output.splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.split()[:1] == ["group"])
    printed = [line.split()[0] for line in lines[start + 2 :][:10]]
    zeros = re.search(r"zero curvature \(outer\): (.*)", outcome.output)
    every = load_curvature(sas[1]).by_size()
    assert printed == every[:10]
    assert f"the 10 largest of {len(every)} groups; the page has them all" in outcome.output
    model = hb.build("sas", depth=2, width=8, heads=2, vocab_size=260, context=6)
    problem = Problem(model, {"input_ids": torch.zeros(1, 6, dtype=torch.int64)}, "causal-lm")
    groups = parameter_groups(model, level)
    sizes = [{n: g.size for n, g in parameter_groups(model, x).items()} for x in ("role", "head")]
    for name in every:
        assert list(hb.select_groups(groups, name)) == [name]
        if len({size.get(name) for size in sizes} - {None}) > 1:  # what no head has alone
            with pytest.raises(ArgumentError, match="has other entries at level 'head'"):
                hb.Hessian(problem, name)
        else:
            assert hb.Hessian(problem, name).rows.views == groups[name].views
    if level == "role":
        assert zeros
        assert zeros[1] == "layers.0-1.attention.key"
        typed = ["--groups", zeros[1], "--parts", "outer"]
        assert measure(shell, sas[0], tmp_path / "two", *PRESET, *typed).status == 0
        found = load_curvature(tmp_path / "two")
        assert list(found.norms) == list(hb.select_groups(groups, "key"))  # the role's name
        assert hb.OuterProduct(problem, zeros[1]).shape == (2 * 64, 2 * 64)


def test_the_run_folder_holds_every_group_part_and_pair(shell: Shell, tmp_path: Path) -> None:
    outcome = preset(shell, tmp_path / "out", "--map", "--groups", "layers.0.*")
    assert outcome.status == 0, outcome.errors
    assert "heterogeneity of full" in outcome.output
    told = [line for line in outcome.errors.splitlines() if "processor time" in line]
    assert len(told) == 1
    words = r"in all, start and page included, about [\d.]+ (s|minutes) of processor time at most"
    assert re.fullmatch(words, told[0])
    rows = table(tmp_path / "out" / "results.csv")
    norms = [row for row in rows if row["quantity"] == "frobenius_norm"]
    groups = {row["group"] for row in norms}
    assert {row["stage"] for row in rows} == {""}
    assert len(norms) == 3 * len(groups)
    assert {row["layer"] for row in norms} == {"0"}
    cells = table(tmp_path / "out" / "map.csv")
    assert list(cells[0]) == [
        "row", "column", "part", "value", "standard_error", "method",
    ]  # fmt: skip
    assert len(cells) == 3 * len(groups) ** 2
    diagonal = {
        (cell["row"], cell["part"]): cell["value"]
        for cell in cells
        if cell["row"] == cell["column"]
    }
    for row in norms:
        assert float(row["value"]) == pytest.approx(float(diagonal[row["group"], row["part"]]))
    assert {row["quantity"] for row in rows} == {
        "frobenius_norm", "loss", "heterogeneity", "heterogeneity_low", "heterogeneity_high",
        "off_diagonal_share",
    }  # fmt: skip
    whole = {row["quantity"]: float(row["value"]) for row in rows if row["part"] == "full"}
    names = ("heterogeneity_low", "heterogeneity", "heterogeneity_high")
    assert 1 <= whole[names[0]] < whole[names[1]] < whole[names[2]]


def test_sampled_gradients_fill_the_same_tables_and_a_folder_goes_on(
    shell: Shell, tmp_path: Path
) -> None:
    out, words = tmp_path / "out", ["--parts", "outer", "--map"]
    outcome = preset(shell, out, *words)
    assert outcome.status == 0, outcome.errors
    groups = len((out / POINTS).read_bytes().splitlines())
    line = f"map: 16 sampled gradients for all {groups} groups: 16 products, about"
    assert line in outcome.errors
    asked = json.loads((out / "config.json").read_text())["curvature"]
    assert asked["samples"] == 16
    cells, rows = table(out / "map.csv"), table(out / "results.csv")
    assert len(cells) == groups**2
    assert {cell["method"] for cell in cells} == {"sampled"}
    own = {cell["row"]: cell["value"] for cell in cells if cell["row"] == cell["column"]}
    norms = [row for row in rows if row["quantity"] == "frobenius_norm"]
    sampled = [row for row in norms if row["method"] == "sampled"]
    assert len(sampled) < len(norms) == groups  # the last attention is exact
    assert all(float(row["value"]) == pytest.approx(float(own[row["group"]])) for row in sampled)
    lose_a_group(out)
    assert preset(shell, out, *words).status == 0
    assert table(out / "map.csv") == cells
    by_probes = preset(shell, tmp_path / "probes", *words, "--method", "probes")
    assert by_probes.status == 0
    assert {cell["method"] for cell in table(tmp_path / "probes" / "map.csv")} <= {
        "estimate",
        "exact",
    }
    refused = preset(shell, out, *words, "--method", "probes")
    assert refused.status == 2
    assert "samples" in sentence(refused)


def lose_a_group(out: Path) -> None:
    lines = (out / POINTS).read_bytes().splitlines(keepends=True)
    (out / POINTS).write_bytes(b"".join(lines[1:]))


@pytest.mark.parametrize("parts", everyday(["outer", "full"], "outer"))
def test_a_run_that_lost_a_group_goes_on_with_the_same_numbers(
    shell: Shell, tmp_path: Path, parts: str
) -> None:
    out, words = tmp_path / "out", ["--groups", "layers.1.*", "--parts", parts]
    assert preset(shell, out, *words).status == 0
    rows = table(out / "results.csv")
    lose_a_group(out)
    again = preset(shell, out, *words)
    assert again.status == 0, again.errors
    assert table(out / "results.csv") == rows


def test_a_folder_of_an_earlier_version_shows_the_interval_too(
    shell: Shell, saved: Path, tmp_path: Path
) -> None:
    """There the row holds the ratio of the estimates as they are, and no interval."""
    out = tmp_path / "out"
    assert shell("curvature", saved, "--data", "random", *SMALL, "--out", out).status == 0
    new = load_curvature(out).heterogeneity["full"]
    rows = read_results(out / "results.csv")
    old = [
        replace(row, value=1e9, standard_error=1.0) if row.quantity == "heterogeneity" else row
        for row in rows
        if not row.quantity.startswith("heterogeneity_")
    ]
    write_results(out / "results.csv", old)
    assert load_curvature(out).heterogeneity["full"] == new
    assert new.low < new.value < new.high


def test_the_loss_and_the_norms_are_those_of_the_library(
    shell: Shell, saved: Path, tmp_path: Path
) -> None:
    outcome = shell(
        "curvature", saved, "--data", "random", "--seed", 3, "--sequences", 2, "--tokens", 6,
        "--probes", 40, "--parts", "full", "--out", tmp_path / "out", "--json",
    )  # fmt: skip
    assert outcome.status == 0, outcome.errors
    summary = json.loads(outcome.output)
    model = GPT2LMHeadModel.from_pretrained(saved).eval()
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(300, (2, 6), generator=generator)
    assert summary["loss"] == pytest.approx(model(input_ids=ids, labels=ids).loss.item(), rel=1e-5)
    groups = parameter_groups(model)
    assert set(summary["curvature"]) == set(groups)
    witness = group_norms(Problem(model, {"input_ids": ids}), groups, probes=40, parts=["full"])
    for name, norms in summary["curvature"].items():
        other = witness[name]["full"]
        error = (norms["full"]["standard_error"] ** 2 + other.standard_error**2) ** 0.5
        assert abs(norms["full"]["value"] - other.value) <= 3.5 * error + 1e-4 * other.value, name


@pytest.mark.parametrize(
    "source",
    ["gpt2", *(pytest.param(f"preset:{name}", marks=LONG) for name in ("pre-ln", "sas-p"))],
)
def test_the_last_attention_is_exact_and_agrees_with_the_probes(
    shell: Shell, saved: Path, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [saved] if source == "gpt2" else [source, *PRESET]
    words += ["--data", "random"]
    words += ["--sequences", 2, "--tokens", 6, "--probes", 32, "--groups", "layers.*.attention.*"]
    exact = shell("curvature", *words, "--out", tmp_path / "exact", "--json")
    monkeypatch.setattr(curvature_run, "EXACT_WORK", 0)
    probed = shell("curvature", *words, "--out", tmp_path / "probed", "--json")
    assert exact.status == probed.status == 0, exact.errors
    norms = json.loads(exact.output)["curvature"]
    estimates = json.loads(probed.output)["curvature"]
    assert set(norms) == set(estimates)
    for name in norms:
        for part, norm in norms[name].items():
            other = estimates[name][part]
            assert other["method"] == "estimate"
            assert norm["method"] == ("exact" if name.startswith("layers.1") else "estimate"), name
            off = abs(norm["value"] - other["value"])
            assert off <= 3 * other["standard_error"] + 1e-4 * norm["value"] + 1e-9, (name, part)


def test_a_group_is_measured_once_and_a_stopped_run_ends_with_the_same_numbers(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_stopped_run_ends_with_the_same_numbers(shell, tmp_path, monkeypatch)


@pytest.mark.slow  # four spectra in each of its runs
def test_a_stopped_run_with_a_spectrum_of_each_group_ends_with_the_same_numbers(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_stopped_run_ends_with_the_same_numbers(shell, tmp_path, monkeypatch, "--each-group")


def a_stopped_run_ends_with_the_same_numbers(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str
) -> None:
    words = ["--map", "--spectrum", *more, *FEW]
    assert preset(shell, tmp_path / "whole", *words).status == 0
    measured: list[str] = []
    real = curvature_run.CurvatureRun._measure

    def stopping(run: curvature_run.CurvatureRun, name: str) -> dict[str, Any]:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(name)
        return real(run, name)

    monkeypatch.setattr(curvature_run.CurvatureRun, "_measure", stopping)
    outcome = preset(shell, tmp_path / "stopped", *words)
    assert outcome.status == 130
    assert "the same command goes on where it stopped" in sentence(outcome)
    assert len(table(tmp_path / "stopped" / "results.csv")) == 2
    first = list(measured)

    def counting(run: curvature_run.CurvatureRun, name: str) -> dict[str, Any]:
        measured.append(name)
        return real(run, name)

    monkeypatch.setattr(curvature_run.CurvatureRun, "_measure", counting)
    assert preset(shell, tmp_path / "stopped", *words).status == 0
    assert len(measured) == len(set(measured)) == (4 if more else 5)  # or all as one besides
    assert measured[:2] == first
    for name in ("results.csv", "map.csv", "spectra.csv"):
        assert (tmp_path / "stopped" / name).read_text() == (
            tmp_path / "whole" / name
        ).read_text(), name
    assert files(tmp_path / "stopped") == files(tmp_path / "whole")


def test_other_settings_do_not_enter_a_finished_folder(shell: Shell, tmp_path: Path) -> None:
    assert preset(shell, tmp_path / "out", *FEW).status == 0
    outcome = preset(shell, tmp_path / "out", *FEW, "--probes", 5)
    assert outcome.status == 2
    assert "curvature.probes is 5, was 4" in sentence(outcome)


def test_other_weights_do_not_enter_a_finished_folder(shell: Shell, tmp_path: Path) -> None:
    folder = gpt2(tmp_path / "model")
    words = ["--data", "random", *SMALL, *FEW, "--out", tmp_path / "out"]
    assert shell("curvature", folder, *words).status == 0
    model = GPT2LMHeadModel.from_pretrained(folder)
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight[0, 0] += 1e-3
    model.save_pretrained(folder)
    outcome = shell("curvature", folder, *words)
    assert outcome.status == 2
    assert "model.fingerprint" in sentence(outcome)


def test_a_trained_run_is_measured_on_its_own_tokens(shell: Shell, tmp_path: Path) -> None:
    assert shell.train(tmp_path / "run", "--steps", 2).status == 0
    summaries = []
    for source in (tmp_path / "run", tmp_path / "run" / "model"):
        out = tmp_path / f"out-{source.name}"
        outcome = measure(shell, source, out, *FEW, "--json")
        assert outcome.status == 0, outcome.errors
        summaries.append(json.loads(outcome.output))
    assert summaries[0]["loss"] == summaries[1]["loss"]
    corpus = hb.data.load_corpus(shell.code, 260)
    batch = corpus.curvature_batch(2, 6, seed=0)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").eval()
    assert summaries[0]["loss"] == pytest.approx(model(**batch).loss.item(), rel=1e-5)


def test_heads_are_groups_of_their_own(shell: Shell, tmp_path: Path) -> None:
    words = ["--level", "head", "--groups", "layers.0.attention.query*", "--parts", "outer"]
    outcome = preset(shell, tmp_path / "out", *words, "--json")
    assert list(json.loads(outcome.output)["curvature"]) == [
        "layers.0.attention.query.head.0",
        "layers.0.attention.query.head.1",
    ]


@pytest.fixture
def with_figures() -> None:
    """Draw them."""


@pytest.mark.slow
def test_the_page_needs_nothing_but_its_files(
    shell: Shell, tmp_path: Path, with_figures: None
) -> None:
    few = ("--groups", "layers.1.attention.query", "--parts", "full")
    outcome = preset(shell, tmp_path / "out", "--map", "--spectrum", *few)
    assert outcome.status == 0, outcome.errors
    page = (tmp_path / "out" / "report.html").read_text()
    names = {"layers", "map-full", "spectra-full"}
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert figures == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    for word in ("layers.1.attention.query", "full Hessian H", "(exact)", "results.csv", *names):
        assert word in page
    assert "http" not in page.replace("http-equiv", "")
    (tmp_path / "out" / "report.html").unlink()
    (tmp_path / "out" / POINTS).unlink()
    again = shell("report", tmp_path / "out")
    assert again.status == 0, again.errors
    assert (tmp_path / "out" / "report.html").read_text() == page


@pytest.mark.slow
def test_the_page_of_sampled_gradients_says_so(
    shell: Shell, tmp_path: Path, with_figures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_no_curvature(monkeypatch)
    words = [
        "--parts",
        "outer",
        "--map",
        "--spectrum",
        "--groups",
        "layers.*",
        "--method",
        "sampled",
    ]
    outcome = preset(shell, tmp_path / "out", *words)
    assert outcome.status == 0, outcome.errors
    page = (tmp_path / "out" / "report.html").read_text()
    captions = [part.partition("</figcaption>")[0] for part in page.split("<figcaption>")[1:]]
    layers, blocks, spectra = captions
    for caption in (layers, blocks):
        assert "16 sampled gradients for all groups" in caption
        assert "probes" not in caption
    assert "violet ones not told from zero" in blocks
    assert "from both sides" not in blocks
    assert "gradients" not in spectra  # they are made of products
    assert "± 1 standard error over samples." in page
    assert len(table(tmp_path / "out" / "map.csv")) == 14**2


def test_a_sampled_run_takes_no_second_derivative(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = []
    real = passes.make_plan

    def noted(problem: Any, *, twice: bool = True, **options: Any) -> Any:
        planned.append(twice)
        return real(problem, twice=twice, **options)

    for place in ("products.problem", "sampled.grams"):
        monkeypatch.setattr(f"hessblocks.curvature.{place}.make_plan", noted)
    words = ["--parts", "outer", "--map", "--groups", "layers.0.*"]
    assert preset(shell, tmp_path / "out", *words, "--method", "sampled").status == 0
    assert set(planned) == {False}
    loss = {
        row["value"] for row in table(tmp_path / "out" / "results.csv") if row["quantity"] == "loss"
    }
    assert preset(shell, tmp_path / "probes", *words, "--method", "probes").status == 0
    assert True in planned
    (other,) = (
        row for row in table(tmp_path / "probes" / "results.csv") if row["quantity"] == "loss"
    )
    assert float(loss.pop()) == pytest.approx(float(other["value"]), rel=1e-6)


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["preset:sas-q"], 2, "MODEL: 'sas-q' is unknown; did you mean 'sas-p'"),
        (["/nowhere/model"], 2, "MODEL: /nowhere/model does not exist"),
        (["nobody/no-such-model"], 2, "no model of that name is in the local Hugging Face cache"),
        (["preset:sas", "--parts", "outr"], 2, "--parts: 'outr' is unknown; did you mean 'outer'"),
        (["preset:sas", "--parts", ","], 2, "--parts: expected one or more of outer"),
        (
            ["preset:sas", "--groups", "layers.*.atention.query"],
            2,
            "--groups: 'layers.*.atention.query' matches nothing; near: layers.",
        ),
        (["preset:sas", "--level", "heads"], 2, 'Invalid value "heads" for --level.'),
        (
            ["preset:sas", "--probes", "3"],
            2,
            "--probes: expected a whole number of at least 4, got 3",
        ),
        (["preset:sas", "--heads", "3"], 2, "3 heads do not divide the width 8"),
        (["preset:sas", "--sequences", "99999"], 2, "--sequences: 99999 windows of 6 tokens"),
        (["preset:sas", "--data", "/nowhere"], 2, "--data: /nowhere is not a file or folder"),
        (
            ["preset:sas", "--memory-limit", "-1"],
            2,
            "--memory-limit: expected gigabytes (GB) above 0",
        ),
        (["preset:sas", "--memory-limit", "nan"], 2, "--memory-limit: expected gigabytes (GB)"),
        (
            ["preset:sas", "--memory-limit", "1GB"],
            2,
            'Invalid value for --memory-limit: unable to convert "1GB"',
        ),
        (["preset:sas", "--memory-limit", "0.00001"], 2, "--memory-limit: one row of a batch"),
        (["preset:sas", "--device", "tpu"], 2, "--device: expected auto, cpu or cuda"),
    ],
    ids=str,
)
def test_wrong_arguments(
    shell: Shell, tmp_path: Path, words: list[str], status: int, expected: str
) -> None:
    data = [] if "--data" in words else ["--data", shell.code]
    outcome = shell(
        "curvature", words[0], *data, *PRESET, *SMALL, *words[1:], "--out", tmp_path / "out"
    )
    assert outcome.status == status
    assert expected in sentence(outcome)
    assert outcome.output == ""
    assert not (tmp_path / "out").exists()


def test_models_without_logits_of_the_next_token_are_refused(shell: Shell, tmp_path: Path) -> None:
    bert = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    BertForMaskedLM(bert).save_pretrained(tmp_path / "bert")
    gpt2(tmp_path / "trunk", kind=GPT2Model)
    for name, kind in (("bert", "BertForMaskedLM"), ("trunk", "GPT2Model")):
        outcome = shell("curvature", tmp_path / name, "--data", "random", "--out", tmp_path / "out")
        assert outcome.status == 2
        assert f"is a {kind}, which gives no logits of the next token" in sentence(outcome)
    (tmp_path / "empty").mkdir()
    outcome = shell("curvature", tmp_path / "empty", "--data", "random", "--out", tmp_path / "out")
    assert outcome.status == 2
    assert "holds no model, since it has no config.json" in sentence(outcome)


def test_random_tokens_are_never_taken_silently(shell: Shell, saved: Path, tmp_path: Path) -> None:
    outcome = measure(shell, saved, tmp_path / "out")
    assert outcome.status == 2
    assert "has no tokenizer" in sentence(outcome)
    assert "--data random" in sentence(outcome)
    folder = gpt2(tmp_path / "small", vocabulary=40)
    corpus = hb.data.load_corpus(shell.code, 260)
    corpus.tokenizer.save(str(folder / "tokenizer.json"))
    outcome = measure(shell, folder, tmp_path / "out")
    assert outcome.status == 2
    assert "the model knows those below 40" in sentence(outcome)
    assert not (tmp_path / "out").exists()


def test_tokens_beyond_the_context_are_refused(shell: Shell, saved: Path, tmp_path: Path) -> None:
    outcome = measure(shell, saved, tmp_path / "out", "--data", "random", "--tokens", 17)
    assert outcome.status == 2
    assert "--tokens: 17 are longer than the context of 16" in sentence(outcome)


def test_a_loss_that_is_not_finite_is_reported_and_finished_groups_are_kept(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = curvature_run.CurvatureRun._measure

    def poisoned(run: curvature_run.CurvatureRun, name: str) -> dict[str, Any]:
        if name.endswith("attention.key"):
            with torch.no_grad():
                run.problem.model.model.final_norm.weight.fill_(float("nan"))
        return real(run, name)

    monkeypatch.setattr(curvature_run.CurvatureRun, "_measure", poisoned)
    outcome = preset(shell, tmp_path / "out", "--groups", "layers.0.attention.*")
    assert outcome.status == 1
    assert "the loss of batch 0 (counted from 0) is nan" in sentence(outcome)
    assert len((tmp_path / "out" / POINTS).read_bytes().splitlines()) == 1
    assert {row["group"] for row in table(tmp_path / "out" / "results.csv")} == {
        "layers.0.attention.query"
    }


def test_a_full_memory_says_what_to_lower_and_finished_groups_are_kept(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = BatchGraph.full, []

    def full_at_last(graph: BatchGraph, *given: Any) -> Any:
        calls.append(graph)
        return real(graph, *given) if len(calls) < 3 else torch.empty(1 << 46)

    words = ["--groups", "layers.0.attention.*", "--parts", "full", "--memory-limit", "0.5"]
    with monkeypatch.context() as patched:
        patched.setattr(BatchGraph, "full", full_at_last)
        outcome = preset(shell, tmp_path / "out", *words)
    assert outcome.status == 1
    assert "curvature: out of memory; lower memory_limit" in sentence(outcome)
    assert 1 <= len((tmp_path / "out" / POINTS).read_bytes().splitlines()) < 4
    assert preset(shell, tmp_path / "out", *words).status == 0
    assert preset(shell, tmp_path / "whole", *words).status == 0
    assert table(tmp_path / "out" / "results.csv") == table(tmp_path / "whole" / "results.csv")


def test_data_without_a_single_window_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    outcome = preset(shell, tmp_path / "out", "--data", tmp_path / "empty.py")
    assert outcome.status == 2
    assert sentence(outcome).startswith("hessblocks: --data: ")
    assert not (tmp_path / "out").exists()


def test_a_group_whose_line_is_torn_is_measured_again(shell: Shell, tmp_path: Path) -> None:
    assert preset(shell, tmp_path / "out", *FEW).status == 0
    path = tmp_path / "out" / POINTS
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    with warnings.catch_warnings():
        warnings.filterwarnings("default", ".*damaged line")  # shown, as a user sees it
        outcome = preset(shell, tmp_path / "out", *FEW)
    assert outcome.status == 0
    assert "1 damaged line(s) kept aside in points.damaged" in outcome.errors
    assert path.read_bytes() == whole
