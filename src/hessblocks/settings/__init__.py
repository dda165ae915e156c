"""Settings of commands and runs: frozen dataclasses, checked when made; importing this is fast.

The line below each field explains its meaning and unit, and is the help text of its command-line
option. The option has the default and the range of the field.
"""

from hessblocks.settings.field_marks import (
    SEED,
    ByOptimiser,
    FieldKind,
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
    words,
)
from hessblocks.settings.pretrained import (
    BUDGETS,
    FORMATS,
    SIZES,
    WRITTEN,
    CurvatureInspection,
    InspectionSettings,
    PricingSettings,
    QuantisingSettings,
    SignalInspection,
    SimplifySettings,
)
from hessblocks.settings.run_settings import (
    BUILT_IN,
    ROLES,
    TRACKERS,
    VOCABULARY,
    ComparisonSettings,
    CurvatureSettings,
    DataSettings,
    ModelSettings,
    ObservationSettings,
    PresetSizes,
    RunSettings,
    SharedSettings,
    TrainingSettings,
    TunedSettings,
    heads_refusal,
    is_due,
)
