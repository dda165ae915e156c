"""The options of training on the command line, and how a diverged run ends."""

import html
import inspect
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from cyclopts import Argument, Token

from hessblocks.cli import main
from hessblocks.cli.app import app
from hessblocks.settings.pretrained import CurvatureInspection, SignalInspection
from hessblocks.settings.run_settings import (
    ComparisonSettings,
    CurvatureSettings,
    DataSettings,
    ModelSettings,
    ObservationSettings,
    PresetSizes,
    RunSettings,
    TrainingSettings,
)
from tests.cli.helpers import Shell, sentence
from tests.training.helpers import files

SETTINGS = [
    (command, settings, prefix)
    for command, several in {
        "train": [(DataSettings, ""), (ModelSettings, ""), (TrainingSettings, "")],
        "compare": [(ObservationSettings, ""), (CurvatureSettings, "curvature_")],
        "curvature": [(CurvatureInspection, "")],
        "signal": [(SignalInspection, "")],
        "presets": [(PresetSizes, "")],
    }.items()
    for settings, prefix in several
]


def options(command: str) -> dict[str, Argument]:
    arguments = app[command].assemble_argument_collection(parse_docstring=True)
    return {one.names[0]: one for one in arguments if one.parse and one.names[0] != "*"}


LEFT_OUT = {"betas", "blocks", "clip", "log_every", "evaluation_sequences", "sample"}
"""Fields that are no options; `sample` stands for those of its own."""


def written_lines(settings: type) -> dict[str, str]:
    """The line under each field, cut out of the source by its quotes: a second witness."""
    found = {}
    for base in reversed(settings.__mro__[:-1]):
        pieces = inspect.getsource(base).split('"""')
        for code, line in zip(pieces[2::2], pieces[3::2], strict=False):
            *_, name = re.findall(r"^    (\w+)", code, re.M)
            found[name] = " ".join(line.split())
    return found


@pytest.mark.parametrize(("command", "settings", "prefix"), SETTINGS)
def test_an_option_has_the_default_and_the_help_of_its_field(
    command: str, settings: type, prefix: str
) -> None:
    known = options(command)
    lines = written_lines(settings)
    compared = 0
    for field in fields(settings):
        name = "set" if field.name == "slots" else prefix + field.name
        option = "--" + name.replace("_", "-")
        if field.name in LEFT_OUT or name == "curvature_seed":
            assert option not in known
            continue
        shown, default = known[option], field.default
        told = shown.parameter.show_default
        if name in ("learning_rate", "momentum", "weight_decay"):
            assert told(default).startswith(f"{default:g}")
        elif isinstance(default, tuple) and default:
            assert told(default) == ",".join(default)
        assert shown.field_info.default == default, name
        assert shown.parameter.help == lines[field.name], name
        assert shown.names[0] == option
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize(("name", "own"), [("seed", RunSettings)])
def test_a_single_field_as_an_option(name: str, own: type) -> None:
    shown = options("compare")[f"--{name}"]
    assert shown.field_info.default == getattr(own, name)
    assert shown.parameter.help == written_lines(own)[name]


def test_each_optimiser_has_its_own_defaults() -> None:
    assert TrainingSettings.chosen() == TrainingSettings()
    sgd = TrainingSettings.chosen(optimiser="sgd")
    assert (sgd.learning_rate, sgd.momentum, sgd.weight_decay) == (0.3, 0.9, 0.0)
    given = TrainingSettings.chosen(optimiser="sgd", learning_rate=0.1, momentum=0, weight_decay=1)
    assert (given.learning_rate, given.momentum, given.weight_decay) == (0.1, 0, 1)


def test_train_and_compare_have_the_same_options() -> None:
    own = {"PRESET", "--presets", "--seeds", "--tune", "--curvature", "--no-curvature"}
    names = [options(command).keys() - own for command in ("train", "compare")]
    assert names[0] == names[1]
    assert len(names[0]) > 25


@pytest.mark.slow
def test_settings_arrive(shell: Shell, tmp_path: Path) -> None:
    words = ["--optimiser", "sgd", "--momentum", 0.8, "--schedule", "cosine", "--bf16"]
    words += ["--accumulate", 2, "--gains-every", 6, "--curvature-every", 12]
    words += ["--curvature-tokens", 6, "--curvature-sequences", 2, "--curvature-probes", 4]
    words += ["--curvature-groups", "query, *.mlp.*"]
    assert shell.train(tmp_path / "out", *words).status == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    chosen = {name: config["training"][name] for name in ("optimiser", "momentum", "schedule")}
    assert chosen == {"optimiser": "sgd", "momentum": 0.8, "schedule": "cosine"}
    assert (config["training"]["bf16"], config["training"]["accumulate"]) == (True, 2)
    assert config["training"]["learning_rate"] == 0.3
    assert config["observation"]["curvature_groups"] == ["query", "*.mlp.*"]
    assert (tmp_path / "out" / "observations.jsonl").exists()


