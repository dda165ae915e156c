"""Fine-tuning of a saved model on labelled text of the user's own."""

from hessblocks.training.labelled.classifier import NewHeadWarning
from hessblocks.training.labelled.labelled_run import Finetuned, finetune_saved
