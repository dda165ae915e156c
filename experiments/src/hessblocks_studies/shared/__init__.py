"""Common parts of studies: trained blocks, curvature, differences over seeds, summaries."""

from hessblocks_studies.data import NO_TABLES, PACKAGE, TextSize, text_of, widened
from hessblocks_studies.shared.best_rates import SLACK, Rate, at_best_rates
from hessblocks_studies.shared.differences import (
    Difference,
    combined,
    difference,
    gaps,
    judged_by,
    line,
    over_seeds,
    slopes,
)
from hessblocks_studies.shared.gap_curves import gap_panel
from hessblocks_studies.shared.gathering import (
    Place,
    curve,
    gathered,
    grouped,
    mean_places,
    mean_table,
    measured,
    nested,
    of_quantity,
    panel,
    summary,
    validation_loss,
)
from hessblocks_studies.shared.measured_curvature import (
    ALL_MATRICES,
    HETEROGENEITY,
    SPREAD,
    Probe,
    curvature_rows,
)
from hessblocks_studies.shared.pooled_errors import (
    LEVEL,
    Values,
    error_line,
    rounded,
)
from hessblocks_studies.shared.step_times import (
    PUBLISHED_SPEED,
    STEP_TIME,
    against_time,
    clocked,
    for_all_bases,
    mean_clocks,
    ratios,
    repeated,
    speed_check,
    speeds,
    time_ratio,
    timed,
    timed_models,
    values,
)
from hessblocks_studies.shared.trained_points import (
    ALL,
    BIGRAMS,
    GPT2,
    LAPTOP,
    LOSS,
    PAPER,
    RATES,
    REFERENCES,
    SIZES,
    SMALLEST,
    TRAINED_COLUMNS,
    TRAINING_LOSS,
    BlockSettings,
    Grid,
    Sweep,
    TrainedSettings,
    check_read_once,
    level,
    make_model,
    run_settings,
    train,
    train_point,
    trained_study,
    whole_loss,
)
from hessblocks_studies.shared.trained_summary import (
    CLOSE,
    CURVES,
    HOW,
    MARGIN,
    Runs,
    finite,
    places_panel,
    steps_to,
    void_of,
)
from hessblocks_studies.shared.tuned_runs import (
    TUNED_COLUMNS,
    TUNING,
    TUNING_SEED,
    TunedSettings,
    rule_check,
    run_seeds,
)
from hessblocks_studies.shared.turns import ROUNDS, TimedModel, in_turns
from hessblocks_studies.shared.variants import (
    ATTENTION_GAINS,
    BASES,
    BETAS,
    GAINED,
    GAINED_ORTHOGONAL,
    GAINED_PARALLEL,
    GAINED_WITH_SKIP,
    MLP_GAINS,
    RESTRICTED_INITS,
    SLOPES,
    VALUE_SKIPINIT,
    ZERO_QUERIES,
    best_start,
    restricted,
    with_attention_gain,
)
