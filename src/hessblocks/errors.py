"""Exceptions for what a user caused or can mend; each message is a sentence to act on.

`ArgumentError` is for what was asked (an unknown preset, shapes that do not fit) and becomes exit
status 2 on the command line; `RunError` is for what went wrong on the way (a full disk, a damaged
file) and becomes exit status 1. Anything else that escapes is a fault of ours.
"""

import difflib
import os
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

CONTAINER = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files of Linux with the memory limit of a container, for cgroups 2 and 1."""


class HessblocksError(Exception):
    """Base class of the library's own errors.

    Examples:
        >>> import hessblocks as hb
        >>> try:
        ...     hb.preset("sas", width=0)
        ... except hb.HessblocksError as error:  # whatever is refused, or fails
        ...     print(error)
        width: expected a whole number of at least 1, got 0
    """

    exit_status = 1


class ArgumentError(HessblocksError, ValueError):
    """Error for an argument that cannot be used; it names it, what was expected and what came.

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
    """Error for what failed although the arguments were fine; the message says what to do.

    Examples:
        >>> import hessblocks as hb
        >>> try:
        ...     hb.load("nobody/no-such-model")
        ... except hb.RunError as error:
        ...     print(error)
        MODEL: 'nobody/no-such-model' is no folder, and no model of that name is in the local ...
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ArgumentError:
    """Make an error for a name that is not among the known ones, near matches first.

    Args:
        kind: what the name is of, in the singular ("preset").
        name: what was given.
        known: the accepted names.

    Returns:
        The error, to be raised by the caller.

    Examples:
        >>> print(unknown_name("preset", "sas-q", ["sas-p", "pre-ln"]))
        preset: 'sas-q' is unknown; did you mean 'sas-p'? Known: sas-p, pre-ln.
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(match) for match in near)}?" if near else "."
    return ArgumentError(f"{kind}: {name!r} is unknown{hint} Known: {', '.join(names)}.")


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones.

    Raises:
        ArgumentError: it is not; see `unknown_name`.
    """
    if name not in (names := list(known)):
        raise unknown_name(kind, name, names)


def check_extra(what: str, extra: str, *packages: str, distribution: str = "hessblocks") -> None:
    """Refuse what needs an extra of a distribution, where it is not installed.

    Args:
        what: needs it, for the message ("figures").
        extra: its name in `pip install 'hessblocks[...]'`.
        packages: that come with it; each is imported.
        distribution: whose extra it is.

    Raises:
        ArgumentError: one of the packages is missing, or cannot be imported.
    """
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == package
            state = "is not installed" if missing else f"cannot be imported ({error})"
            raise ArgumentError(
                f"{what}: {package} {state}; run pip install '{distribution}[{extra}]'."
            ) from error


def check_memory_limit(limit: object) -> None:
    """Refuse a limit that is not a whole number of bytes above 0.

    Raises:
        ArgumentError: it is not.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ArgumentError(
            f"memory_limit: expected bytes, a whole number above 0, got {limit!r}; 2 GB is "
            "2_000_000_000"
        )


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is a failed allocation; some of torch's show it in their text alone."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def main_memory() -> int:
    """Read the bytes of main memory: the machine's, or a container's where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = []
    for file in CONTAINER:
        with suppress(OSError, ValueError):  # absent, or `max`
            limits.append(int(file.read_text(encoding="ascii")))
    return min([machine, *(limit for limit in limits if limit > 0)])


def in_units(size: int) -> str:
    """Format a number of bytes for people.

    Returns:
        Three digits at most, with their unit.

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
        Seconds up to 100, minutes above.

    Examples:
        >>> duration(4.2), duration(400)
        ('4.2 s', '6.67 minutes')
    """
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds / 60:.3g} minutes"
