"""Small folders of text."""

from pathlib import Path


def write_code(folder: Path, files: int = 30, lines: int = 60) -> Path:
    """A folder of little Python files, each with words of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        text = "".join(
            f"def function_{file}_{line}(value):\n    return value * {line} + {file}\n"
            for line in range(lines)
        )
        (folder / f"module_{file}.py").write_text(text, encoding="utf-8")
    return folder
