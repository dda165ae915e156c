"""Losses and training: accumulated batches weigh by valid tokens, and the Trainer runs every
task."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainingArguments

import hessblocks as hb
from hessblocks.models.heads import cross_entropy, next_token_loss
from tests.models.cases import SIZES, ids

TASKS = ["causal-lm", "masked-lm", "classification"]


def rows(task: str, count: int) -> list[dict[str, Tensor]]:
    """Sequences with very different numbers of valid labels."""
    made = []
    for row in range(count):
        tokens = ids(9)
        labels = torch.tensor(row % 2) if task == "classification" else tokens.clone()
        if task != "classification":
            labels[: 2 * row] = -100
        made.append({"input_ids": tokens, "labels": labels})
    return made


def together(batch: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in batch]) for name in batch[0]}


def trained(task: str, folder: Path, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model = hb.build("sas", task=task, **SIZES)
    torch.manual_seed(1)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        **settings,
    )
    Trainer(
        model=model, args=arguments, train_dataset=rows(task, 4), data_collator=together
    ).train()
    return model


@pytest.mark.parametrize(
    "task",
    [
        pytest.param("causal-lm"),
        *(pytest.param(task, marks=pytest.mark.slow) for task in TASKS[1:]),
    ],
)
def test_accumulated_batches_train_as_one(task: str, tmp_path: Path) -> None:
    whole = trained(task, tmp_path, per_device_train_batch_size=4)
    parts = trained(task, tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=4)
    for (name, one), other in zip(whole.named_parameters(), parts.parameters(), strict=True):
        assert torch.allclose(one, other, atol=2e-5), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_loss_keeps_the_precision_of_the_logits(dtype: torch.dtype) -> None:
    logits, labels = torch.randn(2, 5, 7, dtype=torch.float64), torch.randint(0, 7, (2, 5))
    exact = -logits.log_softmax(-1).gather(-1, labels[..., None]).mean()
    loss = cross_entropy(logits.to(dtype), labels)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    accuracy = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    assert loss.item() == pytest.approx(exact.item(), rel=accuracy)


def test_the_loss_of_a_part_is_its_share_of_all_labels() -> None:
    logits, labels = torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5))
    labels[0, :3] = -100
    whole = 7 * cross_entropy(logits, labels)
    assert torch.allclose(cross_entropy(logits, labels, 20), whole / 20)
    assert torch.allclose(cross_entropy(logits, labels, torch.tensor(20)), whole / 20)


def test_the_last_token_predicts_nothing() -> None:
    logits, tokens = torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5))
    assert torch.equal(
        next_token_loss(logits, tokens), cross_entropy(logits[:, :-1], tokens[:, 1:])
    )


def test_a_smoothed_loss_is_that_of_the_next_token(tmp_path: Path) -> None:
    model = hb.build("sas", **SIZES)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), label_smoothing_factor=0.1, report_to=[], use_cpu=True
    )
    tokens = ids(2, 9)
    found = Trainer(model=model, args=arguments).compute_loss(
        model, {"input_ids": tokens, "labels": tokens}
    )
    logs = model(input_ids=tokens).logits[:, :-1].log_softmax(-1)
    right = logs.gather(-1, tokens[:, 1:, None]).mean()
    assert torch.allclose(found, -0.9 * right - 0.1 * logs.mean())
