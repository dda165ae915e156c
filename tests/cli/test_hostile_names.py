"""Names that somebody else chose: printed as they are, quoted for the shell, harmless in tables and
pages."""

import csv
import json
import re
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import hessblocks as hb
from hessblocks.cli import app
from hessblocks.cli.terminal import ScreenProgress, plain_table, show
from hessblocks.data.corpus import CacheWarning
from hessblocks.escape import printable, printable_lines, shell_line
from hessblocks.report.page import command_line
from hessblocks.storage.tables import ResultRow, read_results, write_results
from tests.cli.helpers import Shell, sentence
from tests.pictures import empty_pictures
from tests.report.few_pictures import draw_no_curvature, draw_only
from tests.report.folders import Folder

NAMES = {
    "closing": "x[/b]",
    "colour": "[red]x[/red]",
    "emoji": ":skull: [link=x]x[/link]",
    "erase": "x\x1b[2Jx",
    "title": "x\x1b]0;owned\x07",
    "c1": "x\x9b2J",
    "right": "gpj\u202eexe",
    "newline": "x\nhessblocks: all is well",
    "return": "xx\rhessblocks",
    "quotes": "x'\"`$(touch owned)`\\",
    "mathematics": r"$\frac{x$ _^{",
    "markup": "<script>alert('x')</script><b>&amp;",
    "formula": "=1+1",
    "plus": "+1",
    "minus": "--out=x",
    "at": "@SUM(1)",
    "apostrophe": "'=1+1",
    "tab": "\t=1",
    "byte": "x\udcff",
}
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
"""What would act on a terminal; line ends are looked at by themselves."""


def words_of(line: str, folder: Path) -> list[str]:
    """What a shell makes of a line, undecodable bytes among it."""
    script = f"printf '%s\\0' {line}"
    found = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=True)
    assert not list(folder.iterdir())
    return [word.decode(errors="surrogateescape") for word in found.stdout.split(b"\0")[:-1]]


def test_a_name_is_shown_on_one_line_and_typed_again_as_it_is(tmp_path: Path) -> None:
    for name in NAMES.values():
        assert not RAW.search(printable(name) + printable_lines(name) + shell_line([name]))
        assert "\n" not in printable(name) + shell_line([name])
        words = ["hessblocks", name, "--out", name]
        assert words_of(shell_line(words), tmp_path) == words


def test_a_harmless_name_stays() -> None:
    for name in ("runs/mine", "Größe ‖H‖ ± 1", "模型", "🦜"):
        assert printable(name) == name
    assert shell_line(["a b", "c"]) == "'a b' c"


def test_a_name_on_the_terminal_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES.values():
        table = plain_table(("group", "value"), [(name, "1.0")])
        show({}, [table, f"zero: {name}"], [f"report  {name}"], as_json=False)
        out = capsys.readouterr().out
        assert not RAW.search(out)
        assert out.count(printable(name)) == 3, name


def test_a_name_in_a_complaint_a_warning_and_a_stage_is_printed_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in NAMES.values():
        app._complain(f"--out: {name} is taken.", [])
        app._show_warning(f"{name} is damaged", CacheWarning)
        with ScreenProgress().stage("training", name):
            pass
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 3, name
        assert all(printable(name) in line and not RAW.search(line) for line in lines), name


def test_a_bar_shows_a_name_as_it_is() -> None:
    for name in NAMES.values():
        progress = ScreenProgress()
        with progress.stage("training", name, 2):
            progress.step(1, 0.5)
            columns = [column for column in progress._bars.columns if hasattr(column, "markup")]
            shown = str(columns[0].render(progress._bars.tasks[0]))
        assert printable(name) in shown, name
        assert not RAW.search(shown), name


