"""The folder of a run and its checkpoints."""

from hessblocks.training.folder.checkpoints import (
    CheckpointWarning,
    continued,
    is_whole,
    progress_of,
    prune,
    save_model,
    seal,
    writing,
)
from hessblocks.training.folder.run_folder import RunFolder, claimed
