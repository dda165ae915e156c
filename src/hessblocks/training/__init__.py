"""Training runs and comparisons that stop and go on without changing a digit."""

from hessblocks.progress import Progress
from hessblocks.settings import (
    ComparisonSettings,
    CurvatureSettings,
    ModelSettings,
    ObservationSettings,
    RunSettings,
    RunSize,
    TrainingSettings,
)
from hessblocks.storage import DamageWarning, EnvironmentWarning
from hessblocks.training.comparison import compare, train
from hessblocks.training.execution import DivergenceWarning
from hessblocks.training.folder import CheckpointWarning, RunFolder, claimed, continued
from hessblocks.training.preparation import (
    build_model,
    check_tracker,
    model_without_weights,
    resolve_device,
    run_of_size,
)
from hessblocks.training.ranks import is_first
from hessblocks.training.run import Run
from hessblocks.training.trained_gains import gain_values
from hessblocks.training.trainer import (
    CurvatureCallback,
    GainCallback,
    GuardedTrainer,
    Recorder,
    RunTrainer,
    SignalCallback,
    held_out,
    make_trainer,
    peak_bytes,
    quiet_arguments,
    run_arguments,
    update_flops,
    validation_loss,
    working_seconds,
)

__all__ = [
    "CheckpointWarning",
    "ComparisonSettings",
    "CurvatureCallback",
    "CurvatureSettings",
    "DamageWarning",
    "DivergenceWarning",
    "EnvironmentWarning",
    "GainCallback",
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
