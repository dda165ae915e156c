"""Pretrained models of six families as our blocks: the same logits, and the way back."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

import hessblocks as hb
from hessblocks.simplify import LayerChange, Pass, one_pass
from tests.models.pretrained_families import CONFIGS, VOCABULARY, doubled, pretrained

families = pytest.mark.parametrize("name", CONFIGS)


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


@families
def test_the_logits_are_those_of_the_pretrained_model(name: str) -> None:
    model, tokens = pretrained(name), ids(3, 12)
    with doubled():
        expected = model(tokens).logits
    ours = hb.from_pretrained_blocks(model)
    assert (ours(tokens).logits - expected).abs().max() < 1e-10 * expected.abs().max()
    assert ours.config.depth == 3
    assert ours.dtype == torch.float64
    assert not ours.training
    single = hb.from_pretrained_blocks(model.float())
    expected = model(tokens).logits
    assert (single(tokens).logits - expected).abs().max() < 1e-5 * expected.abs().max()


@families
def test_padding_and_cached_generation_are_those_of_the_pretrained_model(name: str) -> None:
    model, tokens = pretrained(name), ids(2, 8)
    ours = hb.from_pretrained_blocks(model)
    mask = torch.ones_like(tokens)
    mask[1, :3] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 1}
    settings |= {"output_logits": True, "return_dict_in_generate": True, "eos_token_id": None}
    with doubled():
        expected = model.generate(tokens, **settings)
    found = ours.generate(tokens, **settings)
    assert torch.equal(found.sequences, expected.sequences)
    for one, other in zip(found.logits, expected.logits, strict=True):
        assert (one - other).abs().max() < 1e-9 * other.abs().max()


@families
def test_the_way_back_gives_the_same_weights_bit_by_bit(name: str, tmp_path) -> None:
    model = pretrained(name).float()
    model.save_pretrained(tmp_path / "theirs")
    ours = hb.from_pretrained_blocks(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    loaded, _ = hb.load(tmp_path / "ours")
    assert torch.equal(loaded(ids(1, 9)).logits, ours(ids(1, 9)).logits)
    back = hb.to_family(loaded)
    assert type(back) is type(model)
    state = back.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert torch.equal(back(ids(2, 9)).logits, model(ids(2, 9)).logits)


@pytest.mark.parametrize("name", ["llama", "qwen2, windows", "gpt2", "gpt_neox"])
def test_a_model_without_a_layer_goes_back_too(name: str) -> None:
    ours = hb.from_pretrained_blocks(pretrained(name))
    config = copy.deepcopy(ours.config)
    config.block = [block.to_dict() for block in ours.config.blocks][:2]
    config.depth = 2
    fewer = type(ours)(config).double().eval()
    kept = {key: value for key, value in ours.state_dict().items() if ".layers.2." not in key}
    fewer.load_state_dict(kept)
    back, tokens = hb.to_family(fewer), ids(1, 9)
    with doubled():
        assert torch.allclose(back(tokens).logits, fewer(tokens).logits, rtol=0, atol=1e-9)
    assert back.config.num_hidden_layers == 2


@pytest.mark.parametrize(
    ("name", "theirs", "own"),
    [
        ("llama", "model.layers.1.self_attn.o_proj", "model.layers.1.attention.projection"),
        ("qwen3", "model.layers.1.self_attn.q_norm", "model.layers.1.attention.query_norm"),
        ("gpt_neox", "gpt_neox.layers.1.attention.dense", "model.layers.1.attention.projection"),
    ],
)
def test_the_blocks_have_the_gradients_of_the_pretrained_model(
    name: str, theirs: str, own: str
) -> None:
    model, tokens = pretrained(name), ids(2, 6)
    found = []
    for one, module in ((model, theirs), (hb.from_pretrained_blocks(model), own)):
        with doubled():
            logits = one(tokens).logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        found.append(torch.autograd.grad(loss, one.get_parameter(f"{module}.weight"))[0])
    assert torch.allclose(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt_neox", "llama, narrow heads", "qwen3"])
def test_the_exact_last_block_of_the_blocks_is_that_of_autodiff(name: str) -> None:
    ours, batch = hb.from_pretrained_blocks(pretrained(name)), {"input_ids": ids(2, 5)}
    exact = hb.exact_last_block(ours, batch)
    problem, groups = hb.Problem(ours, batch), hb.parameter_groups(ours)
    for role in ("query", "key", "value", "projection"):
        # the closed form has another order of entries, and with biases a row more in the group
        found = exact.block(role, role, part="full").dense()
        dense = hb.Hessian(problem, groups[f"layers.2.attention.{role}"]).dense()
        assert found.trace() == pytest.approx(float(dense.trace()), rel=1e-8)
        assert found.norm() == pytest.approx(float(dense.norm()), rel=1e-8)


def test_heads_are_told_apart_in_layers_that_differ() -> None:
    block = hb.preset("pre-ln", width=8, heads=4, head_width=2)
    layers = [block, block.replace(heads=2), block.replace(heads=2, key_value_heads=1)]
    model = hb.build(layers, depth=3, vocab_size=9, context=8)
    groups = hb.parameter_groups(model, level="head")
    for layer, (heads, shared) in enumerate([(4, 4), (2, 2), (2, 1)]):
        for role, count in (("query", heads), ("key", shared), ("projection", heads)):
            named = [name for name in groups if name.startswith(f"layers.{layer}.attention.{role}")]
            assert len(named) == count
            assert {groups[name].size for name in named} == {16}


def test_the_given_model_stays_in_its_modes() -> None:
    given = pretrained("gpt2").train()
    given.transformer.h[0].eval()
    before = [module.training for module in given.modules()]
    hb.from_pretrained_blocks(given)
    assert [module.training for module in given.modules()] == before


@pytest.mark.bad_input
def test_what_cannot_become_blocks_is_refused_in_a_sentence() -> None:
    small = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
    small |= {"intermediate_size": 8}
    bert = BertLMHeadModel(BertConfig(**small, is_decoder=True))
    with pytest.raises(
        hb.ArgumentError,
        match="a bert cannot become blocks; expected one of "
        "llama, mistral, qwen2, qwen3, gpt2, gpt_neox",
    ):
        hb.from_pretrained_blocks(bert)
    scaled = LlamaConfig(
        **small, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    )
    with pytest.raises(hb.ArgumentError, match="rope_type='linear'"):
        hb.from_pretrained_blocks(LlamaForCausalLM(scaled))
    with pytest.raises(hb.ArgumentError, match="hidden_act='mish'"):
        hb.from_pretrained_blocks(LlamaForCausalLM(LlamaConfig(**small, hidden_act="mish")))
    crossed = GPT2Config(n_embd=12, n_layer=1, n_head=2, vocab_size=9, add_cross_attention=True)
    with pytest.raises(hb.ArgumentError, match="add_cross_attention"):
        hb.from_pretrained_blocks(GPT2LMHeadModel(crossed))
    with pytest.raises(hb.ArgumentError, match="weights are not those"):
        hb.from_pretrained_blocks(
            LlamaForSequenceClassification(LlamaConfig(**small, pad_token_id=0))
        )
    model = LlamaForCausalLM(LlamaConfig(**small))
    model.model.layers[0].mlp.act_fn = torch.nn.Tanh()
    with pytest.raises(hb.RunError, match="its logits differ"):
        hb.from_pretrained_blocks(model)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "gpt2"])
def test_equal_heads_and_widths_are_a_model_of_the_family(name: str, tmp_path) -> None:
    ours = hb.from_pretrained_blocks(pretrained(name)).float()
    text = Pass(ours, torch.randint(VOCABULARY, (20, 12)))
    heads = ours.config.blocks[0].resolved_key_value_heads
    gone = int(heads > 1 and name != "gpt2")  # whose heads fill its width
    changes = dict.fromkeys(range(ours.config.depth), LayerChange(units=4, groups=gone))
    made = one_pass(ours, text, changes)
    hb.to_family(made).save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.randint(VOCABULARY, (2, 9))
    assert torch.allclose(plain(tokens).logits, made(tokens).logits, rtol=0, atol=1e-5)
    assert plain.num_parameters() == made.num_parameters() < ours.num_parameters()


def test_what_a_family_cannot_say_is_refused_on_the_way_back() -> None:
    ours = hb.from_pretrained_blocks(pretrained("llama"))
    foreign = copy.deepcopy(ours)
    foreign.config.family["attn_implementation"] = "somebody/code"
    with pytest.raises(hb.ArgumentError, match="asks for code from elsewhere"):
        hb.to_family(foreign)
    with pytest.raises(hb.ArgumentError, match="made of blocks already"):
        hb.from_pretrained_blocks(ours)
    config = copy.deepcopy(ours.config)
    blocks = ours.config.blocks
    config.block = [block.to_dict() for block in (*blocks[:2], blocks[2].replace(sub_blocks="mlp"))]
    changed = type(ours)(config)
    with pytest.raises(
        hb.ArgumentError, match="of llama has one sub_blocks for all layers, and layer 2"
    ):
        hb.to_family(changed)
    with pytest.raises(hb.ArgumentError, match=r"expected a model that hb\.from_pretrained_blocks"):
        hb.to_family(hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=9, context=8))
