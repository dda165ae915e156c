"""The Trainer of every run: data order, recording, observation, divergence, clocks, memory."""

from hessblocks.training.trainer.curvature_rows import curvature_rows
from hessblocks.training.trainer.data_order import spread
from hessblocks.training.trainer.flops import update_flops
from hessblocks.training.trainer.guarded import PlainTrainer, arguments
from hessblocks.training.trainer.memory import peak_bytes, start_counting
from hessblocks.training.trainer.observer import Observer
from hessblocks.training.trainer.pace import step_seconds
from hessblocks.training.trainer.recorder import DivergenceWarning, Recorder
from hessblocks.training.trainer.run_trainer import RunTrainer, make_trainer
