"""End a command at SIGINT, SIGTERM or SIGHUP: clean up, print one sentence, exit 128 + number."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
ONE_EVENT = 1.0
"""Seconds in which further signals count as the same one: torchrun repeats the terminal's."""


@contextmanager
def interruptible(end: str = "") -> Iterator[None]:
    """Keep standard output for results; if interrupted, say that the same command can resume.

    Args:
        end: end of the sentence.

    Raises:
        KeyboardInterrupt: the command was interrupted; the message is the sentence.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        sentence = f"interrupted; the same command goes on where it stopped{end}."
        raise KeyboardInterrupt(sentence) from None


@contextmanager
def signals_interrupt() -> Iterator[list[int]]:
    """Make each of `SIGNALS` raise KeyboardInterrupt; yield the numbers of received signals.

    An ignored signal (nohup) stays ignored. Among several processes (torchrun) only the first
    handles signals and cleans up: the others may wait for it in code where Python handles none.
    """
    came: list[int] = []
    until = 0.0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal until
        came.append(number)
        if time.monotonic() > until:
            until = time.monotonic() + ONE_EVENT
            raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread() and os.environ.get("RANK", "0") == "0":
        before = {
            number: signal.signal(number, interrupt)
            for number in SIGNALS
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
        }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
