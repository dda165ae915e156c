"""All planted faults: those of each file of `faults`, one for each package that they stand in."""

import importlib
from pathlib import Path

from tests.mutants.mutant import Mutant

FILES = sorted(Path(__file__).with_name("faults").glob("*.py"))
MUTANTS: tuple[Mutant, ...] = tuple(
    mutant
    for file in FILES
    for mutant in importlib.import_module(f"tests.mutants.faults.{file.stem}").FAULTS
)
