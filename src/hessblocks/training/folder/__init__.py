"""The folder of a run and its checkpoints."""

from hessblocks.training.folder.checkpoints import (
    CheckpointWarning,
    is_whole,
    newest_whole,
    progress_of,
    prune,
    save_model,
    seal,
    step_of,
    writing,
)
from hessblocks.training.folder.run_folder import RunFolder, claimed
