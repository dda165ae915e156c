"""How a model is run changes no number: kernels, masks, recomputation, compilation, precision,
DDP."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

import hessblocks as hb
from hessblocks.blocks.attention import Attention
from hessblocks.blocks.gains import Shaping
from tests.models.cases import ids, perturbed, presets

PADDED = torch.tensor([[1] * 8, [0, 0] + [1] * 6, [1] * 5 + [0] * 3])


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@presets
@pytest.mark.parametrize("mask", [None, PADDED], ids=["full", "padded"])
def test_eager_and_fused_attention_agree(name: str, mask: Tensor | None) -> None:
    model, tokens = perturbed(name), ids(3, 8)
    real = slice(None) if mask is None else mask.bool()
    fused = model(tokens, attention_mask=mask).logits
    model.set_attn_implementation("eager")
    assert torch.allclose(model(tokens, attention_mask=mask).logits[real], fused[real], atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch and transformers
@pytest.mark.slow
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch 2.13's own flex attention reads memory that nothing wrote, with AVX2",
)
@pytest.mark.parametrize("name", ["pre-ln", "sas-p", "modern"])
def test_flex_attention_agrees(name: str) -> None:
    model, tokens = perturbed(name, width=64), ids(3, 8)
    with torch.no_grad():
        fused = model(tokens, attention_mask=PADDED).logits
        model.set_attn_implementation("flex_attention")
        flex = model(tokens, attention_mask=PADDED).logits
        assert torch.allclose(flex[PADDED.bool()], fused[PADDED.bool()], atol=1e-4)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # inside torch
@pytest.mark.parametrize(
    ("name", "task"),
    [
        pytest.param("sas-p", "causal-lm", marks=pytest.mark.slow),
        pytest.param("pre-ln", "causal-lm", marks=pytest.mark.slow),
        pytest.param("sas-p", "masked-lm", marks=pytest.mark.slow),
        pytest.param("pre-ln", "masked-lm"),
    ],
)
def test_an_exported_program_takes_any_number_of_tokens(name: str, task: str) -> None:
    model, tokens = perturbed(name, task=task, depth=1), ids(2, 6)
    given: dict[str, Any] = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    free = {0: torch.export.Dim("rows", max=8), 1: torch.export.Dim("tokens", min=2, max=24)}
    sizes: dict[str, Any] = dict.fromkeys(given, free)
    if task == "causal-lm":
        given, sizes = given | {"use_cache": False}, sizes | {"use_cache": None}
    program = torch.export.export(model, (), given, dynamic_shapes=sizes, strict=False).module()
    for length in (2, 16, 17, 24):
        batch = given | {
            "input_ids": ids(3, length),
            "attention_mask": torch.ones(3, length).long(),
        }
        batch["attention_mask"][1, 0] = 0
        real = batch["attention_mask"].bool()
        expected = model(**batch).logits
        assert torch.allclose(program(**batch).logits[real], expected[real], atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # inside torch
@pytest.mark.filterwarnings(
    "ignore:# ONNX model has different number of inputs"
)  # a switch is none
@pytest.mark.slow
@pytest.mark.parametrize("name", ["sas-p", "pre-ln"])
def test_an_onnx_file_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    """Any number of rows and tokens, worked out by onnx's own reference."""
    model, tokens = perturbed(name, depth=1), ids(2, 6)
    free = {0: torch.export.Dim("rows", max=8), 1: torch.export.Dim("tokens", min=2, max=24)}
    given = {"input_ids": tokens, "use_cache": False}
    sizes = {"input_ids": free, "use_cache": None}
    file = tmp_path / "model.onnx"
    torch.onnx.export(
        model, (), file, kwargs=given, dynamic_shapes=sizes, dynamo=True, verbose=False
    )
    program = ReferenceEvaluator(str(file))
    for length in (2, 17, 24):
        batch = ids(3, length)
        (logits, *_) = program.run(None, {"input_ids": batch.numpy()})
        expected = model(batch).logits.detach().numpy()
        assert np.allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["sas", "sas-p", "skipless", "pre-ln"])
def test_a_mask_of_the_users_own_reaches_the_centre_too(name: str, implementation: str) -> None:
    """Two sequences packed into one row, kept apart by a mask: as if each stood alone."""
    model, first, second = perturbed(name), ids(1, 5), ids(1, 4)
    model.set_attn_implementation(implementation)
    apart = torch.zeros(1, 1, 9, 9, dtype=torch.bool)
    apart[..., :5, :5], apart[..., 5:, 5:] = torch.ones(5, 5).tril(), torch.ones(4, 4).tril()
    packed = torch.cat([first, second], dim=1)
    places = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])
    expected = torch.cat([model(first).logits, model(second).logits], dim=1)
    by_mask = model(packed, attention_mask=apart, position_ids=places).logits
    by_places = model(packed, position_ids=places).logits
    assert torch.allclose(by_mask, expected, atol=1e-5)
    assert torch.allclose(by_places, expected, atol=1e-5)


