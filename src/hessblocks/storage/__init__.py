"""Files: each format is written and read by one module; whole or absent, never half."""

from hessblocks.storage.config import Settings, differences
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
    read_study_file,
    refuse_links,
    remove_partials,
    write_json,
    write_text,
)
from hessblocks.storage.folder_results import FolderResults, load_results
from hessblocks.storage.lines import (
    Metric,
    Observation,
    append_line,
    cut_back,
    read_finished_lines,
    read_lines,
)
from hessblocks.storage.locks import held
from hessblocks.storage.rows import (
    NORM,
    STAGES,
    STEPS,
    ResultRow,
    is_trained,
    read_results,
    step_of,
    steps_done,
    write_results,
)
from hessblocks.storage.signal_rows import SignalRow, read_signal
from hessblocks.storage.tables import GROWTH_COLUMNS, Row, Scalar, write_table
