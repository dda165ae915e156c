"""The shell completes commands, options and the names that options take."""

import shutil
import subprocess
from pathlib import Path

import pytest

import hessblocks as hb
from hessblocks.cli.app import OWN, main
from hessblocks.cli.options import KNOWN, PRESETS
from hessblocks.settings.run_settings import TRACKERS
from tests.cli.test_start import HEAVY, answer

Printed = pytest.CaptureFixture[str]
ASK = """
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$(($# - 2))
_hessblocks
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script that bash reads."""
    told, shown, *_ = answer("--show-completion", "bash")
    assert told["status"] == 0
    path = tmp_path_factory.mktemp("bash") / "completion"
    path.write_text(shown)
    return path


def offered(script: Path, *words: str) -> set[str]:
    """What bash offers in the place of the last word."""
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run(
        [bash, "-c", ASK, "bash", script, "hessblocks", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return {word.strip() for word in done.stdout.splitlines() if word.strip()}


@pytest.mark.parametrize(
    "shell", ["bash", *(pytest.param(name, marks=pytest.mark.slow) for name in ("zsh", "fish"))]
)  # a second for each
def test_the_script_for_a_shell_is_shown(shell: str, capsys: Printed) -> None:
    assert main(["--show-completion", shell]) == 0
    shown = capsys.readouterr().out
    assert "hessblocks" in shown
    assert "--learning-rate" in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pre", {"presets"}),
        ("tr", {"train"}),
        ("compare --pres", {"--presets"}),
        ("train sas --optimiser s", {"sgd"}),
        ("curvature m --level he", {"head"}),
        ("reproduce --scale sm", {"smoke"}),
    ],
)
def test_words_are_completed(script: Path, words: str, expected: set[str]) -> None:
    assert offered(script, *words.split(" ")) == expected


def test_every_command_is_offered(script: Path) -> None:
    found = {word for word in offered(script, "") if not word.startswith("-")}
    assert found - {"reproduce"} == {*OWN}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train sa", {"sas", "sas-p", "sas-p-no-norm"}),
        ("compare --presets pre-ln,op", {"pre-ln,op"}),
        ("signal preset:v", {"preset:v-skipinit"}),
        ("train sas --device c", {"cpu", "cuda"}),
        ("train sas --report-to w", {"wandb"}),
        ("train sas --curvature-groups query,k", {"query,key"}),
        ("reproduce fig3", {"fig3a", "fig3b"}),
    ],
)
def test_names_are_completed(words: str, expected: set[str], capsys: Printed) -> None:
    """The script asks the command itself, which offers all names; the shell takes those that
    fit."""
    given = words.split(" ")
    assert main(["__complete", *given]) == 0
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert {name for name in names if name.startswith(given[-1])} == expected


def test_names_are_offered_without_loading_anything_heavy() -> None:
    told, shown, *_ = answer("__complete", "compare", "--presets", "s")
    assert "sas-p" in shown.split()
    assert not HEAVY & set(told["loaded"])  # type: ignore[call-overload]


def test_the_names_that_are_offered_are_those_that_are_known() -> None:
    assert tuple(hb.PRESETS) == PRESETS
    assert set(KNOWN["report_to"]) == set(TRACKERS)
    sizes = {"depth": 1, "width": 16, "heads": 2, "vocab_size": 300, "context": 8}
    for position in KNOWN["position"]:
        assert hb.build("sas", **sizes, position=position) is not None
