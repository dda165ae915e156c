"""Training runs and comparisons that stop and go on without changing a digit."""

from hessblocks.training.callbacks import DivergenceWarning
from hessblocks.training.checkpoints import CheckpointWarning
from hessblocks.training.compare import ComparisonSettings, compare
from hessblocks.training.folder import EnvironmentWarning, RunFolder, claimed, locked
from hessblocks.training.progress import Progress
from hessblocks.training.run import DamageWarning, Run, train
from hessblocks.training.settings import (
    CurvatureSettings,
    ModelSettings,
    RunSettings,
    TrainingSettings,
    resolve_device,
)

__all__ = [
    "CheckpointWarning",
    "ComparisonSettings",
    "CurvatureSettings",
    "DamageWarning",
    "DivergenceWarning",
    "EnvironmentWarning",
    "ModelSettings",
    "Progress",
    "Run",
    "RunFolder",
    "RunSettings",
    "TrainingSettings",
    "claimed",
    "compare",
    "locked",
    "resolve_device",
    "train",
]
