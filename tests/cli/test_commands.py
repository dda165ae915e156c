"""The commands end to end at tiny sizes."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

import hessblocks.training
from hessblocks.cli import app
from hessblocks.cli.app import main
from hessblocks.cli.commands.training import DEMO, RATE
from hessblocks.errors import ArgumentError, RunError
from hessblocks.settings.run_settings import ComparisonSettings
from tests.cli.helpers import Shell, sentence, use_the_terminal
from tests.pictures import empty_pictures

FEW = ("--steps", 6, "--curvature-sequences", 1, "--curvature-tokens", 4)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path, code: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HESSBLOCKS_CACHE", str(shared_cache))
        empty_pictures(patch)
        assert Shell(_NoCapture(), code).compare(out, *FEW).status == 0  # type: ignore[arg-type]
    return out


class _NoCapture:
    """Stands in for capsys in a fixture that outlives a test."""

    out = err = ""

    def readouterr(self) -> "_NoCapture":
        return self


def test_compare_shows_a_table_the_report_and_the_shares_of_time(
    shell: Shell, compared: Path
) -> None:
    outcome = shell.compare(compared, *FEW)
    assert outcome.status == 0
    for name in ("pre-ln", "sas-p"):
        (row,) = (
            line for line in outcome.output.splitlines() if line.strip().startswith(name + "  ")
        )
        assert len(re.findall(r"[\d,.]+(?:e[+-]\d+)?", row)) >= 6
    assert re.match(r"\s*After 6 steps the held-out loss of pre-ln is", outcome.output)
    assert "layers.0-1.attention.key" in outcome.output  # zero at initialisation, named
    assert re.search(r"\d+ s: data \d+ %, report \d+ %", outcome.output.replace("\n", " "))
    assert f"report  {compared / 'report.html'}" in outcome.output
    assert re.search(r"next    hessblocks compare .* --seeds 3$", outcome.output, re.M)


def test_compare_leaves_curvature_out(shell: Shell, tmp_path: Path) -> None:
    outcome = shell.compare(tmp_path / "out", *FEW, "--no-curvature")
    assert outcome.status == 0
    assert re.search(
        r"^2 runs: about .* s for training of processor time; in all", outcome.errors, re.M
    )
    assert "curvature" not in outcome.errors
    assert not re.search("heterogeneity|curvature", outcome.output.partition("report  ")[0])
    again = shell.compare(tmp_path / "out", *FEW, "--no-curvature")
    assert "runs: about" not in again.errors


def test_json_is_one_object_with_what_was_measured(shell: Shell, compared: Path) -> None:
    outcome = shell.compare(compared, *FEW, "--json")
    values = json.loads(outcome.output)
    assert outcome.status == 0
    assert values["command"] == "compare"
    for preset in ("pre-ln", "sas-p"):
        measured = values["presets"][preset]
        known = {name for name, value in measured.items() if value is not None}
        assert {"parameters", "tokens_per_second", "initial_loss", "final_loss"} <= known
        assert "peak_memory" not in known  # that of CUDA
        for moment in ("before", "after"):
            norm = measured["curvature"][moment]["layers.0.mlp.in"]["full"]
            assert norm["value"] > norm["standard_error"] > 0


def test_the_folder_holds_the_report_and_its_figures(compared: Path) -> None:
    assert {"config.json", "environment.json", "metrics.jsonl", "results.csv", "report.html"} <= {
        path.name for path in compared.iterdir()
    }
    assert {path.suffix for path in (compared / "figures").iterdir()} == {".png", ".svg"}
    presets = json.loads((compared / "config.json").read_text())["presets"]
    for file in ("blocks.svg", "blocks-narrow.svg"):
        drawn = (compared / file).read_text()
        assert re.findall(r'class="name"[^>]*>([a-z-]+)<', drawn) == presets


def test_no_bar_and_no_colour_outside_a_terminal(shell: Shell, tmp_path: Path) -> None:
    outcome = shell.train(tmp_path / "out")
    assert "\r" not in outcome.output + outcome.errors
    assert "\x1b" not in outcome.output + outcome.errors
    assert re.search(
        r"^training sas, seed 0: [\d.]+ s, training loss [\d.]+$", outcome.errors, re.M
    )


def test_train_leaves_a_model_that_hugging_face_reads(shell: Shell, tmp_path: Path) -> None:
    outcome = shell.train(tmp_path / "out", "--json", "--seed", 2)
    measured = json.loads(outcome.output)["presets"]["sas"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    assert measured["parameters"] == sum(p.numel() for p in model.parameters())
    assert measured["seeds"] == [2]
    assert measured["final_loss"] < measured["initial_loss"]


def test_train_shows_the_loss(shell: Shell, tmp_path: Path) -> None:
    outcome = shell.train(tmp_path / "out")
    assert re.search(r"sas +[\d,]+ +[\d,]+ +5\.\d+ +5\.\d+", outcome.output)
    assert "heterogeneity:" not in outcome.output


@pytest.mark.slow
def test_several_seeds_have_an_error_bar(shell: Shell, tmp_path: Path) -> None:
    two = ("--presets", "sas", "--seeds", 2, "--seed", 5, "--depth", 1)
    outcome = shell.compare(tmp_path / "out", *two, *FEW)
    assert sorted(path.name for path in (tmp_path / "out" / "runs").iterdir()) == [
        "sas-seed5",
        "sas-seed6",
    ]
    assert re.search(r"sas .* \d\.\d+ ± \d\.\d+", outcome.output)


def test_the_demo_compares_three_blocks_as_the_trial_found_them_best(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ComparisonSettings] = []

    def remember(settings: ComparisonSettings, *_: object, **__: object) -> None:
        asked.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(hessblocks.training, "compare", remember)
    monkeypatch.setattr("hessblocks.cli.commands.work.load_corpus", lambda *_: None)
    outcome = shell("demo", "--out", tmp_path / "out")
    assert outcome.status == 130
    assert "interrupted; the same command goes on" in sentence(outcome)
    assert asked[0].presets == DEMO == ("pre-ln-zero", "sas", "sas-p")
    assert (asked[0].model.slots, asked[0].model.start) == ((), "scaled")
    assert (asked[0].training.learning_rate, asked[0].model.embedding_std) == (RATE, None)


def test_a_bar_on_a_terminal(shell: Shell, tmp_path: Path) -> None:
    process, terminal = os.forkpty()
    if process == 0:
        use_the_terminal()
        words = ["train", "sas", "--data", str(shell.code), "--out", str(tmp_path / "out")]
        sizes = [
            "--depth",
            "1",
            "--width",
            "8",
            "--heads",
            "1",
            "--context",
            "8",
            "--vocab-size",
            "260",
            "--steps",
            "4",
        ]
        os._exit(main(words + sizes))
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 1 << 16)
        except OSError:
            break
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"training sas, seed 0" in shown
    assert b"\x1b[" in shown


@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"], ["compare", "--help"]])
def test_help_ends_well(shell: Shell, words: list[str]) -> None:
    outcome = shell(*words)
    assert outcome.status == 0
    assert "Usage: hessblocks" in outcome.output


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "presets",
        "compare",
        "train",
        "curvature",
        "signal",
    ],
)
def test_every_command_has_the_common_options(shell: Shell, command: str) -> None:
    """Where nothing is drawn and the device is not the user's choice, they are left out."""
    text = shell(command, "--help").output
    assert all(name in text for name in ("--json", "--traceback"))
    assert "Without effect" not in text
    if command != "presets":  # which writes nothing
        assert all(name in text for name in ("--out", "--seed", "--device"))


