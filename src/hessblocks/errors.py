"""Exceptions for errors that a user can correct; each message says how.

`ArgumentError` is for wrong arguments (an unknown preset, shapes that do not fit): exit status 2 on
the command line. `RunError` is for failures at run time (a full disk, a damaged file): exit status
1. Any other exception is a bug of this library.
"""

import difflib
import os
from collections.abc import Iterable
from contextlib import suppress
from numbers import Integral
from pathlib import Path

CONTAINER = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Linux files with the memory limit of a container, for cgroups 2 and 1."""


class HessblocksError(Exception):
    """Base class of the library's own errors.

    Examples:
        >>> import hessblocks as hb
        >>> try:
        ...     hb.preset("sas", width=0)
        ... except hb.HessblocksError as error:  # an ArgumentError or a RunError
        ...     print(error)
        width: expected a whole number of at least 1, got 0
    """

    exit_status = 1


class ArgumentError(HessblocksError, ValueError):
    """Error for an invalid argument; the message has its name, the expected and the given value.

    Examples:
        >>> import hessblocks as hb
        >>> try:
        ...     hb.rounded(bits=0)
        ... except hb.ArgumentError as error:
        ...     print(error)
        bits: expected a whole number from 1 to 16, got 0
    """

    exit_status = 2


class RunError(HessblocksError, RuntimeError):
    """Error for a failure with valid arguments; the message says what to do.

    Examples:
        >>> import hessblocks as hb
        >>> try:
        ...     hb.load("nobody/no-such-model")
        ... except hb.RunError as error:
        ...     print(error)
        MODEL: 'nobody/no-such-model' is not a folder, and no model of that name is in the local ...
    """


def unknown_name(kind: str, name: str, choices: Iterable[str]) -> ArgumentError:
    """Make the error for an unknown name, which suggests similar known names.

    Args:
        kind: kind of thing that is named, in the singular ("preset").
        name: unknown name.
        choices: accepted names.

    Returns:
        The error, to be raised by the caller.

    Examples:
        >>> print(unknown_name("preset", "sas-q", ["sas-p", "pre-ln"]))
        preset: 'sas-q' is unknown; did you mean 'sas-p'? Known: sas-p, pre-ln.
    """
    names = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(names[match]) for match in near)}?" if near else "."
    return ArgumentError(f"{kind}: {name!r} is unknown{hint} Known: {', '.join(names.values())}.")


def choice_of(kind: str, name: object, choices: Iterable[str]) -> str:
    """Find the choice that a name means in lower or upper case; refuse an unknown name.

    Returns:
        The choice: 'Q6_K' for 'q6_k'.

    Raises:
        ArgumentError: there is none of this name.
    """
    names = list(choices)
    for choice in names:
        if choice.lower() == str(name).lower():
            return choice
    raise unknown_name(kind, str(name), names)


def check_name(kind: str, name: str, choices: Iterable[str]) -> None:
    """Refuse an unknown name.

    Raises:
        ArgumentError: the name is unknown; see `unknown_name`.
    """
    if name not in (names := list(choices)):
        raise unknown_name(kind, name, names)


def check_whole(least: int | None = None, /, **values: object) -> None:
    """Refuse arguments, given by name, that are not whole numbers, or are below the least.

    Raises:
        ArgumentError: a value is not such a number.

    Examples:
        >>> check_whole(1, probes=0)
        Traceback (most recent call last):
        hessblocks.errors.ArgumentError: probes: expected a whole number of at least 1, got 0
    """
    for name, value in values.items():
        integer = isinstance(value, Integral) and not isinstance(value, bool)
        if not integer or (least is not None and value < least):  # type: ignore[operator]
            words = "" if least is None else f" of at least {least}"
            raise ArgumentError(f"{name}: expected a whole number{words}, got {value!r}")


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is a failed allocation; some errors of torch show it by their text."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def main_memory() -> int:
    """Read the size of main memory in bytes: the machine's, or the container's if it is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = []
    for file in CONTAINER:
        with suppress(OSError, ValueError):  # absent, or `max`
            limits.append(int(file.read_text(encoding="ascii")))
    return min([machine, *(limit for limit in limits if limit > 0)])


def in_units(size: int) -> str:
    """Format a number of bytes for a reader.

    Returns:
        At most three digits, with kB, MB or GB.

    Examples:
        >>> in_units(60_000), in_units(1_500_000), in_units(24_000_000_000)
        ('60 kB', '1.5 MB', '24 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"


def duration(seconds: float) -> str:
    """Format a time for people.

    Returns:
        At most three digits, in seconds, minutes or hours.

    Examples:
        >>> duration(4.2), duration(99.9), duration(400), duration(20_000)
        ('4.2 s', '1.67 minutes', '6.67 minutes', '5.56 hours')
    """
    if seconds < 99.5:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.3g} minutes" if seconds < 6000 else f"{seconds / 3600:.3g} hours"
