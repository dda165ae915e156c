"""What the commands measure, from Python: a model as an object, a folder, a preset; a batch of
one's own."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import hessblocks as hb
from hessblocks.errors import ArgumentError, RunError
from hessblocks.inspection.measure import _subjects, placed
from hessblocks.inspection.opening import encoded_batch
from hessblocks.inspection.subject import Subject
from hessblocks.settings.pretrained import CurvatureInspection
from hessblocks.storage.files import write_text
from hessblocks.storage.store import POINTS
from tests.data.helpers import write_code

pytestmark = [
    pytest.mark.usefixtures("blank"),
    pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning"),
]
SIZES = {"depth": 2, "width": 8, "heads": 2, "vocab_size": 30}
TOKENS = {"sequences": 2, "tokens": 6}
FEW: dict[str, Any] = {
    "groups": "layers.1.attention.*", "parts": "full", "probes": 4, "eigenvalues": 0,
}  # fmt: skip


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return hb.build("pre-ln", context=6, **SIZES)


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(30, (2, 6), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids}


def test_a_preset_a_folder_and_an_object_are_the_same_model(
    model: torch.nn.Module, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path / "saved")
    sources = {"preset": "preset:pre-ln", "folder": tmp_path / "saved", "object": model}
    found = {
        name: hb.measure_curvature(
            source,
            "random",
            out=tmp_path / name,
            **TOKENS,
            **FEW,
            **(SIZES if name == "preset" else {}),
            device="cpu",
        )
        for name, source in sources.items()
    }
    assert found["preset"].norms == found["folder"].norms == found["object"].norms
    assert len(found["object"].norms) == 4
    assert found["object"].parts == ("full",)


def test_a_batch_of_the_user_gives_its_loss_and_is_told_apart(
    model: torch.nn.Module, batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    model.train()
    out = tmp_path / "out"
    found = hb.measure_curvature(model, batch, out=str(out), **FEW)
    loss = model.eval()(**batch, labels=batch["input_ids"]).loss.item()
    assert found.loss == pytest.approx(loss, rel=1e-5)
    other = {"input_ids": batch["input_ids"].flip(0)}
    with pytest.raises(ArgumentError, match=r"data\.fingerprint"):
        hb.measure_curvature(model, other, out=out, **FEW)


CHANGES: dict[str, dict[str, Any]] = {
    "heads": {"heads": 4},
    "temperature": {"slots": ("attention.temperature=2",)},
    "positions without weights": {"position": "sinusoidal"},
}
"""What no weight shows, on top of a block without weights of its positions."""


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_with_the_same_weights_that_computes_something_else_is_told_apart(
    change: dict[str, Any], tmp_path: Path
) -> None:
    asked = {**SIZES, **TOKENS, **FEW, "position": "no", "device": "cpu"}
    out = tmp_path / "out"
    first = hb.measure_curvature("preset:pre-ln", "random", out=out, **asked)
    assert hb.measure_curvature("preset:pre-ln", "random", out=out, **asked) == first
    with pytest.raises(ArgumentError, match=r"other settings \(model\.configuration"):
        hb.measure_curvature("preset:pre-ln", "random", out=out, **asked | change)


def test_curvature_of_a_model_with_another_loss_is_not_gone_on_with(
    model: torch.nn.Module, batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """A hook shows in no digest; what it does to the loss shows here."""
    first = hb.measure_curvature(model, batch, out=tmp_path, **FEW)
    hook = model.get_output_embeddings().register_forward_hook(lambda *given: 3 * given[-1])
    with pytest.raises(RunError, match=r"a model with the loss .*, this one has .*; choose anoth"):
        hb.measure_curvature(model, batch, out=tmp_path, **FEW)
    hook.remove()
    assert hb.measure_curvature(model, batch, out=tmp_path, **FEW).norms == first.norms


def test_what_is_stored_of_another_run_does_not_count(
    model: torch.nn.Module, batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    first = hb.measure_curvature(model, batch, out=tmp_path / "one", **FEW)
    hb.measure_curvature(model, batch, out=tmp_path / "other", **FEW, seed=1)
    lines = (tmp_path / "one" / POINTS).read_bytes()
    shutil.copy(tmp_path / "other" / POINTS, tmp_path / "one" / POINTS)
    again = hb.measure_curvature(model, batch, out=tmp_path / "one", **FEW)
    assert again.norms == first.norms
    assert len((tmp_path / "one" / POINTS).read_bytes().splitlines()) == 2 * len(lines.splitlines())


def test_a_run_of_groups_with_any_names_goes_on(
    model: torch.nn.Module,
    batch: dict[str, torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = hb.parameter_groups

    def renamed(*given: Any, **asked: Any) -> dict[str, Any]:
        names = ["a b/c", "größe", "../x%20", "l" * 300]
        groups = list(real(*given, **asked).values())
        return dict(zip(names, groups, strict=False))

    monkeypatch.setattr("hessblocks.curvature.parameter_groups", renamed)
    asked = {**FEW, "groups": "*"}
    first = hb.measure_curvature(model, batch, out=tmp_path, **asked)
    assert len((tmp_path / POINTS).read_bytes().splitlines()) == len(first.norms) == 4
    monkeypatch.setattr("hessblocks.curvature.column_squares", None)
    assert hb.measure_curvature(model, batch, out=tmp_path, **asked) == first


def test_finish_is_called_with_the_folder(
    model: torch.nn.Module, batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    def finish(folder: Path) -> None:
        write_text(folder / "done", "")

    hb.measure_curvature(model, batch, out=tmp_path / "a", finish=finish, **FEW)
    hb.measure_signal(model, batch, out=tmp_path / "b", finish=finish, jacobian_steps=0)
    assert (tmp_path / "a" / "done").exists()
    assert (tmp_path / "b" / "done").exists()


def test_the_signal_of_an_object_is_that_of_propagate_and_its_mode_stays(
    model: torch.nn.Module, batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    model.train()
    rows = hb.measure_signal([model, "preset:pre-ln"], batch, **SIZES, jacobian_steps=2)
    assert model.training
    names = list(dict.fromkeys(row["model"] for row in rows))
    assert names == ["HessblocksForCausalLM", "pre-ln"]
    labelled = {**batch, "labels": batch["input_ids"]}
    expected = hb.signal(model.eval(), labelled, jacobian_steps=2).to_rows()
    for name in names:
        own = [row["value"] for row in rows if row["model"] == name]
        assert own == pytest.approx([row["value"] for row in expected])


@pytest.mark.parametrize("padded", [slice(4, 6), slice(0, 2)], ids=["right", "left"])
def test_padding_is_not_a_target_of_the_gradients(model: torch.nn.Module, padded: slice) -> None:
    def gradients(filled: int, **more: Any) -> list[dict[str, Any]]:
        ids = torch.arange(12).reshape(2, 6)
        mask = torch.ones_like(ids)
        ids[1, padded], mask[1, padded] = filled, 0
        batch = {"input_ids": ids, "attention_mask": mask, **more}
        found = hb.measure_signal(model, batch, jacobian_steps=0)
        return [row for row in found if row["quantity"] == "gradient_norm"]

    labels = torch.arange(12).reshape(2, 6)
    labels[1, padded] = -100
    if padded.start == 0:
        labels[1, 2] = -100  # what stands before it is padding
    assert gradients(0) == gradients(7) == gradients(0, labels=labels)


def test_signal_notes_what_it_is_of(
    model: torch.nn.Module, batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    def digests(out: Path, *asked: Any) -> dict[str, dict[str, str]]:
        hb.measure_signal(*asked, out=out, jacobian_steps=0)
        found: dict[str, dict[str, str]] = json.loads((out / "config.json").read_text())["digests"]
        return found

    one = digests(tmp_path / "a", model, batch)["HessblocksForCausalLM"]
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(1)
    other = digests(tmp_path / "b", model, {"input_ids": batch["input_ids"].flip(0)})
    assert {len(value) for value in one.values()} == {64}
    assert one.keys() == {"fingerprint", "configuration", "tokens"}
    differ = {key for key in one if one[key] != other["HessblocksForCausalLM"][key]}
    assert differ == {"fingerprint", "tokens"}


def test_two_objects_of_one_kind_have_two_names(
    model: torch.nn.Module, batch: dict[str, torch.Tensor]
) -> None:
    rows = hb.measure_signal([model, model], batch, jacobian_steps=0)
    assert {row["model"] for row in rows} == {"HessblocksForCausalLM 1", "HessblocksForCausalLM 2"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"probe": 4}, "setting: 'probe' is unknown; did you mean 'probes'"),
        ({"probes": 3}, "--probes: expected a whole number of at least 4, got 3"),
        ({"parts": "outr"}, "--parts: 'outr' is unknown; did you mean 'outer'"),
        ({"data": {"ids": torch.zeros(2, 2)}}, "data: expected the name of a text, or input_ids"),
        ({"data": "python-code"}, "has no tokenizer"),
    ],
    ids=str,
)
def test_what_cannot_be_measured(
    model: torch.nn.Module, fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=message):
        hb.measure_curvature(model, **{"data": "random", **TOKENS, **fields}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_saved_weights_that_are_not_finite_are_refused(
    model: torch.nn.Module, tmp_path: Path
) -> None:
    with torch.no_grad():
        model.model.layers[1].mlp.output.weight[0, 0] = torch.nan
    model.save_pretrained(tmp_path / "saved")
    said = r"weights that are not finite \(model\.layers\.1\.mlp\.output\.weight\)"
    for measure in (hb.measure_curvature, hb.measure_signal):
        with pytest.raises(RunError, match=said):
            measure(tmp_path / "saved", "random", out=tmp_path / "out", **TOKENS)
    assert not (tmp_path / "out").exists()


class Numbers:
    """A tokeniser that gives 0 and its largest number."""

    eos_token_id = None

    def __init__(self, last: int) -> None:
        self.last = last

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [0, self.last] * 9}


def test_the_token_just_behind_the_vocabulary_is_refused(
    model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
    settings = CurvatureInspection(data=str(write_code(tmp_path / "code")), **TOKENS)
    for last, fits in ((29, True), (30, False)):
        subject = Subject(name="model", model=model, tokenizer=Numbers(last))
        expected = nullcontext() if fits else pytest.raises(ArgumentError, match="ids up to 30")
        with expected:
            encoded_batch(subject, settings)


def test_a_model_on_the_second_device_of_a_kind_stays_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where `.to("cuda")` would take it to the first."""
    model = torch.nn.Linear(2, 2, device="meta")
    monkeypatch.setattr(model, "to", lambda device: pytest.fail(f"moved to {device}"))
    assert placed("meta", model) is model
    assert placed("meta", torch.nn.Linear(2, 2)).weight.is_meta


