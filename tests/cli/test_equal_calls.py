"""A call like a finished one is answered from its folder; any change of what it rests on is not."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hessblocks import inspection
from hessblocks.cli.commands import finished_calls, work
from hessblocks.report import PAGES
from hessblocks.storage import environment, read_object, write_json
from hessblocks.storage.config import differences

FOLDER = Path("runs", "cache-m")
FILES = {
    "m/config.json": "{}",
    "m/.hessblocks-template": "a",
    "m/finished.json.txt": "a",
    "m/model.safetensors.index.json": '{"weight_map": {"a": "part/a.safetensors"}}',
    "m/part/a.safetensors": "a",
    "m/checkpoint-5/model.safetensors": "a",
    "m/.git/index": "a",
    "texts/a.txt": "a text",
    "texts/finished.json.md": "a text",
    "texts/.git/index": "a",
    "texts/__pycache__/a.pyc": "a",
    "package/page.html": "a",
}


class Command:
    """`price` whose measurement writes a file, warns and says something; it counts itself."""

    def __init__(self) -> None:
        self.count = 0
        self.meanwhile: Callable[[], Any] = lambda: None
        self.settings: dict[str, Any] = {"source": "m", "data": "texts", "out": None}

    def measure(self, *, out: Any, progress: Any, finish: Any, **_: Any) -> dict[str, Any]:
        self.count += 1
        folder = Path(out or FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bill.csv").write_text("a")
        if "file" in self.settings:
            Path(self.settings["file"]).write_text("a")
        with progress.stage("draws"):
            progress.note("stored in 4 bits")
        warnings.warn("2 files are left out", stacklevel=1)
        self.meanwhile()
        finish(folder)
        return {"out": str(folder)}

    def measures(self, **settings: Any) -> bool:
        before = self.count
        self.settings |= settings
        work.measure_in_folder("price", "inspection:measure_price", self.settings, as_json=False)
        return self.count > before


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)
    command = Command()
    page = replace(
        PAGES["price"],
        write=lambda out: out / "report.html",
        read=lambda out: {"out": str(out)},
        summary=dict,
        lines=lambda _: [],
    )
    monkeypatch.setitem(PAGES, "price", page)
    monkeypatch.setattr(inspection, "measure_price", command.measure)
    monkeypatch.setattr(finished_calls, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(finished_calls, "environment", lambda: {"packages": {"torch": "1"}})
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        yield command


def test_an_answer_says_again_what_was_said(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.measures()
    capsys.readouterr()
    assert not command.measures()
    *_, said, stored, warning = capsys.readouterr().err.splitlines()
    assert said == f"{FOLDER} holds the results of this call; nothing is measured again"
    assert stored == "said then: stored in 4 bits"
    assert warning == "said then: warning: 2 files are left out"
    note = read_object(FOLDER / "finished.json")
    write_json(FOLDER / "finished.json", note | {"said": 5})  # damaged
    assert command.measures()


@pytest.mark.parametrize(
    "name",
    [
        "m/config.json",
        "m/.hessblocks-template",
        "m/finished.json.txt",
        "m/part/a.safetensors",
        "texts/a.txt",
        "texts/finished.json.md",
        "package/page.html",
        "runs/cache-m/bill.csv",
    ],
)
def test_any_file_that_is_read_or_written_counts(command: Command, name: str) -> None:
    assert command.measures()
    Path(name).write_text(f"{FILES.get(name, 'a')} ")
    assert command.measures()
    assert not command.measures()


def test_files_that_are_not_read_do_not_count(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.measures()
    for name in ("m/checkpoint-5/model.safetensors", "m/.git/index", "texts/.git/index"):
        Path(name).write_text("other")
    Path("texts/__pycache__/a.pyc").write_text("other")
    (FOLDER / ".hessblocks.holder").write_text("process 5")
    assert not command.measures()
    monkeypatch.setattr(finished_calls, "environment", lambda: pytest.fail("described in vain"))
    assert command.measures(source="preset:sas")
    assert command.measures()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("environment", lambda: {"packages": {"torch": "2"}}),
        ("environment", lambda: {"packages": {"torch": "1"}, "accelerator": "H200"}),
        ("distributions", lambda name: [SimpleNamespace(version="0.0")] * (name == "gguf")),
    ],
)
def test_other_packages_and_devices_measure_again(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, other: Any
) -> None:
    assert command.measures()
    monkeypatch.setattr(finished_calls, name, other)
    assert command.measures()


def test_the_real_environment_has_what_changes_an_answer(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_calls, "environment", environment)
    assert command.measures()
    call = read_object(FOLDER / "finished.json")["call"]
    assert {"torch", "transformers", "tokenizers"} <= {*call["packages"]}
    assert {"python", "accelerator", "commit", "gguf"} <= {*call}
    assert not command.measures()


def test_a_file_that_vanishes_costs_the_note_and_nothing_else(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("texts/a.txt", "texts/finished.json.md"):  # the second leaves no file to read
        command.meanwhile = Path(name).unlink
        assert command.measures()
        assert not (FOLDER / "finished.json").exists()
    Path(name).write_text("a text")
    command.meanwhile = lambda: Path("x.gguf").unlink()
    assert command.measures(file="x.gguf")
    assert not (FOLDER / "finished.json").exists()
    command.meanwhile = lambda: monkeypatch.setattr(finished_calls, "sha256", refuse)
    assert command.measures()  # cannot be read at the end
    assert command.measures()  # nor at the start
    assert not (FOLDER / "finished.json").exists()


def test_long_values_are_cut_where_settings_differ() -> None:
    old, new = ({"digest": c * 64, "edits": [c * 64] * 50} for c in "ab")
    for text in differences(old, new):
        assert "bbb" in text
        assert "aaa" in text
        assert len(text) < 500
