"""What a model computes besides its weights has one digest, in every process."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
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
    """Without a configuration."""

    def __init__(self, heads: int = 2, scale: float = 1.0, **more: Any) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, heads, 16, norm_first=False)
        self.attention = nn.MultiheadAttention(8, heads)
        self.scale = scale
        self.nested = {"widths": [1, 2], "kinds": {"a", "b", "c"}, "act": torch.relu}
        self.itself = [self.nested]
        self.nested["loop"] = self.itself
        self.register_buffer("mask", torch.ones(2), persistent=False)
        for name, value in more.items():
            setattr(self, name, value)


def hook(module: nn.Module, given: Any, found: Any) -> Any:
    return 2 * found


def doubled(value: Any, by: int = 2) -> Any:
    return by * value


def change_plain(change: Callable[[Any], object]) -> tuple[nn.Module, nn.Module]:
    changed = Plain()
    change(changed)
    return Plain(), changed


def change_gpt(change: Callable[[Any], object]) -> tuple[nn.Module, nn.Module]:
    changed = gpt()
    change(changed)
    return gpt(), changed


PAIRS: dict[str, tuple[nn.Module, nn.Module]] = {
    "order of norms": change_plain(lambda m: setattr(m.layer, "norm_first", True)),
    "heads": (Plain(), Plain(heads=4)),
    "temperature": (Plain(), Plain(scale=2.0)),
    "number in a list": change_plain(lambda m: m.nested["widths"].append(3)),
    "entry of a set": change_plain(lambda m: m.nested["kinds"].add("d")),
    "function": change_plain(lambda m: m.nested.update(act=torch.tanh)),
    "argument of a partial": (Plain(f=partial(doubled, by=2)), Plain(f=partial(doubled, by=3))),
    "dtype": (Plain(kind=torch.float32), Plain(kind=torch.bfloat16)),
    "tensor": (Plain(table=torch.ones(2)), Plain(table=torch.zeros(2))),
    "buffer that is not saved": change_plain(lambda m: m.mask.zero_()),
    "hook": change_plain(lambda m: m.layer.register_forward_hook(hook)),
    "hook before": change_plain(lambda m: m.layer.register_forward_pre_hook(lambda m, x: x)),
    "activation of one layer": change_gpt(lambda m: setattr(m.transformer.h[0].mlp, "act", nn.ReLU())),
    "scores of one layer": change_gpt(lambda m: setattr(m.transformer.h[0].attn, "scale_attn_weights", False)),
    "configuration of another": (gpt(preset="a"), gpt(preset="b")),
    "epsilon": (gpt(), gpt(layer_norm_epsilon=1e-3)),
    "configuration without to_dict": (
        Plain(config={"heads": 2}),
        Plain(config={"heads": 4}),
    ),
}  # fmt: skip


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


def test_what_has_no_words_of_its_own_is_said_by_its_class() -> None:
    one, other = (Plain(thing=SimpleNamespace(at=object())) for _ in range(2))
    assert configuration(one) == configuration(other)


def test_the_digest_is_that_of_every_process() -> None:
    code = (
        "from tests.inspection.test_computation import Plain, configuration, gpt;"
        "print(configuration(Plain()), configuration(gpt()))"
    )
    here = f"{configuration(Plain())} {configuration(gpt())}"
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    assert out.stdout.strip() == here
