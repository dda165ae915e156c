"""Draw blocks: parts, missing parts (dashed) and parts with a special initial value (blue)."""

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from hessblocks.blocks import BlockConfig, BlockPart, Branch, Identity, NoNorm, Norm, Weight, preset

SHOWN = (
    *("width", "heads", "key_value_heads", "mlp_width"),  # sizes, which are not drawn
    "embedding_std",  # an initial value, which is not drawn
    *("layout", "norm_placement", "first_norm", "final_norm", "attention_branch", "mlp_branch"),
    *("attention.shaping", "attention.query", "attention.key", "attention.value"),
    *("attention.first_value", "attention.projection", "mlp.gated"),
    *("attention.query_key_norm", "attention.window", "attention.gate"),  # in words, below
)
"""Fields that need no words. Any other field, new ones included, is named below the drawing if it
differs from pre-LN's."""
_FITTING = 28
"""Number of letters that fit below a block."""
GATED = {"silu": "SwiGLU", "gelu": "GEGLU", "relu": "ReGLU"}
"""Names of gated MLPs, by activation."""
_LETTERS = 21
"""Longest name that fits above its block."""
_COLUMN, _ROW, _STEP = 176, 372, 32
_STYLE = """
svg { background: #ffffff; font: 12px system-ui, sans-serif; fill: #1b1f24; }
.name { font-weight: 600; font-size: 14px; }
.box { fill: #ffffff; stroke: #57606a; }
.special { fill: #ddf4ff; stroke: #0969da; }
.gone { fill: #ffffff; stroke: #8c959f; stroke-dasharray: 4 3; }
.no-skip { fill: none; stroke: #8c959f; stroke-dasharray: 4 3; }
.gone-text { fill: #6e7781; }
.line { fill: none; stroke: #57606a; stroke-width: 1.5; }
"""


