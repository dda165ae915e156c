"""The shell completes commands and options."""

import pytest

from hessblocks.cli.app import COMPLETE, main
from hessblocks.cli.commands import COMMANDS

Printed = pytest.CaptureFixture[str]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert main(["--show-completion", shell]) == 0
    assert f"{COMPLETE}=complete_{shell}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("hessblocks pre", {"presets"}),
        ("hessblocks tr", {"train"}),
        ("hessblocks compare --pres", {"--presets"}),
    ],
)
def test_words_are_completed(
    words: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setenv(COMPLETE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    assert main([]) == 0
    assert set(capsys.readouterr().out.split()) == offered


def test_every_command_is_offered(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    monkeypatch.setenv(COMPLETE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "hessblocks ")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert main([]) == 0
    offered = set(capsys.readouterr().out.split())
    assert offered - {"reproduce"} == {command.__name__ for command in COMMANDS}
