"""What a run is made of: sizes, optimiser, observation; checked when made."""

from hessblocks.training.settings.checks import resolve_device
from hessblocks.training.settings.observation import CurvatureSettings, ObservationSettings, is_due
from hessblocks.training.settings.optimisation import TrainingSettings
from hessblocks.training.settings.run_settings import (
    ComparisonSettings,
    ModelSettings,
    RunSettings,
    SharedSettings,
    with_defaults,
)
from hessblocks.training.settings.size import RunSize
