"""Removals of every kind on tiny models of all families: what they save, cost and leave equal."""

import copy
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

import hessblocks as hb
from hessblocks.blocks import (
    ALiBiPosition,
    Attention,
    Branch,
    Dense,
    Identity,
    RMSNorm,
    Shaping,
    Shared,
    Sink,
)
from hessblocks.simplify import (
    Candidate,
    Place,
    candidates,
    edited,
    measure_removals,
    table,
)
from hessblocks.simplify.passes import Held, Pass, outputs_of
from tests.breadth import everyday
from tests.models.pretrained_families import CONFIGS, VOCABULARY, pretrained

# three seconds each: one with rotary positions, one with learned ones
families = pytest.mark.parametrize("name", everyday(CONFIGS, "llama", "gpt2"))


def ids(count: int, tokens: int = 12, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (count, tokens), generator=generator)


def model_of(name: str) -> Any:
    return hb.from_pretrained_blocks(pretrained(name))


def entries(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def check_costs(model: Any) -> set[str]:
    """Hold each candidate's cost against the whole changed model; give the kinds that there are."""
    text, held_out = ids(10), ids(5, seed=1)
    held, fitted = Held(model, held_out), Pass(model, text)
    before = model(held_out).logits[:, :-1].log_softmax(-1)
    seen = set()
    for one in candidates(model, fitted):
        changed, start = edited(model, one), one.layer
        after = changed(held_out).logits[:, :-1].log_softmax(-1)
        divergence = (before.exp() * (before - after)).sum(-1).mean(-1)
        cost = held.cost([*one.modules, *model.model.layers[start + 1 :]], start)
        assert cost.kl.value == pytest.approx(float(divergence.mean()), rel=1e-4, abs=1e-7)
        assert cost.kl.method == "measured"
        error = float(divergence.std()) / len(held_out) ** 0.5
        assert cost.kl.standard_error == pytest.approx(error, rel=1e-3, abs=1e-7)
        labels = held_out[:, 1:, None]
        rise = (before.gather(-1, labels) - after.gather(-1, labels)).mean()
        assert cost.loss.value == pytest.approx(float(rise), rel=1e-3, abs=1e-6)
        assert one.parameters == entries(model) - entries(changed)
        seen.add(one.kind)
    return seen


@pytest.mark.parametrize("name", everyday(CONFIGS, "llama"))
def test_each_removal_costs_what_the_whole_changed_model_says(name: str) -> None:
    seen = check_costs(model_of(name))
    assert {"layer", "attention", "linear map", "mlp units"} <= seen
    assert "heads" in seen or model_of(name).config.blocks[0].resolved_key_value_heads == 1


NORMED = Branch(norm=RMSNorm(), trainable_skip=True, gain=0.5)
SILENT = Branch(norm=RMSNorm(), skip=0.0, gain=0.5)
OWN: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "ALiBi": ("pre-ln", {"position": ALiBiPosition()}, {"heads"}),
    "sinks": ("pre-ln", {"attention": Attention(sink=Sink(score=0.3))}, set()),
    "sinks and a gate": ("pre-ln", {"attention": Attention(sink=Sink(), gate=Dense())}, {"heads"}),
    "branch norms": ("pre-ln", {"attention_branch": NORMED, "mlp_branch": NORMED}, set()),
    "linear scores": ("pre-ln", {"attention": Attention(scores="linear")}, set()),
    "parallel, its skip trained": (
        "parallel",
        {"attention_branch": Branch(trainable_skip=True), "mlp_branch": SILENT},
        set(),
    ),
    "post": ("post-ln", {}, set()),
    "gains that begin at zero": (
        "pre-ln",
        {"mlp_branch": Branch(gain=0.0, trainable=True)},
        set(),
    ),
    "no values": (
        "pre-ln",
        {"attention": Attention(value=Identity(), projection=Identity(), shaping=Shaping())},
        {"heads", "linear map"},
    ),
}
"""Preset, its changed fields, and kinds that it has not."""


@pytest.mark.parametrize("name", everyday(OWN, "sinks", "parallel, its skip trained", "no values"))
def test_blocks_of_our_own_are_taken_apart_too(name: str) -> None:
    preset, fields, missing = OWN[name]
    block = hb.preset(preset, width=24, heads=6, mlp_width=20, **fields)
    torch.manual_seed(0)
    model = hb.build(block, depth=3, vocab_size=VOCABULARY, context=16).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    seen = check_costs(model)
    assert {"layer", "mlp units"} <= seen
    assert not missing & seen


@pytest.mark.parametrize("name", everyday(CONFIGS, "gpt_neox"))
def test_what_is_saved_is_what_the_cache_and_the_operations_lose(name: str) -> None:
    model, text = model_of(name), ids(10)
    whole = model(text, use_cache=True).past_key_values
    held = sum(one.keys.numel() + one.values.numel() for one in whole.layers if one.is_initialized)
    for one in candidates(model, Pass(model, text)):
        changed = edited(model, one)
        after = changed(text, use_cache=True).past_key_values
        left = sum(
            own.keys.numel() + own.values.numel() for own in after.layers if own.is_initialized
        )
        if not any(block.attention.window for block in model.config.blocks):
            assert one.cache * text.numel() == held - left
        assert one.operations >= 0


