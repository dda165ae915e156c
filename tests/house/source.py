"""The source as data: its modules, its packages, and which file imports which names from where."""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hessblocks

ROOT = Path(hessblocks.__file__).parent
STUDIES = ROOT.parents[1] / "experiments" / "src" / "hessblocks_studies"
"""The second distribution, read and never imported here: these tests are of the core too."""
BOTH = (ROOT, STUDIES)


@dataclass(frozen=True)
class Import:
    """One name that a file imports, at its top, inside a function or under TYPE_CHECKING."""

    file: Path
    """The file that imports."""
    module: str
    """The module or package that it asks."""
    name: str | None
    """The name that it asks for; None where it imports the module itself."""


def files(root: Path = ROOT) -> list[Path]:
    """All source files of a package."""
    return sorted(root.rglob("*.py"))


def module_of(file: Path, root: Path = ROOT) -> str:
    """Dotted name of a file; a package's `__init__` bears the package's name."""
    parts = file.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(file: Path, root: Path = ROOT) -> str:
    """Dotted name of the package that a file stands in."""
    return ".".join(file.relative_to(root.parent).parts[:-1])


@functools.cache
def imports(file: Path, root: Path = ROOT) -> tuple[Import, ...]:
    """What a file imports of a package, by default of the core."""
    return tuple(_imports(file, root.name))


def _imports(file: Path, top: str) -> Iterator[Import]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            if node.module and node.module.split(".")[0] == top:
                for alias in node.names:
                    yield Import(file, node.module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == top:
                    yield Import(file, alias.name, None)


def targets(root: Path = ROOT) -> dict[Path, set[Path]]:
    """For each file the files whose definitions it uses; faces are looked through."""
    by_module = {module_of(file, root): file for file in files(root)}

    def defining(module: str, name: str | None) -> Path | None:
        file = by_module.get(f"{module}.{name}") or by_module.get(module)
        if name and file and file.name == "__init__.py" and module_of(file, root) == module:
            for one in imports(file, root):
                if one.name == name and one.module != module:
                    return defining(one.module, name)
        return file

    found: dict[Path, set[Path]] = {}
    for file in files(root):
        used = (defining(one.module, one.name) for one in imports(file, root))
        found[file] = {path for path in used if path} - {file}
    return found


def circle(graph: dict[Path, set[Path]]) -> list[Path]:
    """Some circle of a graph, or nothing where there is none."""
    done: set[Path] = set()

    def walk(node: Path, trail: list[Path]) -> list[Path]:
        if node in trail:
            return trail[trail.index(node) :]
        if node in done:
            return []
        for following in sorted(graph.get(node, ())):
            if found := walk(following, [*trail, node]):
                return found
        done.add(node)
        return []

    for start in sorted(graph):
        if found := walk(start, []):
            return found
    return []
