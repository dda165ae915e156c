"""The folder of a run and its checkpoints."""

from hessblocks.training.folder.checkpoints import (
    CheckpointWarning,
    continued,
    is_whole,
    prune,
    remembered_in,
    save_model,
    seal,
    writing,
)
from hessblocks.training.folder.run_folder import RunFolder, claimed
