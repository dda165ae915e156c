"""One table of tasks: README, help, quickstart, the list of pages and the site's menu follow it."""

import re
import shlex
from pathlib import Path
from runpy import run_path

import pytest

from hessblocks.cli.app import OWN, TASKS, app

ROOT = Path(__file__).parents[1]
LISTED = {name: task for name, task in TASKS.items() if "task" in task}
COMMANDS = {name: task for name, task in TASKS.items() if "group" in task}


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def test_the_readme_lists_the_tasks() -> None:
    rows = re.findall(r"(?m)^(.*) \| `(.*)` \| \[\w+\]\((.*)\)$", read("README.md"))
    expected = [(task["task"], task["example"], task["page"]) for task in LISTED.values()]
    assert rows == expected


def test_the_help_is_in_the_order_of_the_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*COMMANDS} == {*OWN}
    app.help_print([])
    shown = capsys.readouterr().out
    places = [re.search(rf"│ {name} ", shown) for name in COMMANDS]
    assert all(places)
    assert sorted(places, key=lambda found: found.start()) == places
    assert all(TASKS[name]["example"] in " ".join(shown.split()) for name in ("quantise", "cache"))


@pytest.mark.parametrize("name", COMMANDS)
def test_usage_names_what_is_needed_and_its_example_is_read(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app.help_print([name])
    usage = capsys.readouterr().out.splitlines()[0]
    assert usage == f"Usage: hessblocks {name} {COMMANDS[name]['usage']}"
    own = app[name].assemble_argument_collection()
    needed = [argument for argument in own if argument.parameter.required or argument.required]
    assert all(argument.names[0].lstrip("-").upper() in usage.upper() for argument in needed)
    program, command, *words = shlex.split(COMMANDS[name]["example"])
    assert (program, command) == ("hessblocks", name)
    options = {argument for word in own for argument in word.names}
    assert {word for word in words if word.startswith("--")} <= options


def test_pages_have_their_reader_and_stand_in_the_menu() -> None:
    users = run_path(str(ROOT / "docs" / "make_site.py"))["USERS"]
    menu = read("mkdocs.yml")
    for name, task in LISTED.items():
        page = task["page"].removeprefix("docs/")
        row = re.search(rf"(?m)^\| \[{page}\]\({page}\) \| ([^:|]+):", read("docs/index.md"))
        assert row, page
        assert row[1] == task["reader"], name
        assert task["reader"] in users
        assert f"- {task['page']}" in menu or f": {task['page']}" in menu


def test_the_quickstart_takes_the_steps_of_the_tasks() -> None:
    steps = re.findall(r"```bash\n(.*?)```", read("docs/quickstart.md"), flags=re.DOTALL)
    typed = [line for step in steps for line in step.splitlines()]
    assert len(read("docs/quickstart.md").split()) <= 600
    for name in ("quantise", "cache", "simplify", "curvature"):
        assert TASKS[name]["example"] in typed
    assert any(line.startswith("hessblocks compare") for line in typed)
