"""The planted faults can still be planted, and the tests that see them are still there."""

import ast
import functools
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.mutants.__main__ import verdict_of
from tests.mutants.every import MUTANTS
from tests.mutants.mutant import Mutant, planted

TESTS = Path(__file__).parents[1]


@functools.cache
def names_in(file: Path) -> frozenset[str]:
    """Names of the tests of a file; none where there is no such file."""
    nodes = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    found = (node.name for node in nodes if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.name}")
def test_a_fault_can_be_planted_and_its_tests_exist(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    wrong = planted(text, mutant)
    assert wrong != text
    assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(text)), "a fault that changes no code"
    for test in mutant.tests:
        file, _, name = test.partition("::")
        names = names_in(TESTS / file)
        assert names, f"{file} has no tests"
        assert not name or name.partition("[")[0] in names, f"{file} has no {name}"


def test_every_package_has_faults_of_its_own_names() -> None:
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    assert {mutant.file.split("/")[0] for mutant in MUTANTS} >= packages
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60


@pytest.mark.parametrize("text", ["", "a = 1\n", "a = 1\na = 1\n"])
def test_a_text_that_does_not_stand_once_is_refused(text: str) -> None:
    mutant = Mutant(name="", file="a.py", find="a = 1", replace="a = 2", tests=())
    if text.count("a = 1") == 1:
        assert planted(text, mutant) == "a = 2\n"
    else:
        with pytest.raises(ValueError, match="expected it once"):
            planted(text, mutant)


@pytest.mark.parametrize("status", [0, 2, 3, 4, 5, 70, -9, -11])
def test_failed_tests_alone_are_a_kill(status: int) -> None:
    assert verdict_of(1) == "killed"
    assert verdict_of(status) != "killed"
