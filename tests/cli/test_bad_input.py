"""Whatever is wrong is one sentence that names the option, with the right exit status."""

import os
import resource
from pathlib import Path

import pytest

from hessblocks.cli.app import main
from hessblocks.errors import ArgumentError
from hessblocks.settings import ComparisonSettings, CurvatureInspection, TrainingSettings
from tests.cli.helpers import Shell, sentence, use_the_terminal
from tests.training.helpers import files, in_process_of_its_own, numbers


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--presets", "sass"], "--presets: 'sass' is unknown; did you mean 'sas'"),
        (["--presets", ","], "--presets: expected names with commas; known: pre-ln"),
        (["--presets", "sas,sas"], "--presets: sas was given twice; give each once"),
        (["--heads", "3"], "--heads: 3 heads do not divide the width 16; use 2 or 4 heads"),
        (["--depth", "0"], "--depth: expected a whole number"),
        (["--depth", "2.5"], "--depth: expected a whole number, got '2.5'"),
        (["--steps", "0"], "--steps: expected a whole number"),
        (["--steps", "many"], "--steps: expected a whole number"),
        (["--seeds", "0"], "--seeds: expected a whole number"),
        (["--seed", "-1"], "--seed: expected 0 or more, got -1"),
        (["--nonsense"], "--nonsense"),
        (["--learning-rate", "-1"], "--learning-rate: expected a number above 0, got -1.0"),
        (["--learning-rate", "nan"], "--learning-rate: expected a number above 0, got nan"),
        (["--vocab-size", "100"], "--vocab-size: expected at least 257"),
        (["--device", "tpu"], "--device: expected auto, cpu or cuda, got 'tpu'"),
        (["--curvature-tokens", "17"], "--curvature-tokens: 17 are longer than the context of 16"),
        (["--curvature-sequences", "99999"], "--curvature-sequences: 99999 windows"),
        (["--context", "100000"], "--data: the train split of code"),
        (["--data", "/nowhere"], "--data: /nowhere is not a file or folder; give one that exists"),
        (["--data", "/proc/self/mem"], "--data: /proc/self/mem cannot be read"),
    ],
    ids=str,
)
def test_wrong_arguments(shell: Shell, tmp_path: Path, words: list[str], expected: str) -> None:
    outcome = shell.compare(tmp_path / "out", *words)
    assert outcome.status == 2
    assert expected in sentence(outcome).replace("code0", "code")
    assert outcome.output == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "too little text"),
        (bytes(range(256)), "is not UTF-8 text"),
        (b"x = 1\n" * 20, "fewer than one context of 16"),
    ],
    ids=["empty", "binary", "small"],
)
@pytest.mark.filterwarnings("default:--vocab-size")  # shown, as a user sees it
def test_data_without_enough_text(
    shell: Shell, tmp_path: Path, content: bytes, expected: str
) -> None:
    (tmp_path / "text.py").write_bytes(content)
    outcome = shell.compare(tmp_path / "out", "--data", tmp_path / "text.py")
    assert outcome.status == 2
    assert sentence(outcome).startswith("hessblocks: --data: ")
    assert expected in sentence(outcome)
    assert not (tmp_path / "out").exists()


