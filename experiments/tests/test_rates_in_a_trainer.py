"""Blockwise learning rates inside a Trainer: each group keeps its multiple of the schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

import hessblocks as hb
from experiments.tests.test_blockwise_rates import MODELS, made_up
from hessblocks_studies.shared import blockwise_learning_rates

STEPS, WARMUP = 6, 2
FACTORS = [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
"""Linear warm-up and decay after each step."""


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(number, number + 6) % 7
        return {"input_ids": ids, "labels": ids}


class Rates(TrainerCallback):
    """The rate of each group after each step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.seen.append({one["name"]: one["lr"] for one in given["optimizer"].param_groups})


@pytest.mark.parametrize("way", ["optimizers", "optimizer_cls_and_kwargs"])
@pytest.mark.parametrize("rule", ["measured", "published"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_trainer_moves_every_group_at_its_own_rate(
    kind: str, rule: str, way: str, tmp_path: Path
) -> None:
    model = MODELS[kind]()
    groups = hb.parameter_groups(model)
    norms = made_up(groups) if rule == "measured" else None
    made = blockwise_learning_rates(model, groups, base=1e-3, rule=rule, norms=norms)
    wanted = {group["name"]: group["lr"] for group in made}
    assert len(set(wanted.values())) > 3
    decays = {name: 0.0 if "norm" in name else 0.1 for name in wanted}
    made = [group | {"weight_decay": decays[group["name"]]} for group in made]
    given: dict[str, Any] = (
        {"optimizers": (torch.optim.AdamW(made), None)}
        if way == "optimizers"
        else {"optimizer_cls_and_kwargs": (torch.optim.AdamW, {"params": made})}
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rates = Rates()
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=7.0,  # of no group
        lr_scheduler_type="linear",
        warmup_steps=WARMUP,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[rates], **given)
    trainer.train()
    assert len(rates.seen) == STEPS
    for seen, factor in zip(rates.seen, FACTORS, strict=True):
        assert seen == pytest.approx({name: factor * rate for name, rate in wanted.items()})
    assert trainer.optimizer is not None
    for group in trainer.optimizer.param_groups:
        assert group["weight_decay"] == decays[group["name"]]
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(before)
