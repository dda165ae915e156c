"""What a model computes besides its weights has a digest, the same in every process."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from hessblocks.inspection.subject import Subject


def configuration(model: nn.Module) -> str:
    return Subject(name="m", model=model).configuration()


def gpt(**sizes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    small = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 30, "n_positions": 8}
    return GPT2LMHeadModel(GPT2Config(**{**small, "bos_token_id": 0, "eos_token_id": 0, **sizes}))


class Plain(nn.Module):
    """Without a configuration of transformers."""

    def __init__(self, config: Any = None, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=epsilon)
        self.config = config


def with_relu() -> PreTrainedModel:
    changed = gpt()
    changed.transformer.h[0].mlp.act = nn.ReLU()
    return changed


PAIRS: dict[str, tuple[nn.Module, nn.Module]] = {
    "heads": (gpt(), gpt(n_head=4)),
    "epsilon": (gpt(), gpt(layer_norm_epsilon=1e-3)),
    "activation": (gpt(), gpt(activation_function="relu")),
    "activation of one layer": (gpt(), with_relu()),
    "configuration of another": (gpt(preset="a"), gpt(preset="b")),
    "epsilon without a configuration": (Plain(), Plain(epsilon=1e-3)),
    "configuration without to_dict": (Plain({"heads": 2}), Plain({"heads": 4})),
    "configuration of another kind": (Plain(SimpleNamespace(a=1)), Plain(SimpleNamespace(a=2))),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_what_changes_the_numbers_changes_the_digest(pair: tuple[nn.Module, nn.Module]) -> None:
    one, other = map(configuration, pair)
    assert one != other


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_does_not_change_the_numbers_leaves_the_digest() -> None:
    model = gpt()
    before = configuration(model)
    model.train()
    model.config.use_cache = False
    model.config._name_or_path = "elsewhere"
    model.gradient_checkpointing_enable()
    ids = torch.zeros(1, 4, dtype=torch.long)
    model(input_ids=ids, labels=ids, output_hidden_states=True)
    assert configuration(model) == before


def test_what_has_no_words_of_its_own_is_reported_by_its_class() -> None:
    one, other = (Plain({"thing": object()}) for _ in range(2))
    assert configuration(one) == configuration(other)


@pytest.mark.slow  # a process that imports it all
def test_the_digest_is_that_of_every_process() -> None:
    code = (
        "from tests.inspection.test_digests import Plain, configuration, gpt;"
        "print(configuration(Plain({'a': object()})), configuration(gpt()))"
    )
    here = f"{configuration(Plain({'a': object()}))} {configuration(gpt())}"
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    assert out.stdout.strip() == here
