"""Every call of this process that changes files below a folder, and what goes wrong at one of them.

Calls into libraries that write without Python (safetensors and tokenizers in Rust, torch and numpy
in C) count as one call each, at their Python entry. `unseen` tells changes that no call accounts
for.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import safetensors.torch
import tokenizers
import torch

T = TypeVar("T")
KILLS = ("before", "torn", "after", "power")
"""The process ends before the call, with half of what it writes, after it; or the machine does."""
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
"""What the call raises: a full disk stays full, another error comes once."""
FILLS = ("open", "write", "fsync", "mkdir", "library")
"""Kinds of calls that a full disk refuses."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong, and at which call, counted from 1."""

    kind: str
    """One of `KILLS` or `ERRORS`."""
    moment: int
    """Number of the call."""


class _Raw(io.FileIO):
    """A file whose writes are seen; buffers and texts stand on it as always."""

    disk: Disk
    place: Path

    def write(self, content: Any) -> int:
        data = bytes(content)
        return self.disk.call(
            "write",
            self.place,
            lambda: super(_Raw, self).write(data),
            torn=lambda: super(_Raw, self).write(data[: len(data) // 2]),
        )

    def truncate(self, size: int | None = None) -> int:
        return self.disk.call("write", self.place, lambda: super(_Raw, self).truncate(size))


class Disk:
    """Watches a folder; inside `watched`, calls are recorded and the fault comes true."""

    def __init__(self, root: Path, fault: Fault | None = None) -> None:
        self.root = root.resolve()
        self.fault = fault
        self.calls: list[str] = []
        """Kind and path of each call; a name that is drawn at random is left out."""
        self.unseen: list[str] = []
        """What changed between two calls."""
        self._process, self._inside = os.getpid(), False
        self._unsafe: set[int] = set()  # files whose content a loss of power would take
        self._before: dict[str, Any] | None = None

    def call(
        self,
        kind: str,
        path: Any,
        run: Callable[[], T],
        torn: Callable[[], object] | None = None,
    ) -> T:
        """Do what was called, or what goes wrong instead."""
        place = self._place(path)
        if self._inside or os.getpid() != self._process or place is None:
            return run()
        self.calls.append(f"{kind} {_named(place.relative_to(self.root))}")
        self._look(len(self.calls))
        fault, number = self.fault, len(self.calls)
        if fault and number == fault.moment:
            if fault.kind in ERRORS:
                return self._refuse(kind, place, run)
            self._die(fault.kind, run, torn or run)
        if fault and fault.kind == "ENOSPC" and number > fault.moment and kind in FILLS:
            return self._refuse(kind, place, run)
        found = self._do(run)
        if kind in ("write", "library"):
            self._unsafe.add(place.stat().st_ino)
        self._before = None if self.fault else self._seen()
        return found

    def _do(self, run: Callable[[], T]) -> T:
        self._inside = True
        try:
            return run()
        finally:
            self._inside = False

    def _refuse(self, kind: str, place: Path, run: Callable[[], T]) -> T:
        """The error; of a library its own, since no file may grow beyond a few bytes while it
        writes."""
        assert self.fault
        if kind != "library":
            number = ERRORS[self.fault.kind]
            raise OSError(number, os.strerror(number), str(place))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (7, hard))
        try:
            return self._do(run)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def _die(self, kind: str, run: Callable[[], object], torn: Callable[[], object]) -> NoReturn:
        with contextlib.suppress(OSError):  # a call that fails ends there as well
            if kind == "torn":
                self._do(torn)
            if kind == "after":
                self._do(run)
        if kind == "power":
            self._inside = True
            for path in self.root.rglob("*"):
                if path.is_file() and path.stat().st_ino in self._unsafe:
                    os.truncate(path, 0)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")

    def forced(self, descriptor: int) -> None:
        """What is in the file is safe from now on."""
        self._unsafe.discard(os.fstat(descriptor).st_ino)

    def _place(self, path: Any) -> Path | None:
        """Where the path is, if that is below the folder."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        place = Path(os.path.abspath(os.fsdecode(path)))
        return place if self.root in place.parents else None

    def _look(self, number: int) -> None:
        if self._before is not None and self._before != self._seen():
            self.unseen.append(f"before call {number}, {self.calls[-1]}")

    def _seen(self) -> dict[str, Any]:
        """Every path with its size and time."""
        found = {}
        for path in self.root.rglob("*"):
            status = path.lstat()
            found[str(path)] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return found


def _named(path: Path) -> str:
    """The path without what is drawn at random."""
    parts = (
        part.partition(".partial-")[0] + ".partial" * (".partial-" in part) for part in path.parts
    )
    return "/".join(parts)


@contextlib.contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """Inside, calls go through `disk`."""
    with contextlib.ExitStack() as stack:

        def put(owner: Any, name: str, new: Any) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, new)

        opened = _opening(disk, io.open)
        put(io, "open", opened)
        put(builtins, "open", opened)
        put(os, "open", _opening_descriptors(disk, os.open))
        put(os, "write", _writing(disk, os.write))
        put(os, "fsync", _forcing(disk, os.fsync))
        for name in ("rename", "replace"):
            put(os, name, _moving(disk, getattr(os, name)))
        for name in ("mkdir", "rmdir", "unlink", "remove", "truncate", "chmod", "utime"):
            put(os, name, _named_call(disk, name, getattr(os, name)))
        for name in ("symlink", "link"):
            put(os, name, _linking(disk, name, getattr(os, name)))
        put(torch, "save", _library(disk, torch.save, place=1))
        put(
            safetensors.torch, "serialize_file", _library(disk, safetensors.torch.serialize_file, 1)
        )
        put(tokenizers.Tokenizer, "save", _library(disk, tokenizers.Tokenizer.save, place=1))
        yield


def _opening(disk: Disk, real: Any) -> Any:
    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        place = disk._place(file) if any(letter in mode for letter in "wax+") else None
        if place is None:
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = mode.replace("b", "").replace("t", "")
        raw = disk.call("open", place, lambda: _Raw(file, plain, closefd, opener))
        raw.disk, raw.place = disk, place
        if buffering == 0:
            return raw
        kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
        buffer = kind(raw, io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering)
        if "b" in mode:
            return buffer
        text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text

    return opened


def _opening_descriptors(disk: Disk, real: Any) -> Any:
    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        run = lambda: real(path, flags, mode, dir_fd=dir_fd)  # noqa: E731
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return run()
        return disk.call("open", _joined(path, dir_fd), run)

    return opened


def _writing(disk: Disk, real: Any) -> Any:
    def write(descriptor: int, content: Any) -> int:
        data = bytes(content)
        half = lambda: real(descriptor, data[: len(data) // 2])  # noqa: E731
        return disk.call("write", descriptor, lambda: real(descriptor, data), torn=half)

    return write


def _forcing(disk: Disk, real: Any) -> Any:
    def fsync(file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        disk.call("fsync", descriptor, lambda: real(descriptor))
        disk.forced(descriptor)

    return fsync


def _moving(disk: Disk, real: Any) -> Any:
    def rename(source: Any, target: Any, **given: Any) -> None:
        disk.call("rename", target, lambda: real(source, target, **given))

    return rename


def _linking(disk: Disk, name: str, real: Any) -> Any:
    def link(source: Any, target: Any, *rest: Any, **given: Any) -> None:
        disk.call(name, target, lambda: real(source, target, *rest, **given))

    return link


def _named_call(disk: Disk, name: str, real: Any) -> Any:
    def changed(path: Any, *rest: Any, dir_fd: int | None = None, **given: Any) -> Any:
        more = {"dir_fd": dir_fd} if dir_fd is not None else {}
        run = lambda: real(path, *rest, **more, **given)  # noqa: E731
        place = _joined(path, dir_fd)
        if os.path.lexists(place) == (name == "mkdir"):
            return run()  # it changes nothing
        return disk.call(name, place, run)

    return changed


def _library(disk: Disk, real: Any, place: int) -> Any:
    """A function that writes the file of its argument at `place` without Python."""

    def save(*arguments: Any, **given: Any) -> Any:
        path = arguments[place]
        if not isinstance(path, str | Path):
            return real(*arguments, **given)

        def torn() -> None:
            real(*arguments, **given)
            os.truncate(path, os.path.getsize(path) // 2)

        return disk.call("library", path, lambda: real(*arguments, **given), torn=torn)

    return save


def _joined(path: Any, folder: int | None) -> Any:
    return path if folder is None else os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