def test_commands_stand_in_panels_in_the_order_of_a_day(shell: Shell) -> None:
    lines = shell("--help").output.splitlines()
    shown = [line.split()[1] for line in lines if re.match("│ [a-z]", line)]
    assert [word for word in shown if word in app.OWN] == [n for n in app.TASKS if n in app.OWN]
    titles = [line.strip("╭─╮ ") for line in lines if "╭" in line]
    assert titles[: len(app.GROUPS)] == list(app.GROUPS)


@pytest.mark.parametrize("command", sorted(app.OWN))
def test_the_example_under_a_help_can_be_typed(
    shell: Shell, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "text.txt").write_text("a text of mine\n" * 999)
    for name in ("mine.json", "runs/demo/config.json"):
        (tmp_path / name).write_text('{"kind": "block"}')
    *_, last = shell(command, "--help").output.split("Example: ")
    _, name, *words = shlex.split(last)
    assert name == command
    assert app.app.parse_args([name, *words])


@pytest.mark.slow
def test_the_demo_in_six_minutes(shell: Shell, tmp_path: Path) -> None:
    values = json.loads(shell("demo", "--json", "--out", tmp_path / "out").output)
    assert values["seconds"] < 360
    for measured in values["presets"].values():
        assert measured["final_loss"] < 0.8 * measured["initial_loss"]


@pytest.mark.parametrize(
    ("error", "words", "said"),
    [
        (ArgumentError("batch_size: expected 1"), "train sas", "--batch-size: expected 1"),
        (ArgumentError("seed: expected 1"), "demo", "--seed: expected 1"),
        (RunError("depth: 1 point(s) failed"), "reproduce depth", "depth: 1 point(s) failed"),
        (RunError("steps: of a file"), "train sas", "steps: of a file"),
        (ArgumentError("depth: no such scale"), "reproduce depth", "depth: no such scale"),
        (ArgumentError("batch_size: expected 1"), "", "batch_size: expected 1"),
    ],
)
def test_settings_alone_are_named_as_options(error: Exception, words: str, said: str) -> None:
    """A study may be called as an option is."""
    assert app._named(error, words.split()) == said


def test_the_help_begins_as_the_readme(shell: Shell) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    tagline = re.search(r"\*\*(.+?)\*\*", readme, re.DOTALL)
    assert tagline
    assert " ".join(tagline[1].split()) in " ".join(shell("--help").output.split())


@pytest.mark.parametrize(
    "words",
    ["train sas --data", "price m --data", "curvature preset:sas --data", "report", "demo --out"],
)
def test_an_empty_path_is_not_the_current_folder(shell: Shell, words: str) -> None:
    refused = shell(*words.split(), "")
    assert (refused.status, refused.output) == (2, "")
    assert re.search("expected a file or folder, got ''|an empty name is no", sentence(refused))
