"""Every study that trains has a plan beside it, finished ones in docs: its rule or question, dated,
and each amendment with its moment."""

import re
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest

from hessblocks_studies.blocks_paper import STUDIES as BLOCKS
from hessblocks_studies.catalogue import FINISHED, find, names
from hessblocks_studies.shared import BlockSettings

MONTH = r"(?:\d{1,2}(?: and \d{1,2})?) [A-Z][a-z]+ \d{4}"
ROOMS = ("blocks_paper", "our_questions", "pretrained", "bill")
PLANS = sorted((Path(__file__).parents[2] / "docs" / "results" / "plans").glob("*.md"))
"""Plans of finished studies."""
TRAINED = [n for n in names() if isinstance(find(n).points("smoke")[0].settings, BlockSettings)]


def plan_of(room: str) -> str:
    return files(f"hessblocks_studies.{room}").joinpath("PLAN.md").read_text(encoding="utf-8")


def sections(plan: str) -> dict[str, str]:
    """Study → what stands below its name."""
    _, *parts = re.split(r"^## (.+)\n", plan, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def faults(section: str) -> list[str]:
    """What a section of a plan does not keep to."""
    before, *parts = re.split(r"^### (.+)\n", section, flags=re.MULTILINE)
    found = [f"words without a date: {before.strip()}"] if before.strip() else []
    heads, bodies = parts[::2], parts[1::2]
    if not heads or heads[0].startswith(("Amended", "Mended")):
        found.append("no rule or question comes first")
    for place, (head, body) in enumerate(zip(heads, bodies, strict=True)):
        if not re.search(MONTH, head):
            found.append(f"no date: {head}")
        if place and not head.startswith(("Amended", "Mended")):
            found.append(f"a second rule: {head}")
        if not body.strip():
            found.append(f"nothing below: {head}")
    return found


def room_of(name: str) -> str:
    return next(r for r in ROOMS if name in import_module(f"hessblocks_studies.{r}").STUDIES)


def test_the_studies_that_train_are_known() -> None:
    assert len(TRAINED) >= 10
    assert {*BLOCKS, "ladder"} <= {*TRAINED}


@pytest.mark.parametrize("name", TRAINED)
def test_a_study_that_trains_has_its_section(name: str) -> None:
    assert faults(sections(plan_of(room_of(name)))[name]) == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_plan_has_sections_of_studies_of_its_room_alone(room: str) -> None:
    found = sections(plan_of(room))
    known = import_module(f"hessblocks_studies.{room}").STUDIES
    assert [name for name in found if name not in known] == []
    assert not any(map(faults, found.values()))


def test_every_finished_study_keeps_its_plan() -> None:
    found = {
        name: text for path in PLANS for name, text in sections(path.read_text("utf-8")).items()
    }
    assert found.keys() == {*FINISHED}
    assert not any(map(faults, found.values()))


@pytest.mark.parametrize("name", ["ladder", *FINISHED])
def test_a_rule_that_judges_was_there_before_its_runs(name: str) -> None:
    plans = [path.read_text("utf-8") for path in PLANS] + [plan_of(room) for room in ROOMS]
    (section,) = (found[name] for found in map(sections, plans) if name in found)
    first = section.strip().splitlines()[0]
    assert first.startswith("### The rule, written down before the first run, ")


@pytest.mark.parametrize(
    ("section", "found"),
    [
        ("\n### The rule, 1 May 2026\n\nA.\n", []),
        ("\n### The rule, 1 May 2026\n\nA.\n\n### Amended on 2 and 3 May 2026\n\nB.\n", []),
        ("\n### The rule\n\nA.\n", ["no date: The rule"]),
        ("\nA.\n\n### The rule, 1 May 2026\n\nB.\n", ["words without a date: A."]),
        ("\n### The rule, 1 May 2026\n", ["nothing below: The rule, 1 May 2026"]),
        ("\n### Amended on 1 May 2026\n\nA.\n", ["no rule or question comes first"]),
        ("", ["no rule or question comes first"]),
        (
            "\n### A rule, 1 May 2026\n\nA.\n\n### A rule, 2 May 2026\n\nB.\n",
            ["a second rule: A rule, 2 May 2026"],
        ),
    ],
)
def test_planted_faults_of_a_section_are_seen(section: str, found: list[str]) -> None:
    assert faults(section) == found
