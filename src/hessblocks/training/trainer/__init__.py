"""The Trainer of every run: data order, recording, observation, divergence, clocks, memory."""

from hessblocks.training.trainer.divergence import Divergence
from hessblocks.training.trainer.following import (
    CurvatureCallback,
    GainCallback,
    SignalCallback,
)
from hessblocks.training.trainer.guarded import GuardedTrainer, quiet_arguments
from hessblocks.training.trainer.memory import peak_bytes, start_counting
from hessblocks.training.trainer.observer import Observer, map_rows
from hessblocks.training.trainer.recorder import Recorder, validation_loss
from hessblocks.training.trainer.run_trainer import (
    RunTrainer,
    held_out,
    make_trainer,
    run_arguments,
)
from hessblocks.training.trainer.update_cost import step_seconds, update_flops, working_seconds
