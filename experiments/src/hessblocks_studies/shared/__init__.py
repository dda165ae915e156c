"""Common parts of studies: trained blocks, curvature, differences over seeds, summaries."""

from hessblocks_studies.data import PACKAGE, TextSize, text_of, widened
from hessblocks_studies.shared.best_rates import SLACK, Rate, at_best_rates
from hessblocks_studies.shared.blockwise_rates import blockwise_learning_rates
from hessblocks_studies.shared.correlations import correlation, correlation_check
from hessblocks_studies.shared.differences import (
    Difference,
    apart,
    difference,
    gaps,
    judged_by,
    over_seeds,
    slopes,
    undecided,
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
    COMMON_MATRICES,
    HETEROGENEITY,
    PROBES,
    SETS,
    SPREAD,
    Probe,
    by_role,
    curvature_rows,
    training_batch,
    unevenness_rows,
)
from hessblocks_studies.shared.pooled_errors import (
    LEVEL,
    Residual,
    Values,
    error_line,
    pooled_error,
    rounded,
)
from hessblocks_studies.shared.step_times import (
    PUBLISHED_SPEED,
    STEP_TIME,
    against_time,
    at_equal_time,
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
    AT_RATE,
    BIGRAMS,
    GPT2,
    LAPTOP,
    LOSS,
    PAPER,
    RATES,
    REFERENCES,
    SIZES,
    SMALLEST,
    SMOKE,
    TRAINED_COLUMNS,
    BlockSettings,
    Grid,
    Sweep,
    TrainedSettings,
    level,
    run_settings,
    train,
    train_point,
    trained_study,
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
    COUNTED,
    TUNED_COLUMNS,
    TUNING,
    Make,
    Tuned,
    TunedSettings,
    rule_check,
    run_points,
    run_seeds,
    tuning_points,
)
from hessblocks_studies.shared.turns import ROUNDS, TimedModel, in_turns
from hessblocks_studies.shared.variants import (
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
)
