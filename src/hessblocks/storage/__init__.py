"""Read and write files; one module per format, and each file is written whole or not at all."""

from hessblocks.storage.config import (
    COMMAND,
    EnvironmentWarning,
    differences,
    environment,
    keep_environment,
    run_path,
    warn_of_another_environment,
)
from hessblocks.storage.curvature_results import (
    EIGENVALUE,
    MAP_COLUMNS,
    SPECTRUM_COLUMNS,
    CurvatureResults,
    Eigenvalue,
    SpectrumRow,
    StoredNorm,
    StoredRatio,
    group_key,
    load_curvature,
)
from hessblocks.storage.files import (
    atomic_folder,
    atomic_path,
    finite,
    json_text,
    parse_json,
    read_object,
    refuse_links,
    remove_partials,
    set_aside,
    stays_inside,
    sync,
    write_json,
    write_text,
)
from hessblocks.storage.folder_results import (
    REFERENCE,
    FolderResults,
    load_results,
    read_tuning,
    write_tuning,
)
from hessblocks.storage.manifest import (
    CARD,
    HOLDER,
    LOCK,
    MANIFEST,
    DamageWarning,
    check_in_place,
    check_manifest,
    held,
    identity_in,
    identity_of,
    remedy,
    remembered_in,
    sha256,
    write_manifest,
)
from hessblocks.storage.model_folder import (
    check_model_folder,
    check_own_code,
    tensor_types,
    weight_files,
)
from hessblocks.storage.store import POINTS, Store, canonical, mended_store, read_store
from hessblocks.storage.tables import (
    NORM,
    STAGES,
    STEPS,
    JsonLine,
    Metric,
    Observation,
    ResultRow,
    Row,
    Scalar,
    SignalRow,
    append_line,
    fault_in_finished_lines,
    fault_in_lines,
    is_trained,
    read_finished_lines,
    read_lines,
    read_results,
    read_signal,
    step_of,
    steps_done,
    table_text,
    write_results,
    write_table,
)
from hessblocks.storage.tabular import Rows, Tabular, read_result, read_tensors, write_tensors
