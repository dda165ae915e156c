"""The diagonal as a tensor: the same numbers as products with every sample, error bars, formats."""

import statistics

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import hessblocks as hb
from hessblocks.errors import ArgumentError
from tests.bill.test_bill import language, table


def llama(width: int = 64, *, tied: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=tied,
            initializer_range=0.1,
        )
    ).eval()  # fmt: skip


def text(rows: int = 12) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(64, (rows, 8), generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize("rows", [3, 8])
def test_the_diagonal_is_that_of_the_products_with_every_sample(rows: int) -> None:
    """Few rows are cut by tokens, and have several samples each."""
    model, problem = language(rows)
    changes = hb.change_each(model, hb.rounded(bits=2), hb.rounded(bits=4))
    full, kept = (hb.price(problem, changes, 10, form=f) for f in ("mixture", "diagonal"))
    for name in changes:
        assert kept[name].diagonal.value == pytest.approx(full[name].diagonal.value, rel=1e-9)
        assert kept[name].forecast.value == kept[name].diagonal.value
        assert kept[name].full is None
    names = [name for name in changes if "2 bits" in name]
    assert kept.sum(names).diagonal.value == pytest.approx(full.sum(names).diagonal.value, rel=1e-9)


def test_its_error_bar_covers_the_spread_over_seeds() -> None:
    """Text and weights are fixed, so signs of gradients are all that differs."""
    model, problem = table(rows=24)
    changes = hb.change_each(model, hb.rounded(bits=3))
    bills = [hb.price(problem, changes, 24, seed, form="diagonal") for seed in range(60)]
    for name in [*changes]:
        values = torch.tensor([bill[name].forecast.value for bill in bills])
        bars = torch.tensor([bill[name].forecast.standard_error for bill in bills])
        assert float(values.std()) < 1.2 * float(bars.mean())  # bars hold text and signs of Δ too
        exact = hb.price(problem, changes, 2000, 0, form="diagonal")[name].forecast.value
        assert float(values.mean()) == pytest.approx(exact, rel=0.15)


@pytest.mark.filterwarnings("ignore::hessblocks.curvature.PrecisionWarning")
@pytest.mark.parametrize("activations", [False, True])
def test_in_half_precision_squares_do_not_vanish(activations: bool) -> None:
    """Squares of its gradients lie below 6e-8, the smallest number of float16."""
    prices = []
    for dtype in (torch.float32, torch.float16):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)
        data = [(torch.randn(32, 16).to(dtype), torch.randint(4, (32,)))]
        problem = hb.Problem(model, data, loss="classification")
        if activations:
            changes = hb.activation_changes(model, bits=8)
        else:
            changes = hb.change_each(model, hb.rounded(bits=8))
        bill = hb.price(problem, changes, form="diagonal")
        prices.append([price.forecast.value for price in bill.values()])
    assert prices[1] == pytest.approx(prices[0], rel=0.1)


def test_what_is_not_rounding_needs_the_full_form() -> None:
    model, problem = language()
    with pytest.raises(ArgumentError, match="prices roundings alone"):
        hb.price(problem, hb.change_each(model, hb.pruned(share=0.1)), form="diagonal")


def test_formats_are_priced_by_it_and_find_the_importance_of_inputs() -> None:
    model, data = llama(), text()
    seen = []
    changes = hb.change_each(
        model,
        hb.in_format(
            hb.Format(
                "own",
                lambda shape: shape[0] * shape[1],
                lambda rows, importance: seen.append(importance) or rows.half(),
                lambda packed, shape: packed.float(),
            )
        ),
    )
    bill = hb.price(hb.Problem(model, data), changes, 8)
    (embedding,) = (p for p in bill.values() if "embed" in p.place)
    assert embedding.size == 64 * 64  # embedding and head are one weight, and one change
    inputs = []
    module = model.get_submodule("model.layers.1.mlp.down_proj")
    module.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    with torch.no_grad():
        model(**data)
    mean = torch.cat([x.flatten(0, -2) for x in inputs]).square().mean(0)
    weights = bill.changes["model.layers.1.mlp.down_proj.weight, own"].edit.importance
    assert torch.allclose(weights["model.layers.1.mlp.down_proj.weight"], mean, rtol=1e-4)
    assert "model.embed_tokens.weight" not in weights
    assert any(one is not None and len(one) == 128 for one in seen)


def test_siblings_get_one_format_and_others_their_own() -> None:
    changes = hb.change_each(llama(), hb.in_format("compressed-tensors:4"))
    places = {change.place.replace("model.layers.0.", "") for change in changes.values()}
    assert "self_attn.q_proj.weight, self_attn.k_proj.weight, self_attn.v_proj.weight" in places
    assert "mlp.gate_proj.weight, mlp.up_proj.weight" in places
    assert "self_attn.o_proj.weight" in places
    assert len(changes) == 2 * 4  # its runtime reads no embedding in integers


def test_a_format_that_fits_nothing_and_stored_columns_are_refused() -> None:
    pytest.importorskip("gguf")
    with pytest.raises(ArgumentError, match=r"gguf:Q4_K fits no weight; their shapes are \[\(16"):
        hb.change_each(llama(32), hb.in_format("gguf:Q4_K"))
    with pytest.raises(ArgumentError, match=r"'mlx:44'.*mlx:4"):
        hb.in_format("mlx:44")
    model = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=64))
    with pytest.raises(ArgumentError, match="stores its weights transposed"):
        hb.change_each(model, hb.in_format("mlx:4"))