@pytest.mark.slow  # up to nine seconds each, and the preparation of all is one
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "qwen3"])
def test_changed_models_are_saved_generate_and_train(name: str, tmp_path) -> None:
    model, text = model_of(name).float(), ids(10)
    for number, one in enumerate(candidates(model, Pass(model, text), layers=[1])):
        changed, tokens = edited(model, one), ids(1, 6)
        changed.save_pretrained(tmp_path / str(number))
        loaded, _ = hb.load(tmp_path / str(number))
        assert torch.equal(loaded(tokens).logits, changed(tokens).logits)
        settings = {
            "max_new_tokens": 6,
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 1,
        }
        cached = changed.generate(tokens, **settings)
        assert torch.equal(cached, changed.generate(tokens, use_cache=False, **settings))
        problem = hb.Problem(changed, {"input_ids": tokens})
        groups = hb.parameter_groups(changed)
        some = [name for name in groups if name.startswith("layers.0")][:1]
        assert torch.isfinite(
            hb.OuterProduct(problem, groups[some[0]]) @ torch.ones(groups[some[0]].size)
        ).all()
    arguments = TrainingArguments(
        tmp_path / "run",
        max_steps=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    rows = [{"input_ids": row, "labels": row} for row in text]
    before = copy.deepcopy(changed.state_dict())
    Trainer(model=changed, args=arguments, train_dataset=rows).train()
    assert any(not torch.equal(value, before[key]) for key, value in changed.state_dict().items())


@pytest.mark.parametrize("kind", ["attention", "linear map"])
def test_a_cache_begins_at_the_first_layer_with_attention(kind: str) -> None:
    model, text = model_of("llama"), ids(10)
    (one,) = candidates(model, Pass(model, text), [kind], [0])
    changed = edited(model, one)
    first = changed(text[:, :7], use_cache=True)
    rest = changed(text[:, 7:], past_key_values=first.past_key_values, use_cache=True).logits
    assert torch.allclose(rest, changed(text).logits[:, 7:], rtol=0, atol=1e-9)


def test_parts_that_do_nothing_go_for_nothing() -> None:
    """Heads whose projection is zero, and units that give zero."""
    model, text, held_out = model_of("llama"), ids(10), ids(5, seed=1)
    layer = model.model.layers[1]
    with torch.no_grad():
        layer.attention.projection.weight[:, 12:] = 0  # the second group of three heads of four
        layer.mlp.output.weight[:, 3:8] = 0
    held, fitted = Held(model, held_out), Pass(model, text)
    for kind in ("heads", "mlp units"):
        (one,) = candidates(model, fitted, [kind], [1])
        cost = held.cost([*one.modules, *model.model.layers[2:]], 1)
        assert abs(cost.kl.value) < 1e-10, kind
        assert one.parameters > 0


def test_a_linear_map_is_the_best_one_and_mixes_no_tokens() -> None:
    """Attention whose scores are all on its own token is a linear map already: nothing is lost."""
    block = hb.preset("pre-ln", width=24, heads=6, attention=Attention(window=1))
    torch.manual_seed(0)
    model = hb.build(block, depth=3, vocab_size=VOCABULARY, context=16).double().eval()
    text = ids(40)
    (one,) = candidates(model, Pass(model, text), ["linear map"], [1])
    made = edited(model, one)
    assert torch.allclose(made(text).logits, model(text).logits, rtol=0, atol=1e-3)
    assert one.cache == 2 * 24
    assert not made.config.blocks[1].attends
    one, other = ids(1), ids(1, seed=5)
    other[0, 3] = one[0, 3]
    layer, context = made.model.layers[1], Pass(made, one).context
    x = [made.model.token_embedding(tokens) for tokens in (one, other)]
    states = [layer.attention(layer.attention_norm(y), context)[0, 3] for y in x]
    assert torch.equal(*states)


@pytest.mark.bad_input
def test_a_linear_map_reads_no_other_field() -> None:
    with pytest.raises(hb.ArgumentError, match="scores='none' has a dense projection and reads no"):
        hb.preset("pre-ln", width=24, heads=6, attention=Attention(scores="none", window=3))


def test_a_refit_costs_less_than_none() -> None:
    model, text, held_out = model_of("gpt2"), ids(40), ids(8, seed=1)
    held, fitted = Held(model, held_out), Pass(model, text)
    for one in candidates(model, fitted, ["mlp units"], [1, 2]):
        rest = list(model.model.layers[one.layer + 1 :])
        refitted = held.cost([*one.modules, *rest], one.layer)
        plain, own = copy.deepcopy(one.module), model.model.layers[one.layer].mlp
        kept = (own.input.weight[None] == plain.mlp.input.weight[:, None]).all(-1).any(0)
        plain.mlp.output.weight.data = own.output.weight[:, kept]
        plain.mlp.output.bias.data = own.output.bias
        assert refitted.kl.value < held.cost([plain, *rest], one.layer).kl.value


def test_the_first_layer_stays_where_others_use_its_weights() -> None:
    sizes = {"width": 24, "heads": 6}
    shares = hb.preset("pre-ln", **sizes, attention=Attention(query=Shared()))
    blocks = [hb.preset("pre-ln", **sizes), shares, shares]
    model = hb.build(blocks, depth=3, vocab_size=VOCABULARY, context=16).double().eval()
    layers = {one.layer for one in candidates(model, Pass(model, ids(10)))}
    assert layers == {1, 2}


def test_what_rules_of_blocks_refuse_is_not_a_candidate_and_other_errors_are_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of("llama")

    def unfit(at: Place, *_: object) -> Candidate:
        return at.candidate("unfit", at.block.replace(heads=5, head_width=None))

    def wrong(at: Place, *_: object) -> Candidate:
        raise hb.ArgumentError("weights of another shape")

    text = Pass(model, ids(10))
    monkeypatch.setattr(table, "changed", unfit)
    assert list(candidates(model, text, ["layer"])) == []
    monkeypatch.setattr(table, "changed", wrong)
    with pytest.raises(hb.ArgumentError, match="weights of another shape"):
        list(candidates(model, text, ["layer"]))


def test_an_interrupted_pass_leaves_no_hook_behind() -> None:
    model = model_of("llama")
    text = Pass(model, ids(10))
    layer = model.model.layers[1]

    def torn(*_: object) -> None:
        raise KeyboardInterrupt

    stop = layer.mlp.register_forward_hook(torn)
    with pytest.raises(KeyboardInterrupt):
        outputs_of(layer, ["mlp.output"], text.states[1], text.context)
    stop.remove()
    hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()]
    assert not any(one or other for one, other in hooks)


