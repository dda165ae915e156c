"""The folder of a run and its checkpoints."""

from hessblocks.training.folder.checkpoints import (
    CheckpointWarning,
    continued,
    prune,
    save_model,
    spare_foreign,
    writing,
)
from hessblocks.training.folder.run_folder import RunFolder, claimed
