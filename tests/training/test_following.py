"""Callbacks for any Trainer: the numbers of a measurement by hand, in its log, without effect on
the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

import hessblocks as hb
from hessblocks.curvature.groups.roles import parameter_groups
from hessblocks.errors import ArgumentError, RunError
from hessblocks.signal.propagation import propagate
from hessblocks.training import following
from hessblocks.training.following import Following, gain_values

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")
STEPS = 5
BATCH = {"input_ids": torch.arange(12).view(2, 6) % 7}


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(number, number + 6) % 7
        return {"input_ids": ids, "labels": ids}


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 7, "n_positions": 6}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **ends))


def bloom() -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(vocab_size=7, hidden_size=8, n_layer=1, n_head=2))


def trainer(model: PreTrainedModel, folder: Path, **changed: Any) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )
    return Trainer(model=model, args=arguments, train_dataset=Rows(), **changed)


def test_curvature_along_a_training_is_what_is_measured_by_hand(tmp_path: Path) -> None:
    model = gpt2()
    first = parameter_groups(model)
    before = hb.group_norms(hb.Problem(model.eval(), BATCH), first, probes=4, parts=["full"])
    followed = trainer(model, tmp_path)
    callback = hb.CurvatureCallback(BATCH, every=2, probes=4).attach(followed)
    followed.train()
    after = hb.group_norms(
        hb.Problem(model.eval(), BATCH), parameter_groups(model), probes=4, parts=["full"]
    )
    assert sorted({row["step"] for row in callback.rows}) == [0, 2, 4, STEPS]
    for step, norms in ((0, before), (STEPS, after)):
        found = {row["group"]: row for row in callback.rows if row["step"] == step}
        assert set(found) == set(norms)
        for name, parts in norms.items():
            assert found[name]["value"] == pytest.approx(parts["full"].value, rel=1e-5)
            assert found[name]["standard_error"] == pytest.approx(
                parts["full"].standard_error, rel=1e-4
            )
    logged = [line for line in followed.state.log_history if "curvature/final.norm/full" in line]
    assert [line["step"] for line in logged] == [0, 2, 4, STEPS]
    assert len(callback.to_dataframe()) == 4 * len(first)
    assert repr(callback) == f"CurvatureCallback: {4 * len(first)} values, last at step {STEPS}"


@pytest.mark.slow
def test_callbacks_leave_no_trace_in_the_training(tmp_path: Path) -> None:
    plain, watched = gpt2(), gpt2()
    trainer(plain, tmp_path / "plain").train()
    callbacks: list[Following] = [
        hb.CurvatureCallback(BATCH, every=1),
        hb.SignalCallback(BATCH, every=1),
    ]
    trainer(watched, tmp_path / "watched", callbacks=callbacks).train()
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)
    assert all(callback.rows for callback in callbacks)  # also where they are not attached


def test_signal_and_gains_are_those_of_the_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = hb.build("sas-p", depth=2, width=8, heads=2, vocab_size=7, context=6)
    followed = trainer(model, tmp_path)
    signal = hb.SignalCallback(BATCH, every=STEPS).attach(followed)
    gains = hb.GainCallback(every=STEPS).attach(followed)
    followed.train()
    last = [row["value"] for row in signal.rows if row["step"] == STEPS]
    expected = [row["value"] for row in propagate(model, BATCH, jacobian_steps=0).to_rows()]
    assert last == pytest.approx(expected, rel=1e-5)
    found = {(row["layer"], row["quantity"]): row["value"] for row in gains.rows if row["step"]}
    assert found == {(row["layer"], row["quantity"]): row["value"] for row in gain_values(model)}
    names = {name for line in followed.state.log_history for name in line}
    assert "signal/input/token_similarity" in names
    assert "gain/1/alpha" in names


def test_what_cannot_be_measured_is_a_reason_in_training(tmp_path: Path) -> None:
    names = {}
    for model in (gpt2(), bloom()):
        followed = trainer(model, tmp_path)
        signal = hb.SignalCallback(BATCH, every=STEPS).attach(followed)
        followed.train()
        names[type(model)] = {name for line in followed.state.log_history for name in line}
    assert {"signal/0/second_moment", "signal/0/head_entropy/head.1"} < names[GPT2LMHeadModel]
    moments = [row for row in signal.rows if row["quantity"] == "second_moment"]
    assert all(row["value"] is None and "go through" in row["method"] for row in moments)
    assert "signal/0/second_moment" not in names[BloomForCausalLM]


def test_groups_may_be_chosen_once_or_at_each_moment(tmp_path: Path) -> None:
    model = gpt2()
    few = hb.select_groups(parameter_groups(model), ["*.query"])
    callbacks = [
        hb.CurvatureCallback(BATCH, groups=few, every=STEPS, parts=("outer", "full")),
        hb.CurvatureCallback(
            BATCH,
            groups=lambda model: hb.select_groups(parameter_groups(model), ["*.query"]),
            every=STEPS,
            parts=("outer", "full"),
        ),
        hb.CurvatureCallback(BATCH, groups=["*.query"], every=STEPS, parts=("outer", "full")),
    ]
    trainer(model, tmp_path, callbacks=callbacks).train()
    assert callbacks[0].rows == callbacks[1].rows == callbacks[2].rows
    assert {row["group"] for row in callbacks[0].rows} == set(few)
    assert {row["part"] for row in callbacks[0].rows} == {"outer", "full"}


@pytest.mark.parametrize("every", [0, -1, 2.5, True])
def test_a_bad_number_of_steps_is_refused(every: Any) -> None:
    with pytest.raises(ArgumentError, match="every: expected a whole number"):
        hb.GainCallback(every=every)


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ArgumentError, match="parts"):
        hb.CurvatureCallback(BATCH, parts=("whole",))  # type: ignore[arg-type]


def test_a_pattern_that_matches_no_group_is_refused_before_the_first_step(tmp_path: Path) -> None:
    callback = hb.CurvatureCallback(BATCH, groups=["*.quarry"])
    with pytest.raises(ArgumentError, match="matches nothing"):
        trainer(gpt2(), tmp_path, callbacks=[callback]).train()


def test_too_few_probes_are_refused_before_the_training() -> None:
    with pytest.raises(ArgumentError, match="probes: expected a whole number of at least 4"):
        hb.CurvatureCallback(BATCH, probes=2)


def test_a_model_that_is_sharded_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(following, "DTensor", torch.nn.Parameter)
    with pytest.raises(RunError, match="sharded over processes"):
        trainer(gpt2(), tmp_path, callbacks=[hb.SignalCallback(BATCH)]).train()