@pytest.mark.bad_input
def test_what_cannot_be_measured_is_refused_in_a_sentence() -> None:
    model, text, held_out = model_of("llama"), ids(10), ids(5)
    for one, other, said in (
        (text.flatten(), held_out, r"text: expected token ids .* got \(120,\)"),
        (text, held_out[:, :1], r"held_out: expected token ids .* got \(5, 1\)"),
        (text, {"input_ids": held_out}, "held_out: expected token ids .* got dict"),
    ):
        with pytest.raises(hb.ArgumentError, match=said):
            measure_removals(model, one, other)
    with pytest.raises(hb.ArgumentError, match="got two of one"):
        edited(model, *candidates(model, Pass(model, text), ["attention", "layer"], [1]))
    with pytest.raises(
        hb.ArgumentError, match="hb.from_pretrained_blocks makes one".replace(".", r"\.")
    ):
        measure_removals(pretrained("llama"), text, held_out)
    with pytest.raises(hb.ArgumentError, match="12 tokens are too few"):
        measure_removals(model, text[:1], held_out)
    with pytest.raises(hb.ArgumentError, match="3 sequences are too few"):
        measure_removals(model, text, held_out[:3])
    with pytest.raises(hb.ArgumentError, match="kind: 'layers' is unknown"):
        measure_removals(model, text, held_out, kinds=["layers"])
    with pytest.raises(hb.ArgumentError, match="expected several names, got one; write"):
        measure_removals(model, text, held_out, kinds="layer")
    sizes = {"depth": 2, "width": 8, "heads": 2, "vocab_size": VOCABULARY, "context": 16}
    with pytest.raises(hb.ArgumentError, match="layer 0 depends on its index and cannot"):
        measure_removals(hb.build("sas", **sizes), text, held_out)
    for carried in (
        {"embedding_skip": Branch()},
        {"attention": Attention(value_residual=Branch())},
    ):
        with pytest.raises(hb.ArgumentError, match=r"came before its input \(embedding_skip"):
            measure_removals(hb.build("pre-ln", **sizes, **carried), text, held_out)
    with pytest.raises(hb.ArgumentError, match="only query, key and value can be"):
        hb.preset("pre-ln", width=8, heads=2, mlp_width=8).replace(
            mlp=hb.BlockConfig().mlp.replace(output=hb.blocks.Shared())
        )
    shared = hb.BlockConfig().attention.replace(query=hb.blocks.Shared())
    with pytest.raises(hb.ArgumentError, match="the first layer has no weight of shape"):
        hb.build("pre-ln", **sizes, attention=shared)
    assert Dense() != hb.blocks.Shared()
    assert next(iter(table.KINDS)) == "layer"
    assert not any("," in kind for kind in table.KINDS)  # which stands between them in --kinds