def test_an_unknown_preset_to_train(shell: Shell, tmp_path: Path) -> None:
    outcome = shell("train", "sas-q", "--data", shell.code, "--out", tmp_path / "out")
    assert outcome.status == 2
    assert "PRESET: 'sas-q' is unknown; did you mean 'sas-p'" in sentence(outcome)


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "--depth", "0"],
        ["compare", "--steps", "many"],
        ["train"],
        ["trian"],
        ["--nonsense"],
        ["train", "--nonsense"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_one_sentence(shell: Shell, words: list[str]) -> None:
    outcome = shell(*words)
    assert outcome.status == 2
    (line,) = outcome.errors.splitlines()
    assert line.startswith("hessblocks: ")
    assert outcome.output == ""


def test_no_words_at_all_give_the_help(shell: Shell) -> None:
    outcome = shell()
    assert outcome.status == 2
    assert "Usage: hessblocks" in outcome.errors
    assert "curvature" in outcome.errors


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "zzz"], "PRESET: 'zzz' is unknown"),
        (["train", "sas", "--heads", "3"], "--heads: 3 heads do not divide the width 128"),
        (["compare", "--heads", "3"], "--heads: 3 heads do not divide the width 128"),
        (["compare", "--vocab-size", "0"], "--vocab-size: expected"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused_before_any_data_is_read(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    monkeypatch.setattr(
        "hessblocks.cli.commands.work.load_corpus", lambda *_: pytest.fail("data read")
    )
    outcome = shell(*words)
    assert outcome.status == 2
    assert expected in sentence(outcome)


def test_an_unknown_command(shell: Shell) -> None:
    outcome = shell("trian")
    assert outcome.status == 2
    assert 'Unknown command "trian"' in outcome.errors


@pytest.mark.parametrize("out", ["/proc/hessblocks", "/dev/null/out"])
def test_an_unwritable_folder(shell: Shell, out: str) -> None:
    outcome = shell.compare(Path(out))
    assert outcome.status == 2
    assert sentence(outcome).startswith(f"hessblocks: --out: {out} cannot be written (")


def test_a_folder_with_another_run_is_left_as_it_is(shell: Shell, tmp_path: Path) -> None:
    assert shell.train(tmp_path / "out").status == 0
    before = {name: (tmp_path / "out" / name).read_bytes() for name in files(tmp_path / "out")}
    outcome = shell.train(tmp_path / "out", "--steps", 13, "--learning-rate", 0.01)
    assert outcome.status == 2
    assert "--out: " in sentence(outcome)
    assert "training.steps is 13, was 12" in sentence(outcome)
    assert "training.learning_rate is 0.01, was 0.001" in sentence(outcome)
    assert {
        name: (tmp_path / "out" / name).read_bytes() for name in files(tmp_path / "out")
    } == before


def test_the_traceback_is_shown_on_request(shell: Shell, tmp_path: Path) -> None:
    outcome = shell.compare(tmp_path / "out", "--heads", 3, "--traceback")
    assert outcome.status == 2
    assert "Traceback (most recent call last)" in outcome.errors


@pytest.mark.slow
@pytest.mark.filterwarnings("default:cache")  # shown, as a user sees it
def test_a_damaged_cache_is_reported_and_built_again(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
    assert shell.train(tmp_path / "first").status == 0
    (tokens,) = (tmp_path / "cache").glob("*/train.bin")
    tokens.write_bytes(tokens.read_bytes()[:-1])
    outcome = shell.train(tmp_path / "second")
    assert outcome.status == 0
    assert "hessblocks: warning: cache: " in outcome.errors
    assert "has another train.bin than was written; building it again" in outcome.errors
    assert numbers(tmp_path / "first") == numbers(tmp_path / "second")


def test_a_full_disk_loses_nothing(shell: Shell, tmp_path: Path) -> None:
    """Files above 40 kB cannot be written: the first checkpoint fails as on a full disk."""
    words = ["train", "sas", "--data", str(shell.code), "--out", str(tmp_path / "full")]
    sizes = [
        "--depth",
        "2",
        "--width",
        "32",
        "--heads",
        "2",
        "--context",
        "16",
        "--vocab-size",
        "260",
        "--steps",
        "8",
    ]
    words += [*sizes, "--checkpoint-every", "4"]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        with (tmp_path / "errors").open("w") as errors:
            os.dup2(errors.fileno(), 2)
        use_the_terminal()
        os._exit(main(words))

    process = in_process_of_its_own(limited)
    process.join(600)
    last = (tmp_path / "errors").read_text().strip().splitlines()[-1]
    assert process.exitcode == 1
    assert last.startswith("hessblocks: --out: ")
    assert "cannot be written" in last
    assert not [name for name in files(tmp_path / "full") if "checkpoint" in name]
    assert shell(*words).status == 0
    assert shell(*words[:4], "--out", tmp_path / "whole", *words[6:]).status == 0
    assert numbers(tmp_path / "full") == numbers(tmp_path / "whole")


@pytest.mark.parametrize(
    ("settings", "given", "said"),
    [
        (TrainingSettings, {"optimiser": "adma"}, "--optimiser: 'adma' is unknown; did you mean"),
        (TrainingSettings, {"schedule": "const"}, "--schedule: 'const' is unknown"),
        (CurvatureInspection, {"level": "layer"}, "--level: 'layer' is unknown"),
        (ComparisonSettings, {"presets": ["sas"], "report_to": "x"}, "--report-to: 'x' is unknown"),
    ],
)
def test_unknown_names_are_refused_from_python(settings: type, given: dict, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        settings(**given)
