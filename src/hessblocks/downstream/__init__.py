"""Masked-LM pretraining, fine-tuning on labelled tasks, and what both cost."""

from hessblocks.downstream.cost import Cost, costs
from hessblocks.downstream.finetune import Finetuning, Score, finetune
from hessblocks.downstream.pretrain import Pretrained, pretrained
from hessblocks.downstream.settings import Pretraining

__all__ = [
    "Cost",
    "Finetuning",
    "Pretrained",
    "Pretraining",
    "Score",
    "costs",
    "finetune",
    "pretrained",
]
