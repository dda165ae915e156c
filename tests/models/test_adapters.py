"""Low-rank adapters, as LoRA (Hu et al. 2022) adds them: on the plain matrices of a folded model, written out here."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import AutoModelForCausalLM, PreTrainedModel

import hessblocks as hb
from hessblocks.models import fold
from tests.models.cases import ids, perturbed


class LowRank(nn.Module):
    """W + B A, with B = 0 at first."""

    def __init__(self, weight: Tensor, rank: int = 2) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def adapted(model: PreTrainedModel) -> list[nn.Linear]:
    """Freeze the model and put an adapter on every matrix of its layers; the modules that got one."""
    found = [one for one in model.model.layers.modules() if isinstance(one, nn.Linear)]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in found:
        parametrize.register_parametrization(module, "weight", LowRank(module.weight))
    return found


@pytest.mark.parametrize(("name", "matrices"), [("sas-p", 9), ("sas", 9), ("pre-ln", 12)])
def test_adapters_of_a_folded_model_train_alone_and_merge(
    tmp_path: Path, name: str, matrices: int
) -> None:
    """After folding every matrix is a plain one, the reparametrised values of SAS among them."""
    model, tokens = fold(perturbed(name)), ids(2, 8)
    before = model(tokens).logits
    modules = adapted(model)
    assert len(modules) == matrices
    assert torch.equal(model(tokens).logits, before)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(trained) == 2 * matrices
    assert sum(map(Tensor.numel, trained)) < sum(map(Tensor.numel, frozen.values())) / 2
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
    assert hb.Hessian(hb.Problem(model, {"input_ids": tokens})).shape[0] == sum(
        map(Tensor.numel, trained)
    )
    after = model(tokens).logits
    for module in modules:
        parametrize.remove_parametrizations(module, "weight")
    assert torch.equal(model(tokens).logits, after)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(tokens).logits, after)
