"""Hugging Face models made of blocks; importing this registers them with the Auto classes."""

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hessblocks.models.build import build, read_blocks
from hessblocks.models.configuration import HessblocksConfig
from hessblocks.models.conversion import from_pretrained_blocks, to_family
from hessblocks.models.drawing import draw_blocks
from hessblocks.models.gguf import names_once, open_gguf, stored_within, stored_words
from hessblocks.models.gguf_tokenizer import split_name
from hessblocks.models.heads import (
    TASKS,
    HessblocksForCausalLM,
    HessblocksForMaskedLM,
    HessblocksForSequenceClassification,
)
from hessblocks.models.modeling import HessblocksModel, Layer
from hessblocks.models.pretrained import HessblocksPreTrainedModel
from hessblocks.models.saved import Saved, context_of, fingerprint, load, load_saved

transformers.AutoConfig.register("hessblocks", HessblocksConfig)
transformers.AutoModel.register(HessblocksConfig, HessblocksModel)
for _model, _auto, _ in TASKS.values():
    _auto.register(HessblocksConfig, _model)
# transformers' Trainer reads this to decide whether label smoothing must shift the labels
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["hessblocks"] = HessblocksForCausalLM.__name__
__all__ = [
    "HessblocksConfig",
    "HessblocksForCausalLM",
    "HessblocksForMaskedLM",
    "HessblocksForSequenceClassification",
    "HessblocksModel",
    "HessblocksPreTrainedModel",
    "Layer",
    "build",
    "draw_blocks",
    "from_pretrained_blocks",
    "load",
    "stored_within",
    "stored_words",
    "to_family",
]
