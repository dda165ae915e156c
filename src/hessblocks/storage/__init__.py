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
from hessblocks.storage.examination import ABSENT, DAMAGED, LACKS, check_folder, gathered, mended
from hessblocks.storage.files import (
    atomic_folder,
    atomic_path,
    file_of,
    json_text,
    read_object,
    read_study_file,
    read_text,
    refuse_links,
    remove_partials,
    set_aside,
    sync,
    write_json,
    write_text,
)
from hessblocks.storage.folder_results import FolderResults, load_results
from hessblocks.storage.identity import (
    SAID,
    SEAL,
    Finding,
    identity_in,
    identity_of_all,
    sealed,
    state_of,
)
from hessblocks.storage.lines import (
    SHORT,
    Metric,
    Observation,
    append_line,
    fault_in_lines,
    last_seal,
    read_finished_lines,
    read_lines,
)
from hessblocks.storage.locks import held
from hessblocks.storage.rows import (
    NORM,
    STAGES,
    STEPS,
    ResultRow,
    SignalRow,
    is_trained,
    read_results,
    read_signal,
    seal_rows,
    step_of,
    steps_done,
    write_results,
)
from hessblocks.storage.seals import (
    CARD,
    SEAL_FILE,
    DamageWarning,
    remedy,
    remembered_in,
    seal,
    sealed_folder,
    sealed_in_place,
    sha256,
)
from hessblocks.storage.tables import (
    Row,
    Scalar,
    table_states,
    table_text,
    write_table,
)
from hessblocks.storage.tabular import Tabular
