"""The folder of a run and its checkpoints."""

from hessblocks.training.folder.checkpoints import (
    CheckpointWarning,
    continued,
    newest,
    prune,
    save_model,
    writing,
)
from hessblocks.training.folder.run_folder import RunFolder, claimed
