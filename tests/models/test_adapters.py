"""Low-rank adapters, as LoRA (Hu et al. 2022) adds them and peft puts them on a model."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import hessblocks as hb
from tests.models.cases import ids, perturbed

pytestmark = [
    pytest.mark.filterwarnings("ignore::hessblocks.curvature.UnknownRoleWarning"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated"),  # inside peft
]


def adapted(model: PreTrainedModel) -> PeftModel:
    """The model, frozen, with an adapter on every plain matrix of its layers."""
    return get_peft_model(model, LoraConfig(r=2, lora_alpha=2, target_modules="all-linear"))


@pytest.mark.parametrize(
    ("name", "matrices"),
    [("sas-p", 8), ("pre-ln", 12)],
)
def test_adapters_train_alone_merge_and_are_saved(tmp_path: Path, name: str, matrices: int) -> None:
    model, tokens = perturbed(name), ids(2, 8)
    model = adapted(model)
    with model.disable_adapter():
        before = model(tokens).logits
    assert torch.equal(model(tokens).logits, before)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(trained) == 2 * matrices
    optimiser = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(20):
        losses.append(loss := model(tokens, labels=tokens).loss)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    assert losses[-1] < losses[0] - 0.1
    now = dict(model.named_parameters())
    assert all(torch.equal(value, now[name]) for name, value in frozen.items())
    hessian = hb.Hessian(hb.Problem(model, {"input_ids": tokens}, loss="causal-lm"))
    assert hessian.shape[0] == sum(map(Tensor.numel, trained))
    after = model(tokens).logits
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(tokens).logits, after, atol=1e-5, rtol=1e-5)
    merged.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(tokens).logits, merged(tokens).logits)


def test_a_reparametrised_matrix_is_refused() -> None:
    """By peft, which names the module."""
    config = LoraConfig(r=2, target_modules=r".*layers\.0\.attention\.value")
    with pytest.raises(ValueError, match=r"ReparametrisedLinear\(\) is not supported"):
        get_peft_model(perturbed("sas-p"), config)
