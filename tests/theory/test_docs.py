"""docs/theory.md: its code runs, and every function it names is there."""

import ast
import re
from pathlib import Path

import hessblocks

ROOT = Path(hessblocks.__file__).parent
PAGE = (ROOT.parents[1] / "docs" / "theory.md").read_text(encoding="utf-8")


def defined(path: Path) -> set[str]:
    """Top-level names of a file, and `Class.member`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_the_example_runs() -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    scope: dict[str, object] = {}
    exec(code[1], scope)
    assert scope["h"].dense().shape == (48, 48)


def test_every_named_function_exists() -> None:
    named = re.findall(r"`([\w/]+\.py): ([\w.]+)`", PAGE)
    assert len(named) > 12
    for file, name in named:
        assert name in defined(ROOT / file), f"{file} has no {name}"
    everywhere = set().union(*(defined(path) for path in (ROOT / "theory").rglob("*.py")))
    for name in re.findall(r"`(_\w+|HeadTokens\.\w+|TokenCurvature\.\w+)`", PAGE):
        assert name in everywhere