@pytest.mark.parametrize(
    "name", ["newline", *(pytest.param(n, marks=pytest.mark.slow) for n in ("closing", "quotes"))]
)
def test_a_folder_of_that_name_is_trained_in_and_its_command_works(
    shell: Shell, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / NAMES[name]
    found = shell.train(out)
    assert found.status == 0, found.errors
    assert not RAW.search(found.output + found.errors)
    report, following = found.output.splitlines()[-2:]
    assert report == f"report  {printable(str(out))}/report.html"
    empty = tmp_path / "empty"
    empty.mkdir()
    python, _, code, model = words_of(following.removeprefix("next    "), empty)
    assert (python, model) == ("python", str(out / "model"))
    monkeypatch.setattr(sys, "argv", ["-c", model])
    shell.capture.readouterr()
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    assert shell.capture.readouterr().out.startswith("def")  # text that the model went on with


@pytest.mark.parametrize(
    "command",
    ["curvature", pytest.param("signal", marks=pytest.mark.slow), "report"],  # as curvature
)
def test_a_folder_that_is_not_there_is_named_on_one_line(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    for name in NAMES.values():
        outcome = shell(command, tmp_path / "absent" / name)
        assert outcome.status != 0, name
        assert printable(name) in sentence(outcome)
        assert not RAW.search(outcome.errors), name


def test_a_table_holds_no_formula_and_is_read_back_equal(tmp_path: Path) -> None:
    """Names of models are printable, and groups have none that are left out here."""
    for name in (name for name in NAMES.values() if not re.search("[\udcff\r]", name)):
        row = ResultRow(
            preset=name, seed=0, quantity="loss", group=name, value=-1.5, method="exact"
        )
        write_results(tmp_path / "results.csv", [row, row])
        assert read_results(tmp_path / "results.csv") == [row, row]
        with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
            cells = list(csv.DictReader(file))
        assert cells[0]["value"] == "-1.5"
        assert not re.match(r"[=+\-@\t\r]", cells[0]["preset"]), name


class Scripts(HTMLParser):
    """Elements of a page that run or load something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in ("script", "b", "iframe", "link") or any(n.startswith("on") for n, _ in attrs):
            self.found.append((tag, attrs))


def elements(page: Path) -> list[tuple[str, Any]]:
    scripts = Scripts()
    scripts.feed(page.read_text(encoding="utf-8"))
    return scripts.found


@pytest.mark.slow
def test_the_page_and_pictures_of_somebody_elses_run_are_whole(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every day one figure, whose names stand in a legend."""
    draw_only(monkeypatch, ["loss-steps"], phone=False)
    page_of_somebody_else_is_whole(shell, tmp_path, monkeypatch)


@pytest.mark.slow
def test_every_picture_of_somebody_elses_run_is_whole(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_of_somebody_else_is_whole(shell, tmp_path, monkeypatch)


def page_of_somebody_else_is_whole(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks, groups, data and command of those names; a page of plain ones has the same
    elements."""
    written = [name for name in NAMES.values() if "\udcff" not in name]
    plain = Folder(presets=tuple(f"p{place}" for place in range(len(written))), layers=1)
    hostile = Folder(presets=tuple(written), layers=1)
    hostile.config["data"]["name"] = "".join(NAMES.values())
    hostile.config["command"] = NAMES["erase"]
    known = dict.fromkeys(row["group"] for row in hostile.rows if row["group"])
    called = dict(zip(known, written, strict=False))
    for row in hostile.rows:
        row["group"] = called.get(row["group"], row["group"])
    pages = [folder.write(tmp_path / name) for folder, name in ((plain, "p"), (hostile, "h"))]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        for page in reversed(pages):
            found = shell("report", page)
            assert found.status == 0, found.errors
            assert not RAW.search(found.output + found.errors)
            empty_pictures(monkeypatch)  # of the plain one
    assert elements(pages[1] / "report.html") == elements(pages[0] / "report.html")
    text = (pages[1] / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b\u202e]", text)
    for picture in (pages[1] / "figures").glob("*.svg"):
        ElementTree.fromstring(picture.read_bytes())


edited = pytest.mark.filterwarnings(
    "ignore::hessblocks.curvature.AttentionBackendWarning",
    "ignore::hessblocks.storage.DamageWarning",  # its tables were edited
)


@pytest.mark.slow
@edited
def test_the_page_of_somebody_elses_curvature_is_whole(shell: Shell, tmp_path: Path) -> None:
    page_of_curvature_is_whole(shell, tmp_path, "--parts", "full", "--groups", "*.key", "--map")


@pytest.mark.slow
@edited
def test_every_picture_of_somebody_elses_curvature_is_whole(shell: Shell, tmp_path: Path) -> None:
    page_of_curvature_is_whole(
        shell, tmp_path, "--groups", "layers.0.attention.*", "--map", "--spectrum"
    )


def page_of_curvature_is_whole(shell: Shell, tmp_path: Path, *more: str) -> None:
    model = tmp_path / "[red]\x1b=x$"
    hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=11, context=8).save_pretrained(model)
    out = tmp_path / "out"
    few = ("--data", "random", "--sequences", 1, "--tokens", 4, "--probes", 4)
    with pytest.MonkeyPatch.context() as patch:
        draw_no_curvature(patch)
        found = shell("curvature", model, *few, *more, "--out", out)
    assert found.status == 0, found.errors
    assert not RAW.search(found.output + found.errors)
    config = json.loads((out / "config.json").read_text())
    group = config["groups"][0]
    for path in out.glob("*.csv"):
        text = path.read_text()
        path.write_text(text.replace(group, "layers.x [red] $\\frac{ <b> \x1b"))
    found = shell("report", out)
    assert found.status == 0, found.errors
    text = (out / "report.html").read_text()
    assert "<b>" not in text
    assert "\x1b" not in text
    assert r"[red] $\frac{ &lt;b&gt; \x1b" in text
    for picture in (out / "figures").glob("*.svg"):
        ElementTree.fromstring(picture.read_bytes())


def test_a_command_of_somebody_else_is_quoted_and_of_hessblocks(tmp_path: Path) -> None:
    (tmp_path / "command.json").write_text(json.dumps({"words": ["train", "; reboot", "\x1b"]}))
    assert command_line(tmp_path).startswith("hessblocks train '; reboot' ")
    assert not RAW.search(command_line(tmp_path))
