"""SIGINT, SIGTERM and SIGHUP end every command alike: one sentence, its clean-up, 128 + number."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.helpers import Shell, sentence
from tests.crashes import commands
from tests.crashes.ordeal import undisturbed

GOES_ON = "hessblocks: interrupted; the same command goes on where it stopped."
AGAIN = "hessblocks: interrupted; start the same command again."
WORK = {
    "demo": ("demo", "hessblocks.cli.commands.work.load_corpus", GOES_ON),
    "presets": ("presets", "hessblocks.cli.terminal.plain_table", AGAIN),
    "compare": ("compare", "hessblocks.cli.commands.work.load_corpus", GOES_ON),
    "train": ("train sas", "hessblocks.cli.commands.work.load_corpus", GOES_ON),
    "curvature": ("curvature preset:sas", "hessblocks.inspection.measure_curvature", GOES_ON),
    "price": (
        "price model --data code.txt --round 3",
        "hessblocks.inspection.measure_price",
        GOES_ON,
    ),
    "quantise": (
        "quantise model out.gguf --data code.txt --bits 5",
        "hessblocks.inspection.measure_quantise",
        GOES_ON,
    ),
    "simplify": ("simplify model --data code.txt", "hessblocks.simplify.simplify_model", GOES_ON),
    "signal": ("signal preset:sas", "hessblocks.inspection.measure_signal", AGAIN),
    "report": ("report runs", "hessblocks.storage.refuse_links", AGAIN),
}
"""Each command: words, where its work is done, and the sentence of its interruption."""
NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Signals are not ignored, as they are by what `nohup` or a script started in the
    background."""
    ignored = [one for one in NUMBERS if signal.getsignal(one) == signal.SIG_IGN]
    for one in ignored:
        usual = signal.default_int_handler if one == signal.SIGINT else signal.SIG_DFL
        signal.signal(one, usual)
    yield
    for one in ignored:
        signal.signal(one, signal.SIG_IGN)


@pytest.mark.parametrize(
    "number",
    [*NUMBERS[:2], pytest.param(signal.SIGHUP, marks=pytest.mark.slow)],  # as the two before
    ids=lambda number: number.name,
)
@pytest.mark.parametrize("command", WORK)
def test_a_signal_ends_the_command_with_a_sentence(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    number: signal.Signals,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model/config.json", "model/model.safetensors", "runs/config.json", "code.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}" if name.endswith("json") else "x = 1\n" * 20_000)
    words, work, expected = WORK[command]
    monkeypatch.setattr(work, lambda *_, **__: signal.raise_signal(number))
    before = [signal.getsignal(one) for one in NUMBERS]
    outcome = shell(*words.split())
    assert outcome.status == 128 + number
    assert sentence(outcome) == expected
    assert [signal.getsignal(one) for one in NUMBERS] == before


def test_every_command_is_here() -> None:
    from hessblocks.cli.app import OWN

    assert WORK.keys() == OWN.keys()


def test_what_torchrun_passes_on_does_not_disturb_the_clean_up(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned = []

    def work(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(True)

    monkeypatch.setattr("hessblocks.cli.terminal.plain_table", work)
    # on a loaded machine more than a second may pass between two lines
    monkeypatch.setattr("hessblocks.cli.interruption.ONE_EVENT", 3600.0)
    assert shell("presets").status == 128 + signal.SIGINT
    assert cleaned


def test_a_second_signal_later_ends_a_clean_up_that_hangs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("still cleaning up")

    monkeypatch.setattr("hessblocks.cli.terminal.plain_table", work)
    monkeypatch.setattr("hessblocks.cli.interruption.ONE_EVENT", 0.0)
    assert shell("presets").status == 128 + signal.SIGINT


def test_an_ignored_signal_stays_ignored(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `nohup` asks for."""

    def work(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGHUP)
        raise OSError(0, "still here", "presets")

    monkeypatch.setattr("hessblocks.cli.terminal.plain_table", work)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert "still here" in sentence(shell("presets"))
    finally:
        signal.signal(signal.SIGHUP, before)


STEPS = {
    "train": "hessblocks.training.trainer.GuardedTrainer.training_step",
    "compare": "hessblocks.training.trainer.GuardedTrainer.training_step",
    "curvature": "hessblocks.inspection.curvature_run.CurvatureRun._measure",
}
"""What each command does several times."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("train", signal.SIGTERM),
        ("curvature", signal.SIGTERM),
        ("compare", signal.SIGTERM),
        *(("train", number) for number in NUMBERS),
    ],
    ids=str,
)
def test_a_command_that_was_ended_by_a_signal_goes_on(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    assert said_when_ended(command, STEPS[command], number, tmp_path / "out") == GOES_ON


def said_when_ended(command: str, step: str, number: signal.Signals, out: Path) -> str:
    """What a command says that a signal ends at its third step; it goes on, and nothing is lost."""
    whole = undisturbed(command)

    def at_the_third() -> None:
        commands.at_call(step, 3, lambda: signal.raise_signal(number))

    ended = commands.run(command, commands.code(), out, before=at_the_third)
    assert ended.status == 128 + number, ended.said
    assert "Traceback" not in ended.said
    left = [path.name for path in out.rglob(".*") if path.is_file()]
    assert not [name for name in left if "partial" in name or "holder" in name]
    assert commands.run(command, commands.code(), out).status == 0
    assert commands.results(out) == whole.results
    return ended.sentences[-1]
