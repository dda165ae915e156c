"""A function that raises says so, whoever makes the error.

ruff's DOC501 takes a function that makes an error (`raise unknown_name(...)`) for the error's
class, and its DOC502 refuses a `Raises` for what is raised deeper down; so this is looked at here.
"""

import ast
from collections.abc import Iterator

from tests.house.source import BOTH, files

Function = ast.FunctionDef | ast.AsyncFunctionDef


def raised(body: list[ast.stmt]) -> Iterator[str]:
    """What leaves these statements: the class, or '' where a function makes the error."""
    for node in body:
        if isinstance(node, ast.Raise):
            made = node.exc.func if isinstance(node.exc, ast.Call) else None
            if isinstance(made, ast.Name):
                yield made.id if made.id.endswith("Error") else ""
        elif isinstance(node, ast.Try):
            inner = [] if node.handlers else node.body
            handled = [line for handler in node.handlers for line in handler.body]
            yield from raised([*inner, *handled, *node.orelse, *node.finalbody])
        elif not isinstance(node, Function | ast.ClassDef):
            for field in ("body", "orelse"):
                yield from raised(getattr(node, field, []))
            for case in getattr(node, "cases", []):
                yield from raised(case.body)


def public(tree: ast.AST) -> Iterator[Function]:
    """Functions and methods of public names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if isinstance(node, Function):
                yield node
            else:
                yield from public(node)


def silent(source: str) -> list[str]:
    """Functions whose docstring, of more than a line, does not say what they raise."""
    found = []
    for function in public(ast.parse(source)):
        text = ast.get_docstring(function) or ""
        says = text.partition("Raises:")[2]
        for name in set(raised(function.body)):
            if "\n" in text and (not says or name not in says):
                found.append(f"{function.name}: {name or 'what it raises'}")
    return sorted(found)


def test_what_raises_says_so() -> None:
    unsaid = {
        str(path.relative_to(root)): names
        for root in BOTH
        for path in files(root)
        if (names := silent(path.read_text(encoding="utf-8")))
    }
    assert unsaid == {}


PLANTED = '''
def half(number):
    """Half of a number.

    {raises}
    """
    if number % 2:
        {line}
    return number // 2
'''


def test_a_raise_without_its_docstring_is_found() -> None:
    for raises, line, unsaid in (
        ("Of even ones.", "raise ArgumentError('odd')", ["half: ArgumentError"]),
        ("Of even ones.", "raise unknown_name('odd')", ["half: what it raises"]),
        ("Raises:\n        RunError: odd.", "raise ArgumentError('odd')", ["half: ArgumentError"]),
        ("Raises:\n        ArgumentError: odd.", "raise ArgumentError('odd')", []),
        ("Raises:\n        ArgumentError: odd.", "raise unknown_name('odd')", []),
        ("Of even ones.", "return 0", []),
    ):
        assert silent(PLANTED.format(raises=raises, line=line)) == unsaid
