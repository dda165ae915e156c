"""Masked-LM pretraining, fine-tuning on labelled tasks, and the costs of both."""

from hessblocks_studies.masked.cost import cost_rows
from hessblocks_studies.masked.finetune import Finetuning, Score, finetune
from hessblocks_studies.masked.masked_bigrams import MaskedBigramTable
from hessblocks_studies.masked.masked_settings import Pretraining
from hessblocks_studies.masked.peak_memory import peak_bytes
from hessblocks_studies.masked.pretrain import Pretrained, held_out_masked, pretrained
