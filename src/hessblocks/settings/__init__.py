"""Settings of commands and runs: frozen dataclasses, checked when made; nothing heavy is imported.

The line under each field says its meaning and unit, and is the help of its command-line option; the
default and the range of the option are those of the field.
"""

from hessblocks.settings.field_marks import (
    SEED,
    ByOptimiser,
    Kind,
    NoOption,
    OneOf,
    Range,
    Repeated,
    at_least,
    check_ranges,
    kinds,
    make,
    option,
    prefix,
    said_again,
    words,
)
from hessblocks.settings.inspected import CurvatureInspection, InspectionSettings, SignalInspection
from hessblocks.settings.optimisation import TrainingSettings, TunedSettings
from hessblocks.settings.pretrained import PricingSettings, SimplifySettings
from hessblocks.settings.run_settings import (
    MATCHES,
    ROLES,
    ComparisonSettings,
    CurvatureSettings,
    DataSettings,
    ModelSettings,
    ObservationSettings,
    PresetSizes,
    RunSettings,
    SharedSettings,
    check_place,
    chooses,
    is_due,
)
