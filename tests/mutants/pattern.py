"""Match patterns against the syntax tree: layout, comments, quotes and brackets do not count.

2 * variance                 an expression
self.read = False            statements, of which a run in one body matches
LIMIT = 3                    an assignment, a keyword argument or a default of this name
"sgd": 0.0                   an item of a dict
$x / len($values)            $x is any expression or name, everywhere the same
f($$rest, seeds=1)           $$rest is any number of arguments, items or statements
{**$$rest, "lr": $rate}      where Python wants stars before it
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Bound = Mapping[str, Any]
"""What each metavariable has matched: a node, a name, or a list of nodes."""
UNSEEN = ("ctx", "kind", "type_comment", "type_ignores")
ONE, MANY = "__one_", "__many_"


class Item(ast.expr):
    """Hold a key and its value, which `ast.Dict` keeps in two lists."""

    _fields = ("key", "value")


class Named(ast.expr):
    """Hold a name and what it is given, by an assignment, an argument or a default."""

    _fields = ("name", "value")


def parsed(text: str) -> list[ast.AST]:
    """Read a pattern: one expression, `Item` or `Named`, or statements.

    Raises:
        ValueError: It is no Python.
    """
    plain = re.sub(r"\$\$(?=\w)", MANY, text)
    plain = re.sub(r"\$(?=[^\W\d])", ONE, plain)
    for wrapped in (plain, "{" + plain + "}"):
        try:
            body = ast.parse(wrapped).body
        except SyntaxError:
            continue
        match body:
            case [ast.Expr(value=ast.Dict() as pairs)] if wrapped is not plain:
                return items(pairs)
        return _kind(body)
    raise ValueError(f"{text!r} is no pattern")


def _kind(body: Sequence[ast.stmt]) -> list[ast.AST]:
    match body:
        case [ast.Expr(value=value)] if not _many(value):
            return [value]
        case [ast.Assign(targets=[ast.Name(id=name)], value=value)]:
            return [Named(name=name, value=value)]
    return list(body)


def items(node: ast.Dict) -> list[ast.AST]:
    """Pair the keys of a dict with their values."""
    return [Item(key=key, value=value) for key, value in zip(node.keys, node.values, strict=True)]


def matches(pattern: Any, found: Any, bound: Bound) -> Iterator[Bound]:
    """Yield each way in which a pattern matches a node, a list or a name."""
    one = _name(pattern, ONE)
    if one is not None:
        if one not in bound:
            yield {**bound, one: found}
        elif shape(bound[one]) == shape(found):
            yield bound
    elif isinstance(pattern, list):
        if isinstance(found, list):
            yield from _lists(pattern, found, bound)
    elif isinstance(pattern, ast.AST):
        if type(pattern) is type(found):
            yield from _lists(parts(pattern), parts(found), bound)
    elif type(pattern) is type(found) and pattern == found:
        yield bound


def _lists(patterns: Sequence[Any], found: Sequence[Any], bound: Bound) -> Iterator[Bound]:
    if not patterns:
        if not found:
            yield bound
        return
    many = _many(patterns[0])
    if many is None:
        if found:
            for more in matches(patterns[0], found[0], bound):
                yield from _lists(patterns[1:], found[1:], more)
        return
    for count in range(len(found) + 1):
        taken = list(found[:count])
        if shape(bound.get(many, taken)) == shape(taken):
            yield from _lists(patterns[1:], found[count:], {**bound, many: taken})


def parts(node: ast.AST) -> list[Any]:
    """List what a node is made of; arguments and items of a dict are one list each."""
    if isinstance(node, ast.Call):
        return [node.func, [*node.args, *node.keywords]]
    if isinstance(node, ast.Dict):
        return [items(node)]
    return [value for name, value in ast.iter_fields(node) if name not in UNSEEN]


def shape(node: Any) -> str:
    """Write a node or a list of nodes out, without places and contexts."""
    if isinstance(node, list):
        return str([shape(one) for one in node])
    if isinstance(node, ast.Name):  # which may stand for a name that is no expression
        return node.id
    text = ast.dump(node) if isinstance(node, ast.AST) else str(node)
    return re.sub(r", ctx=\w+\(\)", "", text)


def filled(node: Any, bound: Bound) -> Any:
    """Copy a replacement with what its metavariables have matched.

    Raises:
        ValueError: A metavariable has matched nothing.
    """
    if isinstance(node, list):
        copies = [_lot(one, bound) for one in node]
        return [one for lot in copies for one in lot]
    if (one := _name(node, ONE)) is not None:
        if one not in bound:
            raise ValueError(f"${one} stands in the replacement alone")
        value = bound[one]
        if isinstance(node, str):
            return value.id if isinstance(value, ast.Name) else value
        if isinstance(node, ast.Expr) and isinstance(value, ast.expr):
            return ast.Expr(value=value)
        return ast.Name(id=value) if isinstance(value, str) else value
    if isinstance(node, ast.Dict):
        return _dict(filled(items(node), bound))
    if isinstance(node, ast.Call):
        given = filled([*node.args, *node.keywords], bound)
        words = [one for one in given if isinstance(one, ast.keyword)]
        places = [one for one in given if not isinstance(one, ast.keyword)]
        return ast.Call(func=filled(node.func, bound), args=places, keywords=words)
    if isinstance(node, ast.AST):
        fields = ((name, filled(value, bound)) for name, value in ast.iter_fields(node))
        return type(node)(**dict(fields))
    return node


def _lot(node: Any, bound: Bound) -> list[Any]:
    many = _many(node)
    if many is not None and many not in bound:
        raise ValueError(f"$${many} stands in the replacement alone")
    return [filled(node, bound)] if many is None else bound[many]


def _dict(pairs: Sequence[Any]) -> ast.Dict:
    return ast.Dict(keys=[one.key for one in pairs], values=[one.value for one in pairs])


def _many(node: Any) -> str | None:
    match node:
        case ast.Expr(value=inner) | ast.Starred(value=inner):
            return _many(inner)
        case ast.keyword(arg=None, value=inner) | Item(key=None, value=inner):
            return _many(inner)
    return _name(node, MANY)


def _name(node: Any, start: str) -> str | None:
    match node:
        case ast.Name(id=name) | str(name) if name.startswith(start):
            return name.removeprefix(start)
        case ast.Expr(value=inner) if start == ONE:
            return _name(inner, start)
    return None
