"""Train and compare blocks; a resumed run gives the same digits as an uninterrupted one."""

from hessblocks.training.comparison import compare, next_rate, train, tuning_loss
from hessblocks.training.folder import CheckpointWarning, claimed, saving
from hessblocks.training.following import (
    CurvatureCallback,
    GainCallback,
    SignalCallback,
    gain_values,
)
from hessblocks.training.preparation import model_without_weights, prepare, resolve_device
from hessblocks.training.recorder import Recorder, update_flops, working_seconds
from hessblocks.training.run import DivergenceWarning
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
    "CurvatureCallback",
    "DivergenceWarning",
    "GainCallback",
    "claimed",
    "compare",
    "resolve_device",
    "train",
]
