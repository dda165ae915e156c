"""Train and compare blocks; a resumed run gives the same digits as an uninterrupted one."""

from hessblocks.progress import Progress
from hessblocks.settings import (
    ComparisonSettings,
    CurvatureSettings,
    ModelSettings,
    ObservationSettings,
    RunSettings,
    TrainingSettings,
)
from hessblocks.storage import DamageWarning, EnvironmentWarning
from hessblocks.training.comparison import compare, next_rate, train, tuning_loss
from hessblocks.training.folder import CheckpointWarning, RunFolder, claimed, continued
from hessblocks.training.following import (
    CurvatureCallback,
    GainCallback,
    SignalCallback,
    gain_values,
)
from hessblocks.training.preparation import (
    build_model,
    check_tracker,
    model_without_weights,
    prepare,
    resolve_device,
)
from hessblocks.training.recorder import Recorder, peak_bytes, update_flops, working_seconds
from hessblocks.training.run import DivergenceWarning, Run
from hessblocks.training.trainer import (
    GuardedTrainer,
    RunTrainer,
    held_out,
    make_trainer,
    quiet_arguments,
    run_arguments,
    tokenizer_of,
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
