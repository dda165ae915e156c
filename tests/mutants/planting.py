"""Find the one place of a fault and write wrong code there; all else keeps its bytes and lines."""

import ast
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from tests.mutants.mutant import Mutant
from tests.mutants.pattern import UNSEEN, Item, Named, filled, parsed, shape
from tests.mutants.sources import Place, Source, places, sources

Edit = tuple[Sequence[ast.AST], Sequence[ast.AST]]
"""Neighbours in the source, and what stands there afterwards."""


def place_of(mutant: Mutant, files: tuple[Source, ...] = sources()) -> Place:
    """Find the place of a fault.

    Raises:
        ValueError: Its pattern matches none, or more than one.
    """
    return _place_of(mutant, files)  # a cache keeps calls with a default apart from those without


@functools.cache
def _place_of(mutant: Mutant, files: tuple[Source, ...]) -> Place:
    found = list(places(_sides(mutant)[0], mutant.within, files))
    if len(found) != 1:
        inside = f" within {mutant.within}" if mutant.within else ""
        where = ", ".join(map(str, found)) or "nowhere"
        said = f"expected one match of {mutant.find!r}{inside}, found {len(found)}: {where}"
        raise ValueError(f"{mutant.name}: {said}")
    return found[0]


def planted(mutant: Mutant, files: tuple[Source, ...] = sources()) -> tuple[Path, bytes]:
    """Return the file of a fault and its text with the fault in it.

    Raises:
        ValueError: The place is not found, or cannot be written to.
    """
    place = place_of(mutant, files)
    source = next(one for one in files if one.file == place.file)
    new = filled(_sides(mutant)[1], place.bound)
    changes = edits(place.nodes, new)
    if changes is None:
        raise ValueError(f"{mutant.name}: match a larger piece, this one cannot be written alone")
    if not changes:
        raise ValueError(f"{mutant.name}: the fault changes nothing")
    text = source.data
    for old, now in sorted(changes, key=lambda change: _span(change[0], text), reverse=True):
        text = _written(text, old, now)
    if not _is_meant(source.tree, changes, text):
        raise ValueError(f"{mutant.name}: {place} reads otherwise than meant when it is written")
    return place.file, text


def _sides(mutant: Mutant) -> tuple[list[ast.AST], list[ast.AST]]:
    """Read both sides alike: as statements unless both are an expression, an item or a name."""
    find, replace = parsed(mutant.find), parsed(mutant.replace or "pass")
    alike = all(len(side) == 1 and isinstance(side[0], ast.expr) for side in (find, replace))
    special = {type(side[0]) for side in (find, replace)} & {Item, Named}
    if alike and (not special or type(find[0]) is type(replace[0])):
        return find, replace
    return _statements(find), _statements(replace)


def _statements(side: list[ast.AST]) -> list[ast.AST]:
    match side:
        case [Named() as one]:
            return [ast.Assign(targets=[ast.Name(id=one.name)], value=one.value)]
        case [ast.expr() as value]:
            return [ast.Expr(value=value)]
    return side


def edits(old: Any, new: Any) -> list[Edit] | None:
    """List the smallest pieces to be written anew; None where no piece can be written alone."""
    if isinstance(old, list) and isinstance(new, list):
        return _edits_of_lists(old, new)
    if not isinstance(old, ast.AST) or not isinstance(new, ast.AST):
        return [] if old == new else None
    if shape(old) == shape(new):
        return []
    if type(old) is type(new) and not isinstance(old, ast.JoinedStr):
        fields = [name for name in old._fields if name not in UNSEEN]
        below = [edits(getattr(old, name, None), getattr(new, name, None)) for name in fields]
        if all(one is not None for one in below):
            return list(itertools.chain(*cast(list[list[Edit]], below)))
    alike = any(isinstance(old, kind) and isinstance(new, kind) for kind in (ast.expr, ast.stmt))
    return [([old], [new])] if alike and hasattr(old, "lineno") and not _is_slices(new) else None


def _is_slices(node: ast.AST) -> bool:
    """Whether a node is `:, 0`, which no brackets may surround."""
    return isinstance(node, ast.Tuple) and any(isinstance(one, ast.Slice) for one in node.elts)


def _edits_of_lists(old: list[Any], new: list[Any]) -> list[Edit] | None:
    if len(old) == len(new):
        below = [edits(one, other) for one, other in zip(old, new, strict=True)]
        if all(one is not None for one in below):
            return list(itertools.chain(*cast(list[list[Edit]], below)))
    if old and new and all(isinstance(one, ast.stmt) for one in (*old, *new)):
        return [(old, new)]
    return None


def _written(text: bytes, old: Sequence[ast.AST], new: Sequence[ast.AST]) -> bytes:
    """Write one edit; as many lines as before, so that all lines behind keep their numbers."""
    start, end = _span(old, text)
    margin = " " * cast(ast.stmt, old[0]).col_offset
    code = f"\n{margin}".join("\n".join(map(_code, new)).splitlines())
    fill = "\n" * max(0, text[start:end].count(b"\n") - code.count("\n"))
    if isinstance(new[0], ast.expr) and not isinstance(new[0], (ast.Slice, ast.Starred)):
        code, fill = f"({code}{fill})", ""
    return text[:start] + (code + fill).encode() + text[end:]


def _code(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node))


def _span(nodes: Sequence[ast.AST], text: bytes) -> tuple[int, int]:
    first, last = cast(ast.stmt, nodes[0]), cast(ast.stmt, nodes[-1])
    lines = [0, *itertools.accumulate(len(line) for line in text.splitlines(keepends=True))]
    return lines[first.lineno - 1] + first.col_offset, lines[(last.end_lineno or 0) - 1] + (
        last.end_col_offset or 0
    )


def _is_meant(tree: ast.Module, changes: list[Edit], text: bytes) -> bool:
    """Whether a text reads as the tree with the changes, whatever brackets and margins do."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    at = cast(ast.stmt, changes[0][0][0]).lineno
    last = max(place for place, one in enumerate(tree.body) if _first_line(one) <= at)
    rest = len(tree.body) - last - 1
    now = body[last : len(body) - rest]  # all else is the same text
    return shape(now) == shape(_changed(tree.body[last : last + 1], changes))


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def _changed(node: Any, changes: list[Edit]) -> Any:
    """Copy a tree with its changes."""
    if isinstance(node, list):
        for old, new in changes:
            at = next((place for place, one in enumerate(node) if one is old[0]), None)
            if at is not None:
                rest = node[at + len(old) :]
                return [*_changed(node[:at], changes), *new, *_changed(rest, changes)]
        return [_changed(one, changes) for one in node]
    if not isinstance(node, ast.AST):
        return node
    for old, new in changes:
        if node is old[0]:
            return new[0]
    return type(node)(**{name: _changed(value, changes) for name, value in ast.iter_fields(node)})
