"""Recipes for caches: their mean bits, and options that runtimes take."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, QuantizedCache

import hessblocks as hb
from hessblocks.inspection.caches import cache_sentences, head_map, recipes, runtime_words


def test_a_recipe_counts_keys_and_values_by_their_entries() -> None:
    sizes = {"keys": 192, "values": 128}  # as in DeepSeek V3
    costs = {"keys 4": 1.0, "keys 2": 9.0, "values 4": 1.0, "values 2": 3.0}

    def total(names: Any) -> Any:
        entries = {name: sizes[name.split()[0]] for name in names}
        bits = sum(int(name.split()[1]) * size for name, size in entries.items())
        cost = SimpleNamespace(value=sum(costs[name] for name in names))
        return SimpleNamespace(bits=bits / sum(entries.values()), forecast=cost)

    sets = {f"all, {kind}, {bits} bits per token": [f"{kind} {bits}"]
            for kind in sizes for bits in (2, 4)}  # fmt: skip
    bill: Any = SimpleNamespace(sum=total)
    chosen = recipes(bill, sets, (2, 3, 4))
    assert list(chosen.values()) == [
        ("keys 2", "values 2"), ("keys 2", "values 4"), ("keys 4", "values 4"),
    ]  # fmt: skip


def test_a_share_within_its_errors_is_not_told() -> None:
    costs = {"token": 0.53, "token, first token exact": 0.55, "channel": 0.06}

    def told(error: float, exact: float = 0.55) -> str:
        rows = {
            f"all, {kind}, 3 bits per {grid}": {"measured": cost, "measured_error": error}
            for kind in ("keys", "values")
            for grid, cost in {**costs, "token, first token exact": exact}.items()
        }
        return next(cache_sentences(rows, (3,), "measured"))

    assert told(0.04) == (
        "At 3 bits keys cost 0.06 nats (measured) with a scale per channel and 8.8 times as much "
        "with one per token; the first token is no clear part of their cost per token."
    )
    assert "as much, within errors, with one per token" in told(0.4)
    assert "carries 32%" in told(0.04, exact=0.36)
    assert "no clear part" in told(0.08, exact=0.36)  # 1.5 joint errors


def test_a_head_stands_at_its_own_layer() -> None:
    """Layers of linear attention have no cache, and a layer may have fewer heads."""
    places = {"model.layers.1.self_attn": (0,), "model.layers.3.self_attn": (0, 1)}
    prices = {
        f"{module} values head {head}": SimpleNamespace(
            how="values, 3 bits per token",
            place=f"{module} values head {head}",
            forecast=SimpleNamespace(value=float(module[13]) + head / 10),
        )
        for module, heads in places.items()
        for head in heads
    }
    bill: Any = prices
    assert head_map(bill, 3) == {
        "values per token, head 0": [None, 1.0, None, 3.0],
        "values per token, head 1": [None, None, None, 3.1],
    }


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("keys", ["token", "channel"])
def test_transformers_takes_the_options_that_a_recipe_names(bits: int, keys: str) -> None:
    pytest.importorskip("hqq" if bits == 8 else "optimum.quanto")
    recipe = f"recipe: keys, {bits} bits per {keys}; values, {bits} bits per token"
    words = [word for word in runtime_words(recipe) if word.startswith("transformers ")]
    if (bits, keys) == (8, "channel"):
        assert words == []
        return
    call = words[0].removeprefix("transformers ").partition("), ")[0] + ")"
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=11, hidden_size=128, num_hidden_layers=1,
                         num_attention_heads=2, head_dim=64)  # fmt: skip
    model, ids = LlamaForCausalLM(config).eval(), torch.randint(11, (1, 64))
    cache: Any = eval(call, {"QuantizedCache": QuantizedCache, "config": config})
    with torch.no_grad():
        model(ids, past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)  # reads what was stored
    layer = cache.layers[0]
    x = torch.randn(1, 2, 64, 64)
    change: Any = next(iter(hb.cache_changes(model, values=bits).values()))
    stored = layer._dequantize(layer._quantize(x, axis=layer.axis_value))
    distance = (stored - x).norm() / (change.grid.new(x) - x).norm()
    assert distance == pytest.approx(1, abs=1e-4 if bits < 8 else 0.1)
