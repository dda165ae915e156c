"""Hugging Face models made of blocks; importing this registers them with the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from hessblocks.models.build import TASKS, build
from hessblocks.models.configuration import HessblocksConfig
from hessblocks.models.modeling import (
    HessblocksForCausalLM,
    HessblocksModel,
    HessblocksPreTrainedModel,
)

AutoConfig.register("hessblocks", HessblocksConfig)
AutoModel.register(HessblocksConfig, HessblocksModel)
AutoModelForCausalLM.register(HessblocksConfig, HessblocksForCausalLM)

__all__ = [
    "TASKS",
    "HessblocksConfig",
    "HessblocksForCausalLM",
    "HessblocksModel",
    "HessblocksPreTrainedModel",
    "build",
]
