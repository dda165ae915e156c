"""Imports point one way: a package imports only what stands below it."""

import ast
from pathlib import Path

import pytest

import hessblocks

ROOT = Path(hessblocks.__file__).parent
BASE = {"errors", "files", "heatmap", "labels", "locks", "_version"}
LAW = {
    "linalg": set(),
    "blocks": set(),
    "theory": {"linalg"},
    "curvature": {"linalg", "theory"},
    "signal": set(),
    "models": {"blocks"},
    "data": set(),
    "training": {"linalg", "blocks", "models", "data", "curvature", "signal"},
    "downstream": {"blocks", "models", "data", "training"},
    "studies": {
        "downstream",
        "linalg",
        "blocks",
        "theory",
        "curvature",
        "signal",
        "models",
        "data",
        "training",
    },
    "report": set(),
    "cli": {
        "linalg",
        "blocks",
        "theory",
        "curvature",
        "signal",
        "models",
        "data",
        "training",
        "downstream",
        "studies",
        "report",
    },
}


def imported(path: Path) -> set[str]:
    """The packages of ours that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        names |= {
            parts[1]
            for parts in (m.split(".") for m in modules)
            if parts[0] == "hessblocks" and len(parts) > 1
        }
    return names


@pytest.mark.parametrize(
    "package", sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").exists())
)
def test_a_package_imports_only_what_stands_below_it(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        above = imported(path) - LAW[package] - BASE - {package}
        assert not above, f"{path.relative_to(ROOT)} imports {sorted(above)}"


def test_the_base_modules_import_nothing_of_ours_but_errors() -> None:
    for name in BASE:
        assert imported(ROOT / f"{name}.py") <= {"errors"}