def test_bytes_are_spent_on_all_tensors() -> None:
    model, data = llama(), text()
    formats = ["mlx:2", "mlx:3", "mlx:4", "mlx:8"]
    bill = hb.price(hb.Problem(model, data), hb.change_each(model, *map(hb.in_format, formats)), 8)
    rest = 4 * sum(p.numel() for p in model.parameters() if p.ndim == 1)
    least = rest + sum(p.bytes for p in bill.values() if p.how == "mlx:2")
    for most in (least, 1.3 * least, 2.0 * least):
        found = bill.allocate(bytes=most)
        own = hb.formats()
        stored = sum(own[p.how].bytes(model.get_parameter(p.place).shape) for p in found.choices)
        assert found.bytes == stored + rest <= most
        assert found.bits == 8 * found.bytes / sum(p.numel() for p in model.parameters())
    with pytest.raises(ArgumentError, match="take at least"):
        bill.allocate(bytes=least - 1)
    bits = 8 * 1.3 * least / sum(p.numel() for p in model.parameters())
    again = hb.quantise(model, data, formats, bits=bits, samples=8)
    assert again.names == bill.allocate(bytes=1.3 * least).names
    cheap = hb.quantise(model, data, formats, nats=again.total.forecast.value * 2, samples=8)
    assert cheap.bytes < again.bytes


def test_forecasts_of_formats_come_true() -> None:
    model, data, other = llama(), text(64), {"input_ids": torch.randint(64, (64, 8))}
    changes = hb.change_each(model, hb.in_format("mlx:4"), hb.in_format("nf4"))
    bill = hb.price(hb.Problem(model, data), changes, 64)
    ratios = sorted(row["ratio"] for row in bill.check(12, other).to_rows())
    assert ratios[2] > 0.7
    assert ratios[-3] < 1.4


def gptq(weight: torch.Tensor, moments: torch.Tensor, bits: int, group: int = 32) -> torch.Tensor:
    """Round columns in order, and feed errors back (Frantar et al. 2023, algorithm 1)."""
    left, levels = weight.double().clone(), 2**bits - 1
    damped = moments.double() + 0.01 * moments.diagonal().mean() * torch.eye(len(moments))
    inverse = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    for column in range(weight.shape[1]):
        if column % group == 0:
            low, high = left[:, column : column + group].aminmax(dim=1)
            scale = (high.clamp_min(0) - low.clamp_max(0)).clamp_min(1e-9) / levels
            zero = (-low.clamp_max(0) / scale).round()
        old = left[:, column].clone()
        new = ((old / scale + zero).round().clamp(0, levels) - zero) * scale
        steps = (old - new)[:, None] * inverse[column, column:] / inverse[column, column]
        left[:, column:] -= steps  # the column itself becomes `new`
    return left.to(weight)


def inputs_of(model: nn.Module, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Second moments of the inputs of the linear modules in layers."""
    found: dict[str, torch.Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and "layers" in name:

            def note(_: nn.Module, inputs: tuple[torch.Tensor, ...], name: str = name) -> None:
                rows = inputs[0].flatten(0, -2)
                found[f"{name}.weight"] = rows.T @ rows / len(rows)

            handles.append(module.register_forward_pre_hook(note))
    with torch.no_grad():
        model(**data)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("bits", [3, 4])
def test_rounding_with_error_feedback_is_priced_by_moments_and_not_by_the_diagonal(
    bits: int,
) -> None:
    model = llama()
    fitted, priced, measured = (
        {"input_ids": torch.randint(64, (192, 16), generator=torch.Generator().manual_seed(n))}
        for n in range(3)
    )
    moments = inputs_of(model, fitted)
    changes = {n: {n: gptq(model.get_parameter(n).detach(), m, bits)} for n, m in moments.items()}
    assert len(changes) == 14
    bill = hb.price(hb.Problem(model, priced), changes, 192, form="moments")
    ratios = sorted(row["ratio"] for row in bill.check([*changes], measured).to_rows())
    assert sum(0.8 <= ratio <= 1.25 for ratio in ratios) >= 0.7 * len(ratios), ratios
    assert 0.9 <= statistics.median(ratios) <= 1.1, ratios


def test_second_moments_weigh_tokens_by_what_they_cost() -> None:
    """One linear layer: ½ Σ_o s_o Δ_o A Δ_oᵀ by hand, with the gradients of each token."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4, bias=False))
    rows, targets = torch.randn(30, 6), torch.randint(4, (30,))
    rows[:3] *= 5
    problem = hb.Problem(model, (rows, targets), "classification")
    delta = 0.01 * torch.randn(4, 1) @ torch.randn(1, 6)  # errors that pull together
    changes = {"step": {"0.weight": model[0].weight.detach() + delta}}
    found = hb.price(problem, changes, 3000, form="moments")["step"].forecast.value
    p = model(rows).softmax(1).detach()
    spread = p * (1 - p)  # the diagonal of each token's curvature, its weight their sum
    moments = rows.T @ (spread.sum(1, keepdim=True) * rows)
    squares = spread.T @ rows.square() / 30
    weights = squares.sum(1) / moments.diagonal().sum()
    expected = 0.5 * float((weights * ((delta @ moments) * delta).sum(1)).sum())
    assert found == pytest.approx(expected, rel=0.05)
    plain = 0.5 * float((squares * delta.square()).sum())
    assert not 0.8 < found / plain < 1.25
