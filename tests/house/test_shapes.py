"""Shapes are named in every public signature, in letters that the file explains, and checked in the
tests."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

import hessblocks.blocks as blocks
import hessblocks.theory as theory
from hessblocks.errors import ArgumentError
from tests.house.source import BOTH, files
from tests.shape_checks import SHAPE

UNSHAPED: dict[str, str] = {}
"""Public name → why its tensors have no shape."""

Named = tuple[str, ast.expr | None]


def annotations(tree: ast.Module) -> Iterator[Named]:
    """Functions, methods, fields and types of a module, each with one of its annotations."""

    def of(body: list[ast.stmt], prefix: str) -> Iterator[Named]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from of(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                given = node.args
                slots = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                slots += [slot for slot in (given.vararg, given.kwarg) if slot]
                for hint in [*(slot.annotation for slot in slots), node.returns]:
                    yield prefix + node.name, hint
            elif isinstance(node, ast.AnnAssign):
                yield prefix + ast.unparse(node.target), node.annotation
            elif isinstance(node, ast.Assign):  # a type with a name of its own
                yield prefix + ast.unparse(node.targets[0]), node.value

    return of(tree.body, "")


def bare_tensor(node: ast.AST | None) -> bool:
    """Whether an annotation mentions a tensor without a shape."""
    if isinstance(node, ast.Subscript) and SHAPE.match(f"{ast.unparse(node.value)}["):
        return False
    if isinstance(node, ast.Call):
        return False
    if isinstance(node, ast.Name | ast.Attribute):
        return ast.unparse(node) in ("Tensor", "torch.Tensor")
    return node is not None and any(map(bare_tensor, ast.iter_child_nodes(node)))


def unshaped(root: Path) -> set[str]:
    """Public names with a tensor without a shape."""
    return {
        f"{path.relative_to(root)}: {name}"
        for path in files(root)
        for name, hint in annotations(ast.parse(path.read_text(encoding="utf-8")))
        if bare_tensor(hint) and not re.search(r"(^|\.)_[^_]", name)
    }


def unexplained(root: Path) -> dict[str, set[str]]:
    """By file the letters of its shapes that its legend ("Letters: ...") leaves out."""
    found = {}
    for path in files(root):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        legend = re.findall(
            r"^Letters.*?(?:\n\n|\Z)|Letters: .*?(?:\n\n|\Z)",
            ast.get_docstring(tree) or "",
            re.S | re.M,
        )
        letters = {
            letter for shape in shapes(tree) for letter in re.findall(r"\b[A-Za-z]\b", shape)
        }
        if missing := letters - set(re.findall(r"\b[A-Za-z]\b", " ".join(legend))):
            found[str(path.relative_to(root))] = missing
    return found


def shapes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and SHAPE.match(f"{ast.unparse(node.value)}["):
            yield ast.literal_eval(node.slice.elts[1])  # type: ignore[attr-defined]


@pytest.mark.parametrize("root", BOTH, ids=lambda root: root.name)
def test_every_tensor_of_a_public_function_names_its_shape(root: Path) -> None:
    assert unshaped(root) == set(UNSHAPED)


@pytest.mark.parametrize("root", BOTH, ids=lambda root: root.name)
def test_every_letter_of_a_shape_stands_in_the_legend_of_its_file(root: Path) -> None:
    assert unexplained(root) == {}


@pytest.mark.parametrize(
    "line",
    [
        "def f(x: Tensor) -> None: ...",
        "def f() -> dict[str, torch.Tensor] | None: ...",
        "class A:\n    def f(self, *x: Tensor): ...",
        "class A:\n    x: Tensor | None = None",
        "Pair = tuple[Tensor, Tensor]",
    ],
)
def test_a_planted_tensor_without_a_shape_is_seen(tmp_path: Path, line: str) -> None:
    (tmp_path / "planted.py").write_text(line)
    assert len(unshaped(tmp_path)) == 1


def test_a_planted_letter_is_seen(tmp_path: Path) -> None:
    text = (
        '"""Words.\n\nLetters: B sequences.\n\nT is no letter here.\n"""\nx: Float[Tensor, "B '
        '#T width"]'
    )
    (tmp_path / "planted.py").write_text(text)
    assert unexplained(tmp_path) == {"planted.py": {"T"}}


VALUES = torch.zeros(2, 3, 4, 5)


def test_a_wrong_shape_is_refused() -> None:
    blocks.centre(VALUES, causal=True, allowed=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(BeartypeCallHintViolation, match="B T"):
        blocks.centre(VALUES, causal=True, allowed=torch.ones(2, 3, dtype=torch.bool))


def test_a_wrong_field_and_a_wrong_result_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BeartypeCallHintViolation, match="factor"):
        theory.TokenCurvature(factor=torch.zeros(2, 3))
    monkeypatch.setattr("hessblocks.blocks.shaped.running_mean", lambda values, counting: values[0])
    with pytest.raises(BeartypeCallHintViolation, match="return"):
        blocks.centre(VALUES, causal=True)


@pytest.mark.bad_input
def test_a_test_of_bad_input_meets_our_own_error() -> None:
    with pytest.raises(ArgumentError, match="x: expected"):
        theory.attention_hessian(torch.zeros(3), VALUES, None, None)


def test_the_hook_is_on() -> None:
    for function in (blocks.centre, theory.attention_hessian, theory.TokenCurvature.__init__):
        assert hasattr(function, "shapes_checked")