def draw_blocks(blocks: Mapping[str, BlockConfig], columns: int = 6) -> str:
    """Draw blocks side by side, from the input x at the bottom to the output at the top.

    Args:
        blocks: name → block.
        columns: most blocks in a row.

    Returns:
        SVG, without scripts or links; names are escaped.
    """
    rows = -(-len(blocks) // columns)
    width, height = min(len(blocks), columns) * _COLUMN, rows * _ROW
    elements = [
        element
        for index, (name, block) in enumerate(blocks.items())
        for element in _column(name, block, index % columns * _COLUMN, index // columns * _ROW)
    ]
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">'
    )
    title = "<title>What each block keeps, drops (dashed) and starts specially (blue)</title>"
    return "\n".join([opening, title, f"<style>{_STYLE}</style>", *elements, "</svg>"]) + "\n"


class _Drawing:
    """SVG elements of one block; x runs to the right from its left edge, y down from the top."""

    def __init__(self, left: int, top: int) -> None:
        self.left, self.top = left, top
        self.elements: list[str] = []

    def box(self, x: int, y: int, width: int, label: str, kind: str = "box") -> None:
        """Add a labelled box; `kind` is box, special or gone."""
        self.elements.append(
            f'<rect class="{kind}" x="{self.left + x}" y="{self.top + y}" width="{width}" '
            'height="22" rx="4"/>'
        )
        self.text(x + width // 2, y + 15, label, "gone-text" if kind == "gone" else "")

    def text(self, x: int, y: int, words: str, kind: str = "") -> None:
        """Add words centred at (x, y)."""
        self.elements.append(
            f'<text class="{kind}" x="{self.left + x}" y="{self.top + y}" '
            f'text-anchor="middle">{escape(words)}</text>'
        )

    def line(self, *points: tuple[int, int], kind: str = "line") -> None:
        """Add a line through the points."""
        path = " ".join(f"{self.left + x},{self.top + y}" for x, y in points)
        self.elements.append(f'<polyline class="{kind}" points="{path}"/>')


def _column(name: str, block: BlockConfig, left: int, top: int) -> list[str]:
    drawing = _Drawing(left, top)
    drawing.text(88, 18, name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…", "name")
    drawing.text(88, _ROW - 20, "x")
    words = textwrap.shorten(", ".join(_besides(block)), _FITTING, placeholder=" …")
    drawing.text(88, _ROW - 4, words, "gone-text")
    (_parallel if block.layout == "parallel" else _sequential)(block, drawing)
    return drawing.elements


def _sequential(block: BlockConfig, drawing: _Drawing) -> None:
    """Draw each sub-block from its norm (with post-norm, its first matrix) up to its sum."""
    drawing.line((88, 30), (88, _ROW - 34))
    for branch_index, branch in enumerate((block.attention_branch, block.mlp_branch)):
        bottom = y = _ROW - 66 - 6 * _STEP * branch_index
        if block.norm_placement == "pre":
            y = _norm(drawing, block.norm, 38, y)
        y = (_mlp if branch_index else _attention)(drawing, block, 38, y, 97)
        _skip(drawing, branch, y + 11, bottom + 27)
        if block.norm_placement == "post":
            _norm(drawing, block.norm, 38, y - 26)


def _parallel(block: BlockConfig, drawing: _Drawing) -> None:
    bottom = _ROW - 96
    top = bottom - 4 * _STEP + 11
    drawing.line((88, _ROW - 34), (88, bottom))
    drawing.line((70, bottom), (70, top), (88, top), (88, 30))
    drawing.line((135, bottom + 11), (143, bottom + 11), (143, top), (88, top))
    _norm(drawing, block.norm, 38, bottom)
    _attention(drawing, block, 24, bottom - _STEP, 93)
    _mlp(drawing, block, 121, bottom - 2 * _STEP, 44)
    _skip(drawing, block.attention_branch, top, bottom + 34)
    drawing.text(88, top + 5, "⊕", "name")


def _attention(drawing: _Drawing, block: BlockConfig, x: int, y: int, width: int) -> int:
    """Draw matrices, mixing and projection; return the y above them."""
    attention, third = block.attention, width // 3
    for index, name in enumerate(("query", "key", "value")):
        kind = _kind(getattr(attention, name))
        drawing.box(x + index * (third + 2), y, third - 2, "QKV"[index], kind)
    mixing = ("A", "box") if attention.shaping is None else ("αI+βA−γC", "special")
    drawing.box(x, y - _STEP, width, *mixing)
    drawing.box(x, y - 2 * _STEP, width, "P", _kind(attention.projection))
    return y - 3 * _STEP


def _besides(block: BlockConfig) -> Iterator[str]:
    """List in words the parts of a block that are not drawn."""
    if not isinstance(block.attention.query_key_norm, NoNorm):
        yield "QK-norm"
    if block.attention.window is not None:
        yield f"window {block.attention.window}"
    if block.attention.gate is not None:
        yield "gate"
    if not all(isinstance(b.norm, NoNorm) for b in (block.attention_branch, block.mlp_branch)):
        yield "branch norm"
    for path, value in _changed(block, preset("pre-ln")):
        drawn = isinstance(value, NoNorm) or (path == "mlp.activation" and block.mlp.gated)
        if not drawn and not f"{path}.".startswith(tuple(f"{field}." for field in SHOWN)):
            yield _said(path.rpartition(".")[2], value)


def _changed(part: Any, reference: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """List path and value of each field that differs between two parts."""
    for field in dataclasses.fields(part):
        value, usual = getattr(part, field.name), getattr(reference, field.name, None)
        if value != usual:
            alike = isinstance(value, BlockPart) and type(value) is type(usual)
            path = f"{prefix}{field.name}"
            yield from _changed(value, usual, f"{path}.") if alike else [(path, value)]


def _said(name: str, value: Any) -> str:
    """Describe a part by its kind, a switch by its name, anything else by both."""
    if isinstance(value, BlockPart):
        return value.kind
    return name.replace("_", " ") + ("" if value is True else f" {value}")


def _mlp(drawing: _Drawing, block: BlockConfig, x: int, y: int, width: int) -> int:
    gated = GATED.get(block.mlp.activation, "gated MLP")
    drawing.box(x, y, width, gated if block.mlp.gated else "MLP")
    return y - _STEP


def _kind(weight: Weight) -> str:
    if isinstance(weight, Identity):
        return "gone"
    return "box" if weight.initial == "normal" else "special"


def _norm(drawing: _Drawing, norm: Norm, x: int, y: int) -> int:
    drawing.box(x, y, 97, "norm", "gone" if isinstance(norm, NoNorm) else "box")
    return y - _STEP


def _skip(drawing: _Drawing, branch: Branch, top: int, bottom: int) -> None:
    """Draw the sum, the skip around the sub-block, and the branch's gain."""
    around = ((88, bottom), (14, bottom), (14, top), (88, top))
    drawing.line(*around, kind="line" if branch.has_skip else "no-skip")
    if branch.has_skip:
        drawing.text(88, top + 5, "⊕", "name")
    if branch.trainable:
        drawing.text(150, top + 4, "β/√L" if branch.over_sqrt_depth else "β")
