"""Training runs and comparisons that stop and go on without changing a digit."""

from hessblocks.training.callbacks import DivergenceWarning
from hessblocks.training.checkpoints import CheckpointWarning
from hessblocks.training.checks import resolve_device
from hessblocks.training.compare import ComparisonSettings, compare
from hessblocks.training.environment import EnvironmentWarning
from hessblocks.training.folder import RunFolder, claimed
from hessblocks.training.observation import CurvatureSettings, ObservationSettings
from hessblocks.training.optimisation import TrainingSettings
from hessblocks.training.progress import Progress
from hessblocks.training.run import DamageWarning, Run
from hessblocks.training.settings import ModelSettings, RunSettings
from hessblocks.training.single import train

__all__ = [
    "CheckpointWarning",
    "ComparisonSettings",
    "CurvatureSettings",
    "DamageWarning",
    "DivergenceWarning",
    "EnvironmentWarning",
    "ModelSettings",
    "ObservationSettings",
    "Progress",
    "Run",
    "RunFolder",
    "RunSettings",
    "TrainingSettings",
    "claimed",
    "compare",
    "resolve_device",
    "train",
]
