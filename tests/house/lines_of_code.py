"""Count lines of code: those that are neither blank, nor a comment, nor a docstring.

    python tests/house/lines_of_code.py [FOLDER ...]     (src by default)

A string that stands alone as a statement counts as a docstring: it explains the line above it.
"""

import ast
import sys
import tokenize
from pathlib import Path

SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def lines_of_code(file: Path) -> int:
    """Lines of one file that hold code."""
    explained = docstrings(file)
    lines: set[int] = set()
    with file.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type not in SILENT and not any(a <= token.start < b for a, b in explained):
                lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def docstrings(file: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where strings that are statements begin and end, as (line, column)."""
    found = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            assert value.end_lineno is not None
            assert value.end_col_offset is not None
            begin = (value.lineno, value.col_offset)
            found.append((begin, (value.end_lineno, value.end_col_offset)))
    return found


if __name__ == "__main__":
    for folder in sys.argv[1:] or ["src"]:
        files = sorted(Path(folder).rglob("*.py"))
        print(f"{folder}: {sum(map(lines_of_code, files)):,} lines of code in {len(files)} files")
