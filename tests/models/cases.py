"""Tiny models away from their special initial values, shared by the tests of models."""

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import hessblocks as hb

SIZES = {"depth": 2, "width": 16, "heads": 4, "vocab_size": 29, "context": 24}
presets = pytest.mark.parametrize("name", hb.PRESETS)


def perturbed(name: str | list[hb.BlockConfig], **fields: object) -> PreTrainedModel:
    """A model with every parameter moved, so that no query is zero and no two gains are equal."""
    model = hb.build(name, **(SIZES | fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def ids(*shape: int) -> Tensor:
    return torch.randint(0, SIZES["vocab_size"], shape)
