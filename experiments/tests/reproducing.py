"""`hessblocks reproduce` at its smallest, as `tests.crashes.commands` has the commands of the
library."""

import pytest

from experiments.tests.kills import SECONDS
from hessblocks_studies import engine
from hessblocks_studies.engine import Executor
from tests.crashes import commands

WORDS = "reproduce deep-softmax,heatmap --scale smoke --seeds 1 --workers 1"


def known(patch: pytest.MonkeyPatch) -> None:
    """Let the helpers of crashes know the command."""
    patch.setitem(commands.COMMANDS, "reproduce", WORDS.split())
    patch.setattr(commands, "WITHOUT_TEXT", {"reproduce"})
    patch.setattr(commands, "TIMED", set(SECONDS))
    patch.setattr(commands, "PREPARATIONS", [without_imports])


def without_imports(patch: pytest.MonkeyPatch) -> None:
    """Points are measured in the command's process, since workers take seconds to start."""
    patch.setattr(engine, "Executor", lambda workers, ray: Executor(workers if ray else None, ray))
