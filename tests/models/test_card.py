"""A saved model comes with a card that is true, runs, and gives way to what a person wrote."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import PreTrainedModel

import hessblocks as hb
from hessblocks.models.card import write_card
from hessblocks.models.modeling import HessblocksModel
from tests.models.cases import SIZES
from tests.training.helpers import in_process_of_its_own

OWN = "Mine."


def saved(folder: Path, name: str = "sas-p", **fields: Any) -> Path:
    hb.build(name, **(SIZES | fields)).save_pretrained(folder)
    return folder / "README.md"


def code_of(card: Path) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", card.read_text(encoding="utf-8"), flags=re.DOTALL)
    return code


def run_card(card: Path) -> str:
    """What the card's Python prints, in a process that does nothing else."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code_of(card)],
        cwd=card.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the tests find the package where this one did, under test of mutants too."""
    monkeypatch.setenv("PYTHONPATH", str(Path(hb.__file__).parents[1]))


@pytest.mark.slow  # a new interpreter; the code of other cards runs every day
def test_the_card_loads_the_model_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert run_card(saved(tmp_path)).strip() == "torch.Size([1, 1, 29])"


HEADS = {
    "masked-lm": ("fill-mask", (1, 1, 29)),
    "classification": ("text-classification", (1, 2)),
    "trunk": ("feature-extraction", (1, 1, 16)),
}


@pytest.mark.parametrize("task", HEADS)
def test_the_card_loads_every_head(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, (tag, shape) = tmp_path / "README.md", HEADS[task]
    if task == "trunk":
        HessblocksModel(hb.build("sas", **SIZES).config).save_pretrained(tmp_path)
    else:
        saved(tmp_path, task=task)
    assert ModelCard.load(card).data.pipeline_tag == tag
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(compile(code_of(card), str(card), "exec"), found)
    assert found["output"][0].shape == shape


def test_the_card_says_what_the_model_is(tmp_path: Path) -> None:
    card = saved(tmp_path, "pre-ln", key_value_heads=2)
    head = ModelCard.load(card).data
    assert (head.library_name, head.tags, head.license) == (
        "hessblocks",
        ["hessblocks", "pre-ln"],
        None,
    )
    rows = dict(re.findall(r"^\| (\w.*) \| (.*) \|$", card.read_text(), flags=re.MULTILINE))
    model = hb.build("pre-ln", key_value_heads=2, **SIZES)
    assert rows["parameters"] == f"{model.num_parameters():,}"
    sizes = ("layers", "width", "attention heads", "heads of keys and values", "width of the MLP")
    assert [int(rows[name]) for name in sizes] == [2, 16, 4, 2, 64]
    assert "not known to hessblocks" in card.read_text()
    assert "hf upload" in card.read_text()


def test_a_card_of_a_person_is_left_alone(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text(OWN)
    saved(tmp_path)
    assert card.read_text() == OWN


def test_our_card_follows_the_model_until_it_is_edited(tmp_path: Path) -> None:
    card = saved(tmp_path, "sas")
    saved(tmp_path, "pre-ln")
    assert "# pre-ln, 2 layers" in card.read_text()
    edited = card.read_text().replace("tags:", "license: mit\ntags:")
    card.write_text(edited)
    saved(tmp_path, "sas")
    assert card.read_text() == edited


@pytest.mark.parametrize("there", [b"\xff\xfe", None], ids=["no text", "a folder"])
def test_what_cannot_be_read_is_not_ours(tmp_path: Path, there: bytes | None) -> None:
    card = tmp_path / "README.md"
    card.mkdir() if there is None else card.write_bytes(there)
    saved(tmp_path)
    assert card.is_dir() if there is None else card.read_bytes() == there


NASTY = "a|b\n---\nlicense: mit\n# *x* <script>[y](z) \x1b[2J: `'\""


def test_names_do_not_act_in_the_card(tmp_path: Path) -> None:
    model: PreTrainedModel = hb.build("sas", **SIZES)
    model.config.preset = NASTY
    write_card(tmp_path, model, {"data": NASTY})
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    begin, _, body = text.removeprefix("---\n").partition("\n---\n")
    head = yaml.safe_load(begin)
    assert head["tags"] == ["hessblocks", NASTY]
    assert "license" not in head
    assert "\x1b" not in text
    assert "\n---\nlicense" not in body
    assert not re.search(r"(?<!\\)(<script|\[y|\*x|a\|)", body)


MODULE = """
from dataclasses import dataclass
from torch import nn
from hessblocks.blocks.norms import Norm

@dataclass(frozen=True, kw_only=True)
class Layer(Norm, kind="card-layer"):
    def build(self, width):
        return nn.LayerNorm(width)
"""


def test_a_card_names_the_module_of_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "card_parts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    card, shape = tmp_path / "model" / "README.md", tmp_path / "shape"

    def save() -> None:
        import card_parts  # type: ignore[import-not-found]

        norm = card_parts.Layer()
        saved(card.parent, "pre-ln", norm=norm, final_norm=norm)

    def run() -> None:
        assert "card_parts" not in sys.modules
        os.chdir(card.parent)
        found: dict[str, Any] = {}
        exec(compile(code_of(card), str(card), "exec"), found)
        shape.write_text(str(found["output"][0].shape))

    for work in (save, run):
        process = in_process_of_its_own(work)
        process.join(600)
        assert process.exitcode == 0
    assert card.read_text().count("import card_parts") == 1
    assert shape.read_text() == "torch.Size([1, 1, 29])"


def test_only_the_main_process_writes_a_card(tmp_path: Path) -> None:
    hb.build("sas", **SIZES).save_pretrained(tmp_path, is_main_process=False)
    assert not (tmp_path / "README.md").exists()


class Hub:
    """The Hugging Face hub as far as `push_to_hub` asks it."""

    repo_id = "me/sas"

    def create_repo(self, *_: object, **__: object) -> "Hub":
        return self


def test_a_push_keeps_the_card_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, sent = saved(tmp_path), []
    card.write_text(card.read_text().replace("tags:", "license: mit\ntags:"))
    there = ModelCard.load(card)
    monkeypatch.setattr("transformers.utils.hub.hf_api", Hub)
    monkeypatch.setattr("transformers.utils.hub.ModelCard.load", lambda *_, **__: there)
    monkeypatch.setattr(
        PreTrainedModel,
        "_upload_modified_files",
        lambda _, folder, *__, **___: sent.append(ModelCard.load(Path(folder, "README.md"))),
    )
    hb.build("sas", **SIZES).push_to_hub("me/sas")
    assert [str(one) for one in sent] == [str(there)]


@pytest.mark.parametrize(
    ("task", "context", "beside", "line"),
    [
        ("causal-lm", 16, True, "tokens = model.generate(**text, max_new_tokens=8)"),
        ("causal-lm", 15, True, "print(model(**text)[0].shape)"),
        ("masked-lm", 16, True, "print(model(**text)[0].shape)"),
        ("causal-lm", 16, False, "output = model(input_ids=torch.tensor([[0]]))"),
    ],
)
def test_the_card_generates_text_where_there_is_a_tokenizer_and_room(
    tmp_path: Path, task: str, context: int, beside: bool, line: str
) -> None:
    if beside:
        (tmp_path / "tokenizer.json").write_text("{}")
    write_card(tmp_path, hb.build("sas", task=task, **{**SIZES, "context": context}), {})
    assert line in code_of(tmp_path / "README.md").splitlines()
