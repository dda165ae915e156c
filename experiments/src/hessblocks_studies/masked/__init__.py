"""Masked-LM pretraining, fine-tuning on labelled tasks, and what both cost."""

from hessblocks.training.masked.cost import Cost, costs
from hessblocks.training.masked.finetune import Finetuning, Score, finetune
from hessblocks.training.masked.masked_settings import Pretraining
from hessblocks.training.masked.pretrain import Pretrained, held_out_masked, pretrained
