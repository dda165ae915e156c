"""The packages as trees, each file read and parsed once; where a pattern stands in them."""

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.pattern import Bound, Named, items, matches

TOP = Path(__file__).parents[2]
PACKAGES = tuple(
    package
    for package in (
        TOP / "src" / "hessblocks",
        TOP / "experiments" / "src" / "hessblocks_studies",
    )
    if package.is_dir()
)
"""Where faults are planted."""
BODIES = ("body", "orelse", "finalbody")


@dataclass(frozen=True)
class Candidate:
    """One node, or the statements of one body."""

    nodes: Sequence[ast.AST]
    chain: tuple[str, ...]
    """Names of the packages, the module, the classes and functions around."""


@dataclass(frozen=True)
class Place:
    """Where a pattern matches."""

    file: Path
    nodes: Sequence[ast.AST]
    chain: tuple[str, ...]
    bound: Bound

    def __str__(self) -> str:
        return ".".join(self.chain)


@dataclass(frozen=True, eq=False)
class Source:
    """A file of a package."""

    file: Path
    package: Path

    @functools.cached_property
    def data(self) -> bytes:
        return self.file.read_bytes()

    @functools.cached_property
    def words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", self.data.decode()))

    @functools.cached_property
    def chain(self) -> tuple[str, ...]:
        """Packages and module."""
        parts = self.file.relative_to(self.package.parent).with_suffix("").parts
        return tuple(part for part in parts if part != "__init__")

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.data)

    @functools.cached_property
    def candidates(self) -> dict[type[ast.AST], list[Candidate]]:
        """Nodes by their type; bodies stand under `ast.Module`."""
        found: dict[type[ast.AST], list[Candidate]] = {}
        for kind, one in _walk(self.tree, self.chain):
            found.setdefault(kind, []).append(one)
        return found


def _walk(node: ast.AST, chain: tuple[str, ...]) -> Iterator[tuple[type[ast.AST], Candidate]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        chain = (*chain, node.name)
    yield type(node), Candidate([node], chain)
    for one in (*_named(node), *(items(node) if isinstance(node, ast.Dict) else ())):
        yield type(one), Candidate([one], chain)
    for name in BODIES:
        if isinstance(body := getattr(node, name, None), list):
            yield ast.Module, Candidate(body, chain)
    if isinstance(node, ast.JoinedStr):  # Python 3.11 does not know where its parts stand
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, chain)


def _named(node: ast.AST) -> Iterator[Named]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield Named(name=name, value=value)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield Named(name=name, value=value)
        case ast.keyword(arg=str(name), value=value):
            yield Named(name=name, value=value)
        case ast.arguments():
            places = [*node.posonlyargs, *node.args]
            for one, default in zip(reversed(places), reversed(node.defaults), strict=False):
                yield Named(name=one.arg, value=default)
            for one, own in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                if own is not None:
                    yield Named(name=one.arg, value=own)


@functools.cache
def sources(packages: tuple[Path, ...] = PACKAGES) -> tuple[Source, ...]:
    """All files of the packages."""
    return tuple(
        Source(file, package) for package in packages for file in sorted(package.rglob("*.py"))
    )


def places(pattern: list[ast.AST], within: str, files: Sequence[Source]) -> Iterator[Place]:
    """Yield all places that a pattern matches."""
    needed, around = _identifiers(pattern), tuple(within.split(".")) if within else ()
    single = len(pattern) == 1 and isinstance(pattern[0], ast.expr)
    kind = type(pattern[0]) if single else ast.Module
    for source in files:
        if needed <= source.words and source.words.union(source.chain).issuperset(around):
            for one in source.candidates.get(kind, ()):
                if _inside(one.chain, around):
                    yield from _runs(pattern, one, source.file)


def _runs(pattern: list[ast.AST], candidate: Candidate, file: Path) -> Iterator[Place]:
    long = len(pattern)
    for start in range(len(candidate.nodes) - long + 1):
        run = list(candidate.nodes[start : start + long])
        for bound in matches(pattern, run, {}):
            yield Place(file, run, candidate.chain, bound)
            break


def _inside(chain: tuple[str, ...], around: tuple[str, ...]) -> bool:
    long = len(around)
    return any(chain[start : start + long] == around for start in range(len(chain) - long + 1))


def _identifiers(pattern: list[ast.AST]) -> set[str]:
    """Collect the words without which no file can match."""
    nodes = [node for one in pattern for node in ast.walk(one)]
    words = [getattr(node, name, None) for node in nodes for name in ("id", "attr", "arg", "name")]
    return {word for word in words if isinstance(word, str) and not word.startswith("__")}
