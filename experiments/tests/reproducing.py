"""`hessblocks reproduce` at its smallest, as `tests.crashes.commands` has the commands of the
library."""

import functools
import multiprocessing
import signal
from collections.abc import Callable
from typing import Any

import pytest

from experiments.tests.kills import SECONDS
from hessblocks_studies.engine import workers
from tests.crashes import commands

WORDS = "reproduce deep-softmax,heatmap --scale smoke --seeds 1 --workers 1"


def known(patch: pytest.MonkeyPatch) -> None:
    """Let the helpers of crashes know the command."""
    patch.setitem(commands.COMMANDS, "reproduce", WORDS.split())
    patch.setattr(commands, "WITHOUT_TEXT", {"reproduce"})
    patch.setattr(commands, "TIMED", set(SECONDS))
    patch.setattr(commands, "PREPARATIONS", [without_imports])


def without_imports(patch: pytest.MonkeyPatch) -> None:
    """Workers are forks, which need no imports."""
    patch.setattr(workers, "_SPAWN", multiprocessing.get_context("fork"))
    patch.setattr(workers, "_serve", functools.partial(_as_if_spawned, workers._serve))


def _as_if_spawned(serve: Callable[..., None], *arguments: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve(*arguments)
