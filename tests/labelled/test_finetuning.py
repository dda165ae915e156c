"""A saved model learns a user's labels; what is said of it is true of the model that was saved."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ViTConfig,
    ViTModel,
)

import hessblocks as hb
from hessblocks.data.labelled import load_labelled
from hessblocks.errors import ArgumentError, RunError
from hessblocks.models.saved import Saved
from hessblocks.progress import Progress
from hessblocks.settings import FinetuneSettings
from hessblocks.storage.examination import check_folder
from hessblocks.storage.lines import read_lines
from hessblocks.training.labelled.classifier import NewHeadWarning, classifier_of
from hessblocks.training.labelled.labelled_run import Finetuned, finetune_saved
from hessblocks.training.trainer.guarded import GuardedTrainer
from tests.labelled.conftest import CONTEXT, KINDS
from tests.training.helpers import killed_at_write

SETTINGS = FinetuneSettings(epochs=12, batch_size=8, learning_rate=1e-2, held_out=0.25)
SHORT = replace(SETTINGS, epochs=2)


def tuned(
    model: Path, data: Path, out: Path, settings: FinetuneSettings = SETTINGS, **more: Any
) -> Finetuned:
    return finetune_saved(str(model), data, settings, out, Progress(), **more)


def weights(out: Path) -> bytes:
    return (out / "model" / "model.safetensors").read_bytes()


def losses(out: Path) -> list[dict[str, Any]]:
    clocks = {"seconds", "tokens_per_second", "seal"}
    lines = read_lines(out / "metrics.jsonl")
    return [{name: line[name] for name in line if name not in clocks} for line in lines]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_is_true_of_the_model_that_is_saved(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, kind: str
) -> None:
    found = tuned(saved[kind], reviews, tmp_path / "out")
    assert found.after.accuracy > 0.95 > found.reference.accuracy + 0.2
    assert found.after.loss < 0.3 < found.before.loss
    model = AutoModelForSequenceClassification.from_pretrained(found.folder)
    assert model.config.id2label == dict(enumerate(found.classes)) == {0: "blame", 1: "praise"}
    assert model.config.label2id == {"blame": 0, "praise": 1}
    tokenizer = AutoTokenizer.from_pretrained(found.folder)
    rows = load_labelled(reviews, ["text"], "label", 0.25, 0).held_out
    right, loss = 0, 0.0
    for row in rows:  # one by one, so that nothing is padded
        with torch.no_grad():
            logits = model(**tokenizer(row.texts[0], return_tensors="pt")).logits[0]
        label = found.classes.index(row.label)
        right += int(logits.argmax()) == label
        loss -= float(logits.log_softmax(0)[label])
    assert found.held_out == len(rows) == 30
    assert found.after.accuracy == pytest.approx(right / 30)
    assert found.after.loss == pytest.approx(loss / 30, rel=1e-4)
    assert {finding.state for finding in check_folder(tmp_path / "out")} == {"whole"}


def test_the_reference_needs_no_model(
    saved: dict[str, Path], reviews: Path, tmp_path: Path
) -> None:
    found = tuned(saved["gpt2"], reviews, tmp_path / "out", replace(SHORT, held_out=0.21))
    rows = load_labelled(reviews, ["text"], "label", 0.21, 0)  # other shares on each side
    share = sum(row.label == "praise" for row in rows.train) / len(rows.train)
    seen = [row.label == "praise" for row in rows.held_out]
    assert found.commonest == "praise"
    assert found.reference.accuracy == sum(seen) / len(seen)
    expected = -sum(math.log(share if one else 1 - share) for one in seen) / len(seen)
    assert found.reference.loss == pytest.approx(expected)


def test_tokens_are_counted_without_padding(
    saved: dict[str, Path], reviews: Path, tmp_path: Path
) -> None:
    settings = replace(SHORT, epochs=1, batch_size=90)
    tuned(saved["gpt2"], reviews, tmp_path / "out", settings)
    rows = load_labelled(reviews, ["text"], "label", 0.25, 0)
    last = losses(tmp_path / "out")[-1]
    assert last["step"] == 1
    assert last["tokens"] == sum(len(row.texts[0].split()) for row in rows.train)


class StoppedError(Exception):
    """A machine that fails."""


def stop_before(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the n-th update from now on fail."""
    whole, left = GuardedTrainer.training_step, step

    def failing(self: GuardedTrainer, *given: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise StoppedError
        return whole(self, *given)

    monkeypatch.setattr(GuardedTrainer, "training_step", failing)


@pytest.mark.parametrize("kind", ["bert", "sas-p"])
def test_a_run_that_was_stopped_ends_with_the_digits_of_an_undisturbed_one(
    saved: dict[str, Path],
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """BERT has dropout, whose random state goes on too."""
    expected = tuned(saved[kind], reviews, tmp_path / "whole", SHORT)
    with monkeypatch.context() as patch:
        stop_before(15, patch)
        with pytest.raises(StoppedError):
            tuned(saved[kind], reviews, tmp_path / "out", SHORT)
    assert list((tmp_path / "out" / "checkpoints").iterdir())
    torch.manual_seed(99)  # another process has another random state
    found = tuned(saved[kind], reviews, tmp_path / "out", SHORT)
    assert replace(found, folder=expected.folder) == expected
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")
    assert losses(tmp_path / "out") == losses(tmp_path / "whole")
    assert not (tmp_path / "out" / "checkpoints").exists()


@pytest.mark.parametrize("moment", [5, 30, 60, 90])
def test_killed_at_a_write_it_goes_on(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, moment: int
) -> None:
    work = partial(tuned, saved["sas-p"], reviews, tmp_path / "out", SHORT)
    assert killed_at_write(work, moment)
    found = work()
    whole = tuned(saved["sas-p"], reviews, tmp_path / "whole", SHORT)
    assert replace(found, folder=whole.folder) == whole
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")


def test_a_finished_run_is_read_not_trained(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tuned(saved["bert"], reviews, tmp_path / "out", SHORT)
    stop_before(1, monkeypatch)
    assert tuned(saved["bert"], reviews, tmp_path / "out", SHORT) == expected


@pytest.mark.parametrize("spoilt", ["model/model.safetensors", "metrics.jsonl"])
def test_a_finished_run_that_was_changed_is_refused(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, spoilt: str
) -> None:
    tuned(saved["gpt2"], reviews, tmp_path / "out", SHORT)
    path = tmp_path / "out" / spoilt
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RunError, match=r"remove .*out and run again"):
        tuned(saved["gpt2"], reviews, tmp_path / "out", SHORT)
    assert "whole" not in {
        f.state for f in check_folder(tmp_path / "out") if f.path.name in spoilt.split("/")
    }


def test_what_lies_in_the_model_of_a_finished_run_is_to_be_taken_out(
    saved: dict[str, Path], reviews: Path, tmp_path: Path
) -> None:
    expected = tuned(saved["gpt2"], reviews, tmp_path / "out", SHORT)
    (tmp_path / "out" / "model" / "notes.txt").touch()
    with pytest.raises(RunError, match=r"holds notes\.txt, .*; take it out and run again\.$"):
        tuned(saved["gpt2"], reviews, tmp_path / "out", SHORT)
    (tmp_path / "out" / "model" / "notes.txt").rename(tmp_path / "out" / "model" / ".notes")
    assert tuned(saved["gpt2"], reviews, tmp_path / "out", SHORT) == expected


def test_another_file_model_or_setting_is_refused(
    saved: dict[str, Path], reviews: Path, tmp_path: Path
) -> None:
    tuned(saved["gpt2"], reviews, tmp_path / "out", SHORT)
    other = tmp_path / reviews.name
    other.write_text(reviews.read_text(encoding="utf-8") + "good film,x,praise\n", encoding="utf-8")
    for given in (
        (saved["bert"], reviews, SHORT),
        (saved["gpt2"], other, SHORT),
        (saved["gpt2"], reviews, replace(SHORT, seed=1)),
    ):
        with pytest.raises(ArgumentError, match=r"--out: .* holds a run with other settings"):
            tuned(*given[:2], tmp_path / "out", given[2])


def test_a_stopped_run_does_not_go_on_with_other_tokens(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(saved["gpt2"], tmp_path / "model")
    with monkeypatch.context() as patch:
        stop_before(15, patch)
        with pytest.raises(StoppedError):
            tuned(tmp_path / "model", reviews, tmp_path / "out", SHORT)
    path = tmp_path / "model" / "tokenizer.json"
    said = json.loads(path.read_text())
    words = said["model"]["vocab"]
    words["film"], words["plot"] = words["plot"], words["film"]
    path.write_text(json.dumps(said))
    with pytest.raises(ArgumentError, match=r"--out: .* holds a run with other .*data\.tokens"):
        tuned(tmp_path / "model", reviews, tmp_path / "out", SHORT)


def test_a_classifier_of_these_labels_keeps_its_head_and_their_order(
    saved: dict[str, Path], reviews: Path, tmp_path: Path
) -> None:
    first = tuned(saved["gpt2"], reviews, tmp_path / "first")
    assert first.new == ("score.weight",)
    turned = tmp_path / "turned"
    shutil.copytree(first.folder, turned)
    config = json.loads((turned / "config.json").read_text())
    config["id2label"] = {"0": "praise", "1": "blame"}
    config["label2id"] = {"praise": 0, "blame": 1}
    (turned / "config.json").write_text(json.dumps(config))
    (turned / "seal.json").unlink()
    head = load_file(turned / "model.safetensors")
    head["score.weight"] = head["score.weight"].flip(0)
    save_file(head, turned / "model.safetensors", metadata={"format": "pt"})
    found = tuned(turned, reviews, tmp_path / "second", SHORT)
    assert found.new == ()
    assert found.classes == ("praise", "blame")
    assert found.before == first.after


@pytest.mark.filterwarnings("ignore::hessblocks.training.NewHeadWarning")
def test_a_head_of_another_size_is_drawn_anew_and_the_trunk_is_kept(
    saved: dict[str, Path], reviews: Path, tmp_path: Path
) -> None:
    first = tuned(saved["bert"], reviews, tmp_path / "first", SHORT)
    words = (
        "is a classifier of blame, praise, the data has the labels a, b, c: its head is drawn anew"
    )
    with pytest.warns(NewHeadWarning, match=words):
        made = classifier_of(Saved.at(str(first.folder)), ("a", "b", "c"), seed=0)
    assert made.new == ("classifier.bias", "classifier.weight")
    again = classifier_of(Saved.at(str(first.folder)), ("a", "b", "c"), seed=0)
    stored = load_file(first.folder / "model.safetensors")
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
        if name in stored and name not in made.new:
            assert torch.equal(value, stored[name]), name
    assert made.model.config.num_labels == 3


@pytest.mark.filterwarnings("ignore::hessblocks.training.NewHeadWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_as_many_other_labels_is_drawn_anew_and_the_rest_is_kept(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, kind: str
) -> None:
    """Kept, the outputs of `blame` and `praise` would begin as those of `POS` and `NEG`."""
    first = tuned(saved[kind], reviews, tmp_path / "first", replace(SHORT, epochs=1))
    one, again, other = (
        classifier_of(Saved.at(str(first.folder)), ("NEG", "POS"), seed) for seed in (0, 0, 1)
    )
    stored = load_file(first.folder / "model.safetensors")
    expected = ("classifier.bias", "classifier.weight") if kind == "bert" else ("score.weight",)
    assert one.new == expected
    assert one.classes == ("NEG", "POS")
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name
        same = name not in one.new
        assert torch.equal(value, other.model.state_dict()[name]) == (same or "bias" in name), name
        assert name not in stored or torch.equal(value, stored[name]) == same, name


def test_both_texts_of_a_pair_are_told_apart(saved: dict[str, Path], reviews: Path) -> None:
    rows = load_labelled(reviews, ["text", "more"], "label", 0.25, 0).train[:4]
    bert = classifier_of(Saved.at(str(saved["bert"])), ("blame", "praise"), 0)
    examples, _ = bert.encode(rows, None)
    assert {tuple(sorted(set(one["token_type_ids"]))) for one in examples} == {(0, 1)}
    gpt2 = classifier_of(Saved.at(str(saved["gpt2"])), ("blame", "praise"), 0)
    seen: list[list[str]] = []
    gpt2.tokenizer.__class__ = type(
        "Spy",
        (type(gpt2.tokenizer),),
        {
            "__call__": lambda self, *texts, **more: (
                seen.append(list(texts[0])),
                super(type(self), self).__call__(*texts, **more),
            )[1]
        },
    )
    examples, _ = gpt2.encode(rows, None)
    assert seen[0] == ["\n".join(row.texts) for row in rows]
    assert "token_type_ids" not in examples[0]


def test_texts_that_are_too_long_are_cut_and_counted(
    saved: dict[str, Path], reviews: Path, tmp_path: Path
) -> None:
    made = classifier_of(Saved.at(str(saved["gpt2"])), ("blame", "praise"), 0)
    rows = load_labelled(reviews, ["text"], "label", 0.25, 0).train
    assert made.limit(None) == CONTEXT
    assert made.limit(5) == 5
    examples, cut = made.encode(rows, 5)
    assert cut == sum(len(row.texts[0].split()) > 5 for row in rows) > 0
    assert max(len(one["input_ids"]) for one in examples) == 5
    with pytest.raises(ArgumentError, match="--tokens: 13 are longer than the 12 that gpt2 takes"):
        made.limit(13)


@pytest.mark.parametrize(("columns", "least"), [(["text"], 3), (["text", "more"], 5)])
def test_a_limit_without_room_for_a_text_is_refused(
    saved: dict[str, Path], reviews: Path, columns: list[str], least: int
) -> None:
    """A BERT would learn from [CLS] and [SEP] alone."""
    made = classifier_of(Saved.at(str(saved["bert"])), ("blame", "praise"), 0)
    rows = load_labelled(reviews, columns, "label", 0.25, 0).train
    for limit in range(2, least):
        with pytest.raises(ArgumentError, match=f"--tokens: {limit} leave .*; expected {least} or"):
            made.encode(rows, limit)
    examples, cut = made.encode(rows, least)
    assert {len(one["input_ids"]) for one in examples} == {least}
    assert cut == len(rows)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def no_end(folder: Path) -> None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (path := folder / name).exists():
            said = json.loads(path.read_text())
            said.pop("eos_token", None)
            path.write_text(json.dumps(said))


def fewer_words(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["transformer.wte.weight"] = weights["transformer.wte.weight"][:5].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 5}))


def no_trunk(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: one for name, one in weights.items() if "attn" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def vision(folder: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
    ViTModel(ViTConfig(**sizes, intermediate_size=8, image_size=4, patch_size=2)).save_pretrained(
        folder
    )


def not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["transformer.wpe.weight"][0, 0] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


BAD_MODELS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no tokenizer": (without("tokenizer.json"), "MODEL: .* has no tokenizer beside it"),
    "no token for padding": (no_end, "has no token for padding and none for the end"),
    "another tokenizer": (fewer_words, r"gives token ids up to \d+, the model knows those below 5"),
    "no trunk": (no_trunk, "MODEL: .* has no weights for transformer"),
    "a model of pictures": (vision, "is a ViT, on which transformers puts no classification head"),
    "weights that are not finite": (not_finite, "holds weights that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_cannot_be_tuned_is_refused_before_anything_is_written(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, case: str
) -> None:
    spoil, answer = BAD_MODELS[case]
    shutil.copytree(saved["gpt2"], tmp_path / "model")
    spoil(tmp_path / "model")
    with pytest.raises(hb.HessblocksError, match=answer):
        tuned(tmp_path / "model", reviews, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_several_processes_are_refused(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match="one process; start it without torchrun"):
        tuned(saved["gpt2"], reviews, tmp_path / "out")


def test_a_loss_that_is_no_number_leaves_no_model(
    saved: dict[str, Path], reviews: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=r"diverged at step .* Try a lower --learning-rate than 1e"):
        tuned(saved["gpt2"], reviews, tmp_path / "out", replace(SHORT, learning_rate=1e30))
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"held_out": 1.0}, "held_out: expected a share"),
        ({"text": ("a", "b", "c")}, "--text: expected one column or two"),
        ({"text": ()}, "--text: expected one column or two"),
        ({"learning_rate": math.nan}, "learning_rate: expected a number above 0"),
        ({"epochs": 0}, "--epochs: expected"),
        ({"tokens": 1}, "--tokens: expected"),
    ],
    ids=str,
)
def test_settings_outside_their_range_are_refused(change: dict[str, Any], answer: str) -> None:
    with pytest.raises(ArgumentError, match=answer):
        FinetuneSettings(**change)


def test_the_settings_of_a_model_that_the_trainer_turns_off_are_put_back(
    saved: dict[str, Path], reviews: Path, tmp_path: Path
) -> None:
    found = tuned(saved["gpt2"], reviews, tmp_path / "out", SHORT)
    config = json.loads((found.folder / "config.json").read_text())
    assert config["use_cache"] is True
    assert config["pad_token_id"] == 0
