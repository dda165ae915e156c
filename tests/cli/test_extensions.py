"""Commands and kinds of folders that other distributions add, and what is said without them."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated

import pytest
from cyclopts import Parameter

from hessblocks.cli import FolderKind, app, extensions
from hessblocks.cli.extensions import COMMANDS, FOLDERS
from tests.cli.helpers import Shell, sentence

LACKING = "hessblocks-studies is not installed; run pip install hessblocks-studies."
BREWED = {"command": "brew", "cups": 2}


def brew(cups: Annotated[int, Parameter(help="How many.")] = 1, /) -> None:
    """Brew tea."""
    print(f"{cups} cups")


def is_brewed(folder: Path) -> bool:
    path = folder / "config.json"
    return path.exists() and "cups" in json.loads(path.read_text())


BREWS = FolderKind(
    holds=is_brewed,
    write_page=lambda folder: (folder / "tea.html", ["milk"]),
)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points of all other distributions, which a test fills."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(
        extensions, "_entries", lambda group: tuple(one for one in found if one.group == group)
    )
    own = {name: one for name, one in app.app._commands.items() if name != "reproduce"}
    monkeypatch.setattr(app.app, "_commands", own)
    return found


def entry(name: str, place: str, group: str = COMMANDS) -> EntryPoint:
    return EntryPoint(name=name, value=f"{__name__}:{place}", group=group)


@pytest.mark.parametrize("words", ["", "fig3a --scale smoke", "--list", "--nonsense", "--help"])
def test_a_command_of_a_distribution_that_is_not_installed_says_what_to_install(
    shell: Shell, others: list[EntryPoint], words: str
) -> None:
    outcome = shell("reproduce", *words.split())
    assert (outcome.status, outcome.output) == (2, "")
    assert sentence(outcome) == f"hessblocks: reproduce: {LACKING}"


@pytest.mark.parametrize(
    "config", [{"study": "mlp", "scale": "smoke"}, {"studies": {}}], ids=["one", "several"]
)
def test_a_folder_of_studies_without_the_studies_says_what_to_install(
    shell: Shell, others: list[EntryPoint], tmp_path: Path, config: dict
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"command": "reproduce", **config}))
    outcome = shell("report", tmp_path)
    assert (outcome.status, outcome.output) == (2, "")
    said = f"hessblocks: DIR: {tmp_path} was written by `hessblocks reproduce`; {LACKING}"
    assert sentence(outcome) == said
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_command_is_added_listed_and_run(shell: Shell, others: list[EntryPoint]) -> None:
    others.append(entry("brew", "brew"))
    assert "│ brew " in shell("--help").output
    assert "Brew tea." in shell("--help").output
    assert "─ From hessblocks-studies ─" in shell("--help").output
    assert shell("brew", 3).output == "3 cups\n"
    assert sentence(shell("brwe")).startswith(
        "hessblocks: No such command 'brwe'. Did you mean 'brew'?"
    )
    assert shell("brew", "many").status == 2


def test_for_a_command_of_ours_no_entry_point_is_read(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "_entries", lambda group: pytest.fail(group))
    assert shell("presets", "--help").status == 0
    assert shell("train", "--nonsense").status == 2


def test_no_distribution_takes_the_place_of_a_command_of_ours(
    shell: Shell, others: list[EntryPoint]
) -> None:
    others += [entry("presets", "brew"), entry("brew", "brew")]
    assert "Brew" not in shell("presets", "--help").output
    assert shell("--help").output.count("Brew tea.") == 1


@pytest.mark.parametrize("place", ["nothing", "brew.nothing"])
def test_what_cannot_be_loaded_is_one_sentence_and_our_commands_work(
    shell: Shell, others: list[EntryPoint], place: str
) -> None:
    others.append(entry("bake", place))
    outcome = shell("bake")
    assert outcome.status == 1
    assert sentence(outcome).startswith("hessblocks: hessblocks-studies cannot be loaded (")
    assert shell("presets").status == 0


def test_a_kind_of_folder_has_its_own_page(
    shell: Shell, others: list[EntryPoint], tmp_path: Path
) -> None:
    others.append(entry("brews", "BREWS", FOLDERS))
    (tmp_path / "config.json").write_text(json.dumps(BREWED))
    reported = shell("report", tmp_path)
    page = tmp_path / "tea.html"
    assert (reported.status, reported.output) == (0, f"missing milk\nreport  {page}\n")