def test_curvature_is_written_only_where_asked(
    model: torch.nn.Module,
    batch: dict[str, torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = hb.measure_curvature(model, batch, **FEW)
    assert not list(tmp_path.iterdir())
    assert not found.folder.exists()
    assert "; in " not in repr(found)
    kept = hb.measure_curvature(model, batch, out="of-{model}", **FEW)
    assert [one.name for one in tmp_path.iterdir()] == [f"of-{type(model).__name__}"]
    assert kept.norms == found.norms
    with pytest.raises(ArgumentError, match="finish: what it writes would be lost; give"):
        hb.measure_curvature(model, batch, finish=print, **FEW)


@pytest.mark.parametrize("measure", [hb.measure_curvature, hb.measure_signal])
def test_sizes_of_a_saved_model_are_refused_before_its_text_is_read(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measure: Any
) -> None:
    model.save_pretrained(tmp_path / "saved")
    monkeypatch.setattr("hessblocks.inspection.opening.encoded_batch", None)
    with pytest.raises(ArgumentError, match="--width: a saved model has sizes of its own"):
        measure(tmp_path / "saved", out=tmp_path / "out", width=16)
    assert not (tmp_path / "out").exists()


def test_a_memory_limit_of_any_size_counts_bytes(model: torch.nn.Module) -> None:
    settings = CurvatureInspection(memory_limit=1e300)
    tokens = {"input_ids": torch.zeros(2, 6, dtype=torch.long)}
    found = _subjects(settings, model, tokens, hb.parameter_groups(model), "cpu")
    assert found.problem.memory_limit == 10**18
