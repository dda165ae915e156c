"""A little library with docstrings: packages of several files, written where a test wants it."""

import random
from pathlib import Path

from hessblocks.data.python_code import Source, user_files

WORDS = {
    "net": "socket packet server client address port protocol stream",
    "text": "string letter word line paragraph encoding pattern character",
    "math": "number root matrix vector sum product fraction integer",
}


def write_library(folder: Path, files: int = 10, functions: int = 14) -> Source:
    """Three packages with docstrings in words of their own, and one module that stands alone."""
    draw = random.Random(0)
    for package, words in WORDS.items():
        (folder / package).mkdir(parents=True, exist_ok=True)
        for file in range(files):
            parts = [f'"""The {package} module number {file} of the little library."""\n']
            for number in range(functions):
                chosen = draw.sample(words.split(), 4)
                name = f"{chosen[0]}_{file}_{number}"
                doc = (
                    f"Return the {chosen[1]} of a {chosen[2]} and the {chosen[3]} number "
                    f"{draw.randrange(10**6)}."
                )
                parts.append(
                    f'def {name}(self, {chosen[1]}):\n    """{doc}\n\n    More.\n    """\n'
                )
            (folder / package / f"m{file}.py").write_text("\n".join(parts), encoding="utf-8")
    (folder / "alone.py").write_text('class A:\n    """A class that stands alone."""\n')
    return user_files(folder)
