"""The sizes that other tools look for stand in the configuration, and say what the block says."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

import hessblocks as hb
from hessblocks.models.configuration import HessblocksConfig
from tests.models.cases import SIZES

STANDARD = {
    "vocab_size": 29,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 24,
}


@pytest.fixture
def config() -> HessblocksConfig:
    found = hb.build("pre-ln", key_value_heads=2, mlp_width=40, **SIZES).config
    assert isinstance(found, HessblocksConfig)
    return found


def test_standard_sizes_are_read_written_and_read_again(
    config: HessblocksConfig, tmp_path: Path
) -> None:
    assert {name: getattr(config, name) for name in STANDARD} == STANDARD
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert {name: written[name] for name in STANDARD} == STANDARD
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in STANDARD} == STANDARD
    assert loaded.block == config.block


@pytest.mark.parametrize("name", sorted(set(STANDARD) - {"vocab_size"}))
def test_a_file_whose_sizes_contradict_each_other_is_refused(
    config: HessblocksConfig, tmp_path: Path, name: str
) -> None:
    config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: 3}))
    with pytest.raises(hb.ArgumentError, match=rf"^{name}: expected {STANDARD[name]}, .* got 3; "):
        AutoConfig.from_pretrained(tmp_path)


GIVEN: dict[str, tuple[dict[str, Any], str]] = {
    "a default that is given counts": (
        {"depth": 4, "num_hidden_layers": 6},
        "num_hidden_layers: expected 4, the same as depth, got 6; give one of them",
    ),
    "context": (
        {"context": 8, "max_position_embeddings": 9},
        "max_position_embeddings: expected 8, the same as context, got 9; give one of them",
    ),
    "a size of the block": (
        {"hidden_size": 64},
        "hidden_size: expected 256, as the block has, got 64; build another with hessblocks.build",
    ),
}


@pytest.mark.parametrize(("given", "words"), GIVEN.values(), ids=GIVEN)
def test_a_size_that_is_given_twice_must_be_one(given: dict[str, Any], words: str) -> None:
    with pytest.raises(hb.ArgumentError) as caught:
        HessblocksConfig(**given)
    assert str(caught.value).startswith(words)


def test_sizes_that_agree_or_stand_alone_are_taken() -> None:
    assert HessblocksConfig(num_hidden_layers=6).depth == 6
    assert HessblocksConfig(depth=6, num_hidden_layers=6).depth == 6
    assert HessblocksConfig(hidden_size=256, intermediate_size=1024).hidden_size == 256


def test_a_size_of_the_block_is_not_set_beside_it(config: HessblocksConfig) -> None:
    with pytest.raises(hb.ArgumentError, match="head_dim: expected 4, as the block has, got 8"):
        config.head_dim = 8
    config.num_hidden_layers = 3
    assert config.depth == 3


def test_configurations_are_copied(config: HessblocksConfig) -> None:
    for again in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert again == config
