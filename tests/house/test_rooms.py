"""A room holds at most fourteen modules, and a name says one thing."""

import collections
from pathlib import Path

import pytest

from tests.house.source import ROOT, STUDIES, files

MOST = 14


def modules(root: Path) -> list[Path]:
    return [path for path in files(root) if path.name != "__init__.py"]


def crowded(root: Path) -> dict[str, int]:
    counted = collections.Counter(str(path.parent.relative_to(root)) for path in modules(root))
    return {folder: count for folder, count in counted.items() if count > MOST}


def recurring(root: Path) -> set[str]:
    """Package and name of modules that a package has twice."""
    counted = collections.Counter(
        f"{path.relative_to(root).parts[0]}: {path.stem}" for path in modules(root)
    )
    return {name for name, count in counted.items() if count > 1}


@pytest.mark.parametrize("root", [ROOT, STUDIES], ids=lambda root: root.name)
def test_no_folder_is_crowded(root: Path) -> None:
    assert not crowded(root)


@pytest.mark.parametrize(("root", "known"), [(ROOT, {"report: page"}), (STUDIES, set())], ids=str)
def test_a_package_has_a_module_name_once(root: Path, known: set[str]) -> None:
    assert recurring(root) <= known, "each report has one page, in its own room"


def test_a_planted_crowd_and_a_planted_second_name_are_seen(tmp_path: Path) -> None:
    for folder in ("a", "a/inner", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "norms.py").touch()
    for number in range(MOST):
        (tmp_path / "a" / f"m{number}.py").touch()
    assert crowded(tmp_path) == {"a": MOST + 1}
    assert recurring(tmp_path) == {"a: norms"}
