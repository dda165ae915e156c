"""Judge what has changed since the branch left main, in a minute and a half: `make quick`.

    python -m tests.house.quick                 ruff, types, laws, tests of the rooms that changed
    python -m tests.house.quick --room linalg   tests of that room, whatever has changed

Tests of a room are those of the folder that mirrors it, and those that the planted faults of a
changed file name, wherever they stand. `make check` runs all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.mutants.every import MUTANTS
from tests.mutants.named_tests import found_test
from tests.mutants.planting import place_of
from tests.mutants.sources import PACKAGES, TOP, Source

LAWS = (
    "tests/house/test_contributing.py",
    "tests/house/test_import_law.py",
    "tests/house/test_named_places.py",
    "tests/house/test_raises.py",
    "tests/house/test_rooms.py",
    "tests/house/test_shapes.py",
    "tests/mutants/test_mutants.py",
)
"""Test files that every change is judged by."""
MIRRORS = {
    "architectures": "curvature",
    "figures": "report",
    "drawing": "report",
    "settings": "cli",
}
"""Package → folder of tests, where it has another name."""
PARALLEL = "-n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0"
PAGES = ["tests/test_docs.py", "tests/test_readme.py", "tests/test_words.py"]


def git(*words: str) -> str:
    """Output of git; empty where it fails."""
    ran = subprocess.run(["git", *words], cwd=TOP, capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else ""


def changed(base: str) -> list[str]:
    """Files that are not those of a commit, new ones too, and are still there."""
    listed = git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")
    return sorted({name for name in listed.split("\n") if name and (TOP / name).is_file()})


def mirrored(name: str) -> Iterator[str]:
    """Test files and folders beside a changed file."""
    parts = Path(name).parts
    if "tests" in parts and parts[-1].startswith("test_"):
        yield name
    elif name.startswith("tests/") and len(parts) > 2 and parts[1] not in ("house", "mutants"):
        yield from room(parts[1])
    elif name.startswith("src/hessblocks/") and len(parts) > 3:
        yield from room(MIRRORS.get(parts[2], parts[2]))
    elif name.startswith("src/"):
        yield from [f"tests/{path.name}" for path in TOP.glob("tests/test_*.py")]
    elif name.startswith("experiments/src/"):
        stem = Path(name).stem
        for path in TOP.glob("experiments/tests/**/test_*.py"):
            text = path.read_text(encoding="utf-8")
            if stem in path.stem or f"{parts[3]}.{stem}" in text or f"import {stem}" in text:
                yield str(path.relative_to(TOP))
    elif name.endswith(".md"):
        yield from PAGES


def room(name: str) -> list[str]:
    """Test files of a room.

    Raises:
        ValueError: There is no such folder of tests.
    """
    files = sorted(str(path.relative_to(TOP)) for path in TOP.glob(f"tests/{name}/**/test_*.py"))
    if not files:
        raise ValueError(f"tests/{name} holds no tests; give --room a folder of tests")
    return files


def fault_tests(names: Iterable[str], base: str) -> set[str]:
    """Tests that the planted faults name of changed files, as these were before the change."""
    found = set()
    for name in names:
        package = next((path for path in PACKAGES if path in (TOP / name).parents), None)
        text = git("show", f"{base}:{name}")
        if package is None or not name.endswith(".py") or not text:
            continue
        source = Source(TOP / name, package)
        vars(source)["data"] = text.encode()  # a change may have taken the place of a fault
        for mutant in MUTANTS:
            try:
                place_of(mutant, (source,))
            except ValueError:
                continue
            found |= {found_test(test).removeprefix(f"{TOP}/") for test in mutant.tests}
    return found


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.house.quick")
    parser.add_argument("--room", default="", help="folder of tests in place of what has changed")
    asked = parser.parse_args(words)
    forks = (git("merge-base", "HEAD", ref).strip() for ref in ("origin/main", "main"))
    base = next(filter(None, forks), "HEAD")
    names = changed(base)
    try:
        files = (
            room(asked.room) if asked.room else [one for name in names for one in mirrored(name)]
        )
    except ValueError as error:
        parser.error(str(error))
    tests = {*LAWS, *files}
    if not asked.room:
        seeing = fault_tests(names, base)
        tests |= {test for test in seeing if test.partition("::")[0] not in tests}
    print(f"{len(names)} changed files, {len(tests)} test files and tests", flush=True)
    python = [name for name in names if name.endswith(".py")]
    steps = {
        "ruff check": run("ruff check", python or ["tests"]),
        "ruff format": run("ruff format --check", python or ["tests"]),
        "tests": run(f"pytest -q {PARALLEL}", longest_first(tests)),
        "mypy": run("mypy"),
    }
    red = [name for name, step in steps.items() if step.wait()]
    print(f"red: {', '.join(red)}" if red else "green: what has changed; make check runs all")
    return 1 if red else 0


def longest_first(tests: Iterable[str]) -> list[str]:
    """Sort tests by the size of their file, so that no worker is left alone with a long one."""
    return sorted(tests, key=lambda test: (-(TOP / test.partition("::")[0]).stat().st_size, test))


def run(words: str, files: Iterable[str] = ()) -> subprocess.Popen[bytes]:
    """Start a tool of the environment that runs this."""
    return subprocess.Popen([sys.executable, "-m", *words.split(), *files], cwd=TOP)


if __name__ == "__main__":
    sys.exit(main())
