"""Escape untrusted text for terminals and shells."""

import os
import shlex
from collections.abc import Iterable


def printable(text: str) -> str:
    r"""Escape control characters, so that a text stays on one line and cannot control a terminal.

    Args:
        text: text of any characters, also bytes of a file name that are not UTF-8.

    Returns:
        The text, each character that is not printable as `\x1b`, `\n` or `\u202e`.

    Examples:
        >>> print(printable("runs/\x1b[2J"))
        runs/\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def printable_lines(text: str) -> str:
    """Escape control characters, but keep line ends."""
    return "\n".join(map(printable, text.split("\n")))


def shell_line(words: Iterable[str]) -> str:
    r"""Quote words as one printable command line for a POSIX shell.

    Args:
        words: command and arguments.

    Returns:
        The words as `shlex.join` quotes them. A word with control characters is in the form
        `$'\x1b'` of bash and zsh.

    Examples:
        >>> print(shell_line(["train", "a b", "\x1b[2J"]))
        train 'a b' $'\x1b[2J'
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return f"\\{letter}" if letter in "\\'" else letter
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))
