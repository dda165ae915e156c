"""Pretraining is kept and repeats; fine-tuning learns; scores, memory and divergence are told
truly."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

import hessblocks as hb
from hessblocks.data.corpus import CacheWarning, Corpus
from hessblocks.training.trainer import (
    GuardedTrainer,
    held_out,
    quiet_arguments,
    tokenizer_of,
)
from hessblocks_studies.data import run_of_size
from hessblocks_studies.data.tasks import Task
from hessblocks_studies.masked import pretrain
from hessblocks_studies.masked.cost import cost_rows
from hessblocks_studies.masked.finetune import Finetuning, classifier, encoded, finetune
from hessblocks_studies.masked.masked_settings import Pretraining
from hessblocks_studies.masked.peak_memory import peak_bytes
from hessblocks_studies.masked.pretrain import held_out_masked, pretrained

SETTINGS = Pretraining(
    preset="sas-p", depth=2, width=16, heads=2, mlp_width=32, context=16, vocab_size=400, steps=30,
    batch_size=8, learning_rate=1e-2, evaluations=3, evaluation_sequences=16, seed=0,
)  # fmt: skip
TUNING = Finetuning(epochs=4, batch_size=16, learning_rate=1e-2)


def test_pretraining_decays_as_the_paper_does() -> None:
    run = run_of_size(SETTINGS, SETTINGS.preset, SETTINGS.seed)
    assert run.training.trainer_arguments()["weight_decay"] == 0.1


def test_pretraining_learns_and_is_taken_from_the_cache_afterwards(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pretrained(SETTINGS, corpus)
    assert [step for step, _ in first.losses] == [0, 10, 20, 30]
    assert first.losses[0][1] == pytest.approx(math.log(400), rel=0.05)
    assert first.losses[-1][1] < first.losses[0][1] - 0.2
    assert not first.diverged
    assert isinstance(
        AutoModelForMaskedLM.from_pretrained(first.folder), hb.models.HessblocksForMaskedLM
    )
    monkeypatch.setattr(pretrain, "_pretrain", lambda *_: pytest.fail("trained again"))
    assert pretrained(SETTINGS, corpus) == first


def test_a_damaged_model_is_trained_again_to_the_same_digits(corpus: Corpus) -> None:
    settings = replace(SETTINGS, steps=6)
    first = pretrained(settings, corpus)
    weights = first.folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    with pytest.warns(CacheWarning, match="has another model.safetensors"):
        assert pretrained(settings, corpus) == first
    assert weights.read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"preset": "sas"},
        {"learning_rate": 1e-3},
        {"mask_share": 0.5},
        {"slots": ("mlp.activation=relu",)},
        {"embedding_std": 0.1},
    ],
    ids=str,
)
def test_other_settings_are_another_model(corpus: Corpus, change: dict[str, object]) -> None:
    short = replace(SETTINGS, steps=2, evaluations=1)
    other = replace(short, **change)  # type: ignore[arg-type]
    assert pretrained(short, corpus).losses != pretrained(other, corpus).losses


def test_a_diverging_run_ends_with_an_empty_loss(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrain, "CLIP", 1e30)
    found = pretrained(replace(SETTINGS, preset="pre-ln", learning_rate=1e30), corpus)
    assert found.diverged
    assert len(found.losses) < 4


def test_held_out_masks_are_the_same_for_everyone_and_a_quarter(corpus: Corpus) -> None:
    chosen = replace(SETTINGS, evaluation_sequences=60, mask_share=0.25)
    windows = held_out(corpus, run_of_size(chosen, chosen.preset, chosen.seed))
    torch.manual_seed(3)
    first = held_out_masked(chosen, corpus)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), drawn)
    torch.manual_seed(4)
    second = held_out_masked(chosen, corpus)
    for a, b, window in zip(first, second, [windows[i] for i in range(60)], strict=True):
        assert torch.equal(a["input_ids"], b["input_ids"])
        kept = a["labels"] == -100
        assert torch.equal(a["input_ids"][kept], window["input_ids"][kept])
        assert torch.equal(a["labels"][~kept], window["input_ids"][~kept])
    share = torch.stack([a["labels"] != -100 for a in first]).float().mean()
    assert share == pytest.approx(0.25, abs=0.04)


@pytest.mark.slow
def test_fine_tuning_learns_what_can_be_learnt_and_repeats(corpus: Corpus, topic: Task) -> None:
    model = pretrained(SETTINGS, corpus)
    score = finetune(SETTINGS, model.folder, corpus, topic, TUNING)
    assert score.accuracy > 0.8
    assert score.chance == pytest.approx(1 / 3)
    assert score.examples == len(topic.splits["test"])
    turned = {
        **topic.splits,
        "validation": tuple(
            replace(e, label=(e.label + 1) % 3) for e in topic.splits["validation"]
        ),
    }
    again = finetune(SETTINGS, model.folder, corpus, replace(topic, splits=turned), TUNING)
    assert replace(again, validation=score.validation) == score
    assert score.validation > 0.5
    assert score.validation + again.validation <= 1


@pytest.mark.slow
def test_labels_that_mean_nothing_give_chance(corpus: Corpus, topic: Task) -> None:
    """The planted fault: were test labels seen in training, this would score above chance."""
    draw = torch.Generator().manual_seed(0)
    noisy = {
        split: tuple(replace(e, label=int(torch.randint(3, (), generator=draw))) for e in examples)
        for split, examples in topic.splits.items()
    }
    score = finetune(SETTINGS, None, corpus, replace(topic, splits=noisy), TUNING)
    assert abs(score.accuracy - 1 / 3) < 4 * (2 / 9 / score.examples) ** 0.5


def test_a_score_is_the_share_of_right_answers(corpus: Corpus, topic: Task) -> None:
    from transformers import DataCollatorWithPadding

    from hessblocks_studies.masked.finetune import _accuracy

    tokenizer = tokenizer_of(corpus, 16)
    model = classifier(SETTINGS, None, 3, seed=0)
    collator = DataCollatorWithPadding(tokenizer)
    trainer = GuardedTrainer(
        model=model,
        args=quiet_arguments("unused", "cpu", per_device_eval_batch_size=7),
        data_collator=collator,
    )
    test = encoded(topic.splits["test"][:20], tokenizer, 16)
    right = 0
    for example in test:
        given = {k: torch.tensor([example[k]]) for k in ("input_ids", "attention_mask")}
        right += int(model.eval()(**given).logits.argmax()) == example["labels"]
    assert _accuracy(trainer, test) == right / 20
    with torch.no_grad():
        model.score.weight[0] = float("nan")
    assert _accuracy(trainer, test) is None


def test_the_trunk_is_the_pretrained_one_and_the_head_hangs_on_the_seed(corpus: Corpus) -> None:
    folder = pretrained(SETTINGS, corpus).folder
    base = AutoModelForMaskedLM.from_pretrained(folder)
    one, other = (classifier(SETTINGS, folder, 3, seed) for seed in (0, 1))
    for name, value in base.model.state_dict().items():
        assert torch.equal(value, one.model.state_dict()[name]), name
    assert not torch.equal(one.score.weight, other.score.weight)
    assert json.loads((folder / "config.json").read_text())["causal"] is False
    fresh = classifier(SETTINGS, None, 3, seed=0)
    assert not torch.equal(fresh.model.token_embedding.weight, one.model.token_embedding.weight)


def test_too_little_text_is_one_sentence(corpus: Corpus) -> None:
    with pytest.raises(hb.ArgumentError, match="fewer than one context"):
        pretrained(replace(SETTINGS, context=100_000), corpus)


def test_gains_and_norms_do_not_decay() -> None:
    model = SETTINGS.model()
    trainer = GuardedTrainer(model=model, args=quiet_arguments("unused", "cpu"))
    decayed = set(trainer.get_decay_parameter_names(model))
    assert {n for n, p in model.named_parameters() if p.ndim < 2}.isdisjoint(decayed)
    assert "model.token_embedding.weight" in decayed


def test_the_published_sizes() -> None:
    paper = replace(
        SETTINGS, depth=16, width=768, heads=12, mlp_width=1536, context=128, vocab_size=32_768
    )
    counts = {}
    for name in ("pre-ln", "sas"):
        with torch.device("meta"):
            model = replace(paper, preset=name).model()
        counts[name] = sum(p.numel() for p in model.parameters()) / 1e6
    assert counts == {"pre-ln": pytest.approx(120, abs=1), "sas": pytest.approx(101, abs=1)}
    branch = replace(paper, preset="sas").block().mlp_branch
    assert branch.over_sqrt_depth
    assert branch.gain / 16**0.5 == pytest.approx(0.05)
    assert replace(paper, preset="pre-ln").block().mlp_branch.gain == 1


def test_costs_are_of_every_block_and_fewer_matrices_need_less() -> None:
    found = {
        name: {row["quantity"]: row["value"] for row in rows}
        for name, rows in cost_rows(SETTINGS, ("pre-ln", "sas"), rounds=2).items()
    }
    assert list(found) == ["pre-ln", "sas"]
    for cost in found.values():
        assert min(cost["step_time"], cost["answer_time"]) > 0
        assert cost["step_memory"] > cost["answer_memory"] > 4 * cost["parameters"]
    assert found["sas"]["parameters"] < found["pre-ln"]["parameters"]


def test_an_update_that_cannot_be_made_ends_pretraining_at_once(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    step = torch.optim.AdamW.step

    def spoil(self: torch.optim.AdamW, *given: object, **named: object) -> object:
        done = step(self, *given, **named)
        seen.append(1)
        if len(seen) == 3:
            first = self.param_groups[0]["params"][0]
            first.register_hook(lambda gradient: gradient * math.inf)
        return done

    monkeypatch.setattr(torch.optim.AdamW, "step", spoil)
    found = pretrained(replace(SETTINGS, seed=77), corpus)
    assert found.diverged
    assert [step for step, _ in found.losses] == [0, 4]
    kept = AutoModelForMaskedLM.from_pretrained(found.folder)
    assert all(bool(p.isfinite().all()) for p in kept.parameters())


MB = 1_000_000


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_the_peak_of_memory_counts_what_is_alive_at_once(kept: int) -> None:
    held = [torch.zeros(MB // 4)]

    def work() -> None:
        alive = [torch.ones(MB // 4) for _ in range(kept)]
        del alive
        for _ in range(20):
            torch.ones(MB // 4)

    assert peak_bytes(work, held) == (kept + 1) * MB
    assert peak_bytes(work, [*held, held[0][1:]]) == (kept + 1) * MB  # a view is no memory


def test_the_peak_sees_the_backward_pass() -> None:
    weight = torch.ones(MB // 4, requires_grad=True)

    def work() -> None:
        (weight.sin() * weight).sum().backward()
        weight.grad = None

    def without() -> None:
        with torch.no_grad():
            (weight.sin() * weight).sum()

    assert peak_bytes(work, [weight]) >= peak_bytes(without, [weight]) + MB
    assert peak_bytes(without, [weight]) == pytest.approx(3 * MB, abs=100)


def test_models_are_saved_nowhere_but_in_the_cache(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pretrained(replace(SETTINGS, steps=2, seed=9), corpus)
    assert list(tmp_path.iterdir()) == []
