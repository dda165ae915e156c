"""The README says what is: its code runs, its links lead somewhere, its commands and packages exist."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import typer

import hessblocks as hb
from hessblocks.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d+\.?\d*(?:e-?\d+)?")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
def test_the_ten_lines_print_what_is_shown() -> None:
    (code,) = blocks("python")
    shown = next(text for text in blocks("text") if text.startswith("query estimate"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert NUMBER.sub("#", printed.getvalue()) == NUMBER.sub("#", shown)
    pairs = zip(NUMBER.findall(printed.getvalue()), NUMBER.findall(shown), strict=True)
    for got, expected in pairs:
        assert float(got) == pytest.approx(float(expected), rel=0.3)


def test_every_link_to_a_file_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert targets
    assert not missing


def test_every_command_exists() -> None:
    known = set(getattr(typer.main.get_command(app), "commands", {}))
    named = set(re.findall(r"`hessblocks ([a-z]+)", README))
    assert named <= known
    assert known - named == set(), "a command that the README does not name"


def test_the_map_names_every_package() -> None:
    named = set(re.findall(r"`src/hessblocks/([a-z]+)`", README))
    there = {path.parent.name for path in (ROOT / "src" / "hessblocks").glob("*/__init__.py")}
    assert named == there


def test_every_name_of_the_library_exists() -> None:
    for name in set(re.findall(r"\bhb\.(\w+)", README)):
        assert getattr(hb, name) is not None
