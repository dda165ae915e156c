"""The planted faults can still be planted, and the tests that see them are still there."""

import ast
import builtins
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import SlowOnlyByName, verdict_of
from tests.mutants.every import MUTANTS
from tests.mutants.mutant import Mutant, fault
from tests.mutants.named_tests import found_test
from tests.mutants.pattern import MANY, ONE, parsed
from tests.mutants.planting import place_of, planted
from tests.mutants.sources import PACKAGES, TOP, sources


@pytest.fixture(autouse=True, scope="module")
def _no_collections() -> Iterator[None]:
    """Half a million nodes of syntax trees would be searched again and again for garbage."""
    gc.disable()
    yield
    gc.enable()


def test_every_fault_can_be_planted_and_its_tests_exist() -> None:
    assert [reason for mutant in MUTANTS for reason in obstacles(mutant)] == []


def obstacles(mutant: Mutant) -> list[str]:
    """Reasons why a fault cannot be planted, or why no test would see it for what it is."""
    try:
        file, wrong = planted(mutant)
    except ValueError as error:  # which begins with the fault's name
        return [str(error)]
    reasons = []
    if wrong.count(b"\n") < file.read_bytes().count(b"\n"):
        reasons.append("lines have lost their numbers")
    if not mutant.tests:
        reasons.append("no test is named")
    for test in mutant.tests:
        try:
            found_test(test)
        except ValueError as error:
            reasons.append(str(error))
    source = next(source for source in sources() if source.file == file)
    # a name that was renamed would be a NameError, which every test sees
    if unknown := names_of(mutant.replace) - source.words - set(dir(builtins)):
        reasons.append(f"{source.file.name} does not know {sorted(unknown)}")
    return [f"{mutant.name}: {reason}" for reason in reasons]


def test_a_fault_that_cannot_be_planted_is_named() -> None:
    sound = fault("one", "SQUARES * variance => 3 * variance", "test_the_maps_are_current")
    assert obstacles(sound) == []
    for changes, said in (
        ({"find": "no_such_name"}, "found 0: nowhere"),
        ({"tests": ()}, "no test is named"),
        ({"tests": ("test_none",)}, "expected one test test_none, found 0"),
        ({"replace": "no_such_name"}, "does not know ['no_such_name']"),
    ):
        (reason,) = obstacles(replace(sound, **changes))  # type: ignore[arg-type]
        assert reason.startswith(f"{sound.name}: ")
        assert said in reason


def names_of(text: str) -> set[str]:
    """Names that a pattern reads, without its metavariables and what it gives a value itself."""
    nodes = [node for part in parsed(text or "pass") for node in ast.walk(part)]
    named = [node for node in nodes if isinstance(node, ast.Name)]
    stored = {node.id for node in named if isinstance(node.ctx, ast.Store)}
    return {node.id for node in named if not node.id.startswith((ONE, MANY))} - stored


def test_every_package_has_faults_of_its_own_names() -> None:
    for package in PACKAGES:
        rooms = {path.name for path in package.iterdir() if (path / "__init__.py").is_file()}
        places = [place_of(mutant).file for mutant in MUTANTS]
        faulty = {
            place.relative_to(package).parts[0] for place in places if package in place.parents
        }
        assert faulty >= rooms
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60


def test_failed_tests_alone_are_a_kill() -> None:
    assert [s for s in (0, 1, 2, 3, 4, 5, 70, -9, -11) if verdict_of(s) == "killed"] == [1]


@dataclass
class Item:
    """As much of a test as is looked at."""

    nodeid: str
    slow: bool

    def get_closest_marker(self, name: str) -> str | None:
        return name if self.slow else None


@pytest.mark.parametrize(
    ("named", "left"),
    [
        ("a.py", ["a.py::test_day", "a.py::test_both[day]"]),
        ("a.py::test_both", ["a.py::test_day", "a.py::test_both[day]"]),
        (
            "a.py::test_both[slow]",
            ["a.py::test_day", "a.py::test_both[day]", "a.py::test_both[slow]"],
        ),
        ("a.py::test_slow", ["a.py::test_day", "a.py::test_both[day]", "a.py::test_slow[one]"]),
    ],
)
def test_slow_tests_run_where_a_fault_names_no_everyday_one(named: str, left: list[str]) -> None:
    items = [
        Item("a.py::test_day", slow=False),
        Item("a.py::test_both[day]", slow=False),
        Item("a.py::test_both[slow]", slow=True),
        Item("a.py::test_slow[one]", slow=True),
        Item("a.py::test_slow_as_well", slow=True),
    ]
    SlowOnlyByName([f"{TOP}/{named}"]).pytest_collection_modifyitems(items)  # type: ignore[arg-type]
    assert [item.nodeid for item in items] == left


def test_a_test_is_found_where_it_stands(tmp_path: Path) -> None:
    write_tests(tmp_path)
    for words, expected in {
        "test_one": "a/test_x.py::test_one",
        "test_one[case]": "a/test_x.py::test_one[case]",
        "test_y.py": "b/test_y.py",
        "b/test_x.py": "b/test_x.py",
        "test_y.py::test_two": "b/test_y.py::test_two",
    }.items():
        assert found_test(words, (tmp_path,)) == str(tmp_path / expected)


def test_a_test_that_does_not_stand_once_is_refused(tmp_path: Path) -> None:
    write_tests(tmp_path)
    for words in ("test_two", "test_x.py", "test_none", "test_y.py::test_one", "x.py"):
        with pytest.raises(ValueError, match=re.escape(f"expected one test {words}")):
            found_test(words, (tmp_path,))


def write_tests(folder: Path) -> None:
    for file, names in {
        "a/test_x.py": ["one"],
        "b/test_x.py": ["two"],
        "b/test_y.py": ["two"],
    }.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("".join(f"def test_{name}(): ...\n" for name in names))