def test_flash_attention_refuses_packed_sequences() -> None:
    model, places = perturbed("sas"), torch.tensor([[0, 1, 2, 0, 1]])
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(hb.ArgumentError, match="position_ids: flash attention would mix"):
        model(ids(1, 5), position_ids=places)


def test_layers_that_are_computed_twice_refuse_what_a_cache_holds() -> None:
    model, tokens = perturbed("sas"), ids(2, 6)
    cache = model(tokens, use_cache=True).past_key_values
    model.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the name that 5.17 and 5.23 both have
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with pytest.raises(
        hb.ArgumentError, match="past_key_values: layers under gradient checkpointing"
    ):
        model(tokens, past_key_values=cache)


@presets
def test_layers_that_are_computed_twice_give_the_same_gradients(name: str) -> None:
    model, tokens = perturbed(name).train(), ids(2, 9)
    model(tokens, labels=tokens).loss.backward()
    expected = gradients(model)
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the name that 5.17 and 5.23 both have
        model.gradient_checkpointing_enable()
    assert all(layer.gradient_checkpointing for layer in model.model.layers)
    model(tokens, labels=tokens).loss.backward()
    again = gradients(model)
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[n], expected[n]) for n in expected)
    with pytest.warns(UserWarning, match="use_cache is ignored"):
        assert model(tokens, use_cache=True).past_key_values is None


ONE_GRAPH = ("pre-ln",)
"""Traced every day, beside padded sas-p; each graph takes two seconds."""


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        *(
            pytest.param(name, None, marks=[] if name in ONE_GRAPH else [pytest.mark.slow])
            for name in hb.PRESETS
        ),
        pytest.param("sas-p", PADDED, marks=pytest.mark.slow),
    ],
)
def test_a_model_is_one_graph(name: str, mask: Tensor | None) -> None:
    """No graph break: `fullgraph` raises at the first."""
    torch.compiler.reset()
    model, tokens = perturbed(name, depth=1), ids(3, 8)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    expected = model(tokens, attention_mask=mask, labels=tokens)
    got = compiled(tokens, attention_mask=mask, labels=tokens)
    assert torch.allclose(got.logits, expected.logits, atol=1e-5)
    got.loss.backward()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pre-ln", "sas-p"])
def test_compiled_code_gives_the_same_loss_and_gradients(name: str) -> None:
    torch.compiler.reset()
    model, tokens = perturbed(name), ids(3, 8)
    compiled = torch.compile(model, fullgraph=True)
    for run in (model, compiled):
        model.zero_grad()
        loss = run(tokens, attention_mask=PADDED, labels=tokens).loss
        loss.backward()
        if run is model:
            expected, gradient = loss.item(), gradients(model)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    again = gradients(model)
    assert all(torch.allclose(again[n], gradient[n], atol=1e-4) for n in gradient)


@presets
def test_half_precision_stays_near(name: str) -> None:
    model, tokens = hb.build(name, depth=2, width=32, heads=4, vocab_size=29, context=24), ids(2, 9)
    single = model(tokens, labels=tokens)
    half = model.bfloat16()(tokens, labels=tokens)
    assert half.logits.dtype == torch.bfloat16
    assert half.loss.dtype == torch.float32
    assert half.loss.item() == pytest.approx(single.loss.item(), rel=0.02)
    half.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@presets
def test_automatic_mixed_precision_stays_near(name: str) -> None:
    model, tokens = hb.build(name, depth=2, width=32, heads=4, vocab_size=29, context=24), ids(2, 9)
    single = model(tokens, labels=tokens).loss.item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(tokens, labels=tokens).loss
    mixed.backward()
    assert mixed.item() == pytest.approx(single, rel=0.02)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@presets
@pytest.mark.skipif(os.name == "nt", reason="gloo over a file")
def test_data_parallel_training_finds_every_parameter_used(name: str, process_group: None) -> None:
    model, tokens = perturbed(name), ids(2, 9)
    expected = model(tokens).logits
    parallel = DistributedDataParallel(model)
    assert torch.equal(parallel(tokens).logits, expected)
    for _ in range(2):  # an unused parameter would fail the second forward pass
        parallel(tokens, labels=tokens).loss.backward()
    assert gradients(model).keys() == dict(model.named_parameters()).keys()


def test_linear_scores_refuse_kernels_for_softmax() -> None:
    fields: dict[str, Any] = {
        "attention": Attention(scores="linear", shaping=Shaping(centred=False))
    }
    model = perturbed("pre-ln", **fields)
    tokens = ids(3, 8)
    fused = model(tokens, attention_mask=PADDED).logits
    model.set_attn_implementation("eager")
    eager = model(tokens, attention_mask=PADDED).logits
    assert torch.allclose(fused[PADDED.bool()], eager[PADDED.bool()], atol=1e-5)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(hb.ArgumentError, match="attn_implementation"):
        model(tokens, attention_mask=PADDED)
