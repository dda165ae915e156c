"""Files: each format is written and read by one module; whole or absent, never half."""

from hessblocks.storage.config import differences
from hessblocks.storage.curvature_results import (
    MAP_COLUMNS,
    SPECTRUM_COLUMNS,
    CurvatureResults,
    Density,
    Norm,
    is_curvature_run,
    load_curvature,
)
from hessblocks.storage.environment import (
    EnvironmentWarning,
    environment,
    keep_environment,
    warn_of_another_environment,
)
from hessblocks.storage.files import (
    atomic_folder,
    atomic_path,
    remove_partials,
    write_json,
    write_text,
)
from hessblocks.storage.folder_results import (
    NORM,
    STAGES,
    FolderResults,
    Measurement,
    Metric,
    Settings,
    load_results,
)
from hessblocks.storage.lines import (
    Observation,
    append_line,
    cut_back,
    read_finished_lines,
    read_lines,
)
from hessblocks.storage.locks import held
from hessblocks.storage.rows import (
    STEPS,
    ResultRow,
    is_trained,
    read_results,
    step_of,
    steps_done,
    write_results,
)
from hessblocks.storage.tables import GROWTH_COLUMNS, Row, Scalar, write_table