def test_settings_are_read_where_pydantic_was_imported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Which cyclopts then asks whether they are instances of the classes that stand for them."""
    pytest.importorskip("pydantic")
    assert main(["presets", "--json"]) == 0


def test_seeds_are_counted_from_the_one_that_is_given(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ComparisonSettings] = []
    monkeypatch.setattr(
        "hessblocks.cli.commands.work.carry_out",
        lambda run, settings, *_, **__: asked.append(settings),
    )
    assert shell("compare", "--presets", "sas", "--seed", 3, "--seeds", 2).status == 0
    assert asked[0].seeds == (3, 4)


def test_slots_of_the_block_arrive(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--position", "rotary", "--set", "attention.query.init=zeros"]
    words += ["--set", "mlp.activation=gelu", "--embedding-std", "0.0625"]
    assert shell.train(out, *words).status == 0
    settings = json.loads((out / "config.json").read_text())["model"]
    assert settings["position"] == "rotary"
    assert settings["slots"] == ["attention.query.init=zeros", "mlp.activation=gelu"]
    assert settings["embedding_std"] == 0.0625
    assert json.loads((out / "model" / "config.json").read_text())["embedding_std"] == 0.0625
    block = json.loads((out / "model" / "config.json").read_text())["block"]
    assert block["position"]["kind"] == "rotary-position"
    assert block["attention"]["query"]["init"] == "zeros"
    assert block["mlp"]["activation"] == "gelu"
    assert "model.position is None" in sentence(shell.train(out))
    measured = shell("curvature", out / "model", "--tokens", 8, *words[2:6])
    assert "--set: a saved model" in sentence(measured)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--position", "rotatory"], "--position: 'rotatory' is unknown; did you mean"),
        (["--set", "mlp.gated"], "--set: expected SLOT=VALUE"),
        (["--embedding-std", "0"], "--embedding-std: expected a number above 0, got 0.0"),
        (["--optimiser", "adma"], 'Invalid value "adma" for --optimiser'),
        (["--schedule", "none"], 'Invalid value "none" for --schedule'),
        (["--momentum", "0.5"], "--momentum: adamw has none"),
        (
            ["--optimiser", "sgd", "--momentum", "1"],
            "--momentum: expected 0 or more, below 1, got 1.0",
        ),
        (
            ["--curvature-groups", "value"],
            "--curvature-groups: has no effect without",
        ),
        (["--accumulate", "3"], "--batch-size: 4 sequences cannot be divided evenly"),
        (
            ["--curvature-every", "2", "--curvature-tokens", "6", "--curvature-groups", "qury"],
            "--curvature-groups: 'qury' is unknown; did you mean 'query'",
        ),
        (["--signal-every", "1", "--curvature-tokens", "99"], "--curvature-tokens: 99 are longer"),
    ],
    ids=str,
)
def test_what_cannot_be_chosen(
    shell: Shell, tmp_path: Path, words: list[str], expected: str
) -> None:
    outcome = shell.train(tmp_path / "out", *words)
    assert outcome.status == 2
    assert expected in sentence(outcome)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("default:.*diverged at step")  # shown, as a user sees it
def test_a_run_that_diverges_ends_with_its_numbers_and_status_1(
    shell: Shell, tmp_path: Path
) -> None:
    words = ["--optimiser", "sgd", "--learning-rate", 1e30, "--json"]
    outcome = shell.train(tmp_path / "out", *words)
    assert outcome.status == 1
    assert re.search(
        r"warning: sas, seed 0: diverged at step \d+: the gradient norm is not finite; "
        r"the run ends there and its numbers are kept. Try a lower --learning-rate than 1e\+30.",
        outcome.errors,
    )
    assert "every run diverged" in sentence(outcome)
    measured = json.loads(outcome.output)["presets"]["sas"]
    assert measured["diverged"] == [0]
    assert measured["initial_loss"] > 5
    again = shell.train(tmp_path / "out", *words)
    assert again.status == 1
    assert "diverged at step" not in again.errors


def test_a_share_may_be_typed_in_percent() -> None:
    arguments = options("simplify")["--save"], options("train")["--warmup"]
    for typed, number in (("15%", 0.15), ("15.8%", 0.158), ("0.15", 0.15), ("0%", 0.0)):
        for argument in arguments:
            assert argument.parameter.converter is not None
            token = Token(value=typed, source="cli")
            assert argument.parameter.converter(float, [token]) == number  # to the last bit


def test_warm_up_is_an_option(shell: Shell, tmp_path: Path) -> None:
    assert shell.train(tmp_path / "out", "--warmup", 0).status == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["training"]["warmup"] == 0
    refused = shell.train(tmp_path / "other", "--warmup", "200%")
    assert refused.status == 2
    assert sentence(refused) == "hessblocks: --warmup: expected a share from 0 to 1, got 2.0."


def test_a_misspelt_option_is_answered_with_the_one_that_is_meant(shell: Shell) -> None:
    refused = shell("train", "sas", "--learning-rat", 1)
    assert refused.status == 2
    assert sentence(refused).endswith("--learning-rat. Did you mean --learning-rate?")


def test_the_page_has_the_command_that_was_typed(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "my run"
    assert shell.train(out, "--depth", 1, "--steps", 4).status == 0
    assert shell("report", out).status == 0
    page = html.unescape((out / "report.html").read_text())
    (line,) = re.findall(r"<pre><code>(hessblocks .*)</code></pre>", page)
    _, *words = shlex.split(line)
    assert words[:2] == ["train", "sas"]
    before = files(out)
    assert shell(*words).status == 0  # the same folder: nothing is trained again
    assert files(out) == before


def test_of_a_command_that_is_not_recorded_the_page_says_nothing(
    shell: Shell, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert shell.train(out, "--depth", 1, "--steps", 4).status == 0
    (out / "command.json").unlink()
    assert shell("report", out).status == 0
    assert "<pre><code>" not in (out / "report.html").read_text()
    (out / "command.json").write_text('{"words": "; reboot"}')
    assert "command.json: damaged" in sentence(shell("report", out))


def test_words_that_are_repeated_are_quoted(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "my texts"
    folder.symlink_to(shell.code)
    few = ("--presets", "sas", "--depth", 1, "--steps", 4, "--curvature-tokens", 4)
    outcome = shell.compare(tmp_path / "out", "--data", folder, *few)
    assert f"--data '{folder}'" in outcome.output
