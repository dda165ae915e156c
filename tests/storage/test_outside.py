"""What a file from outside may say: JSON within bounds, names that stay inside, sizes that fit the
weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AlbertConfig, AlbertModel, GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from hessblocks.errors import ArgumentError, HessblocksError, RunError
from hessblocks.models.saved import Saved
from hessblocks.storage import load_curvature, load_results
from hessblocks.storage.files import DEEPEST, parse_json, read_object, stays_inside
from hessblocks.storage.manifest import check_manifest, remembered_in
from hessblocks.storage.model_folder import SPARE, check_model_folder, weight_files
from hessblocks.storage.tables import fault_in_lines, read_lines
from hessblocks_studies.gallery import read_figure
from tests.report.folders import Folder

DEEP = "[" * 100_000 + "]" * 100_000
OBJECTS = '{"a":' * 100_000 + "1" + "}" * 100_000
HOSTILE = {
    "deep": f'{{"a": {DEEP}}}',
    "objects": OBJECTS,
    "unclosed": '{"a": ' + "[" * 100_000,
    "long": '{"a": ' + "9" * 5000 + "}",
    "negative": '{"a": -' + "1" * 101 + "}",
    "text": "\\",
}


def test_what_would_break_a_reader_is_not_json() -> None:
    for text in HOSTILE.values():
        with pytest.raises(json.JSONDecodeError):
            parse_json(text)


def test_what_is_within_the_bounds_is_read_as_ever() -> None:
    deepest = "[" * DEEPEST + "]" * DEEPEST
    for text in (deepest, "1e999", str(10**99), '{"a": [1, -2.5, null, "\\udcff"]}', '"[[["'):
        assert parse_json(text) == json.loads(text)
    with pytest.raises(json.JSONDecodeError, match=f"nested more than {DEEPEST} deep"):
        parse_json(f"[{deepest}]")


READERS: dict[str, Callable[[Path], object]] = {
    "metrics.jsonl": lambda path: load_results(path.parent),
    "config.json": lambda path: load_results(path.parent),
    "environment.json": lambda path: load_results(path.parent),
    "figure.json": read_figure,
    "any.json": read_object,
}


@pytest.mark.parametrize("name", READERS)
def test_each_reader_says_it_in_a_sentence(tmp_path: Path, name: str) -> None:
    Folder(layers=1).write(tmp_path)
    path = tmp_path / name
    for text in HOSTILE.values():
        path.write_text(text + "\n")
        with pytest.raises(HessblocksError, match=path.name) as caught:
            READERS[name](path)
        assert len(str(caught.value)) < 500


def test_a_run_goes_on_before_such_a_line_and_without_such_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = {"preset": "sas", "seed": 0, "split": "train", "step": 1, "seconds": 1.0, "loss": None}
    for text in HOSTILE.values():
        path.write_text(f"{json.dumps(whole)}\n{text}\n{json.dumps(whole)}\n")
        assert read_lines(path) == [whole]
        assert fault_in_lines(path, torn=False) == "its line 2 is damaged"
        (tmp_path / "seal.json").write_text(text)
        assert remembered_in(tmp_path) == {}
        assert check_manifest(tmp_path) == "has a damaged seal.json"


@pytest.mark.parametrize(
    "progress", [{"lines": 5}, {"seconds": "long"}, {"step": None}, {"peak_memory": []}]
)
def test_progress_of_another_form_is_none(tmp_path: Path, progress: object) -> None:
    (tmp_path / "seal.json").write_text(json.dumps({"files": {}, "progress": progress}))
    assert remembered_in(tmp_path) == {}


@pytest.mark.parametrize(
    "line",
    [
        {"loss": 1.0},
        {"preset": "sas", "seed": 0, "split": "train", "step": "x", "seconds": 1, "loss": 1},
        {"preset": "sas", "seed": 0, "split": "train", "step": 1, "seconds": [], "loss": 1},
        {
            "preset": "sas",
            "seed": 0,
            "split": "train",
            "step": float("inf"),
            "seconds": 1,
            "loss": 1,
        },
    ],
)
def test_a_line_that_lacks_what_every_line_says_is_damaged(tmp_path: Path, line: object) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert read_lines(path) == []
    assert fault_in_lines(path, torn=True) == "its line 1 is damaged"


OUTSIDE = ["../../victim", "..", "/etc", "a/../../b", "x\0y", "n" * 300, "\ud800", 7, None, ["x"]]


def test_a_block_of_a_folder_is_no_path_out_of_it(tmp_path: Path) -> None:
    """A neighbour's rows lie where the name leads to."""
    neighbour = Folder(presets=("sas",), layers=1)
    neighbour.write(tmp_path / "victim-seed0")
    neighbour.metrics, neighbour.rows = [], []
    for number, name in enumerate(OUTSIDE):
        assert not stays_inside(name), name
        neighbour.config["presets"] = [name]
        folder = neighbour.write(tmp_path / f"sent{number}")
        (folder / "runs").mkdir()
        with pytest.raises(RunError, match=r"config.json: `presets`: expected names of blocks"):
            load_results(folder)


def test_any_other_name_stays() -> None:
    for name in ("sas", "x[/b]", "a..b", "..x", "</b>", "\udcff", "x\n", ".hidden"):
        assert stays_inside(name), name


@pytest.mark.parametrize(
    "spoilt", [{"groups": None}, {"model": []}, {"curvature": {}}, {"groups": [1]}]
)
def test_the_request_of_curvature_is_read_in_one_form(
    tmp_path: Path, spoilt: dict[str, object]
) -> None:
    config = {
        "command": "curvature",
        "groups": ["a"],
        "model": {"name": "x"},
        "curvature": {"parts": ["full"]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "results.csv").write_text(
        "preset,seed,stage,quantity,layer,group,role,part,value,standard_error,method\n"
    )
    assert load_curvature(tmp_path).missing == ("a",)
    (tmp_path / "config.json").write_text(json.dumps(config | spoilt))
    with pytest.raises(RunError, match=r"config.json: expected `groups`"):
        load_curvature(tmp_path)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("models")
    hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=11, context=8).save_pretrained(
        top / "ours"
    )
    small = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=8)
    GPT2LMHeadModel(small).save_pretrained(top / "gpt2")
    shared = AlbertConfig(vocab_size=11, embedding_size=4, hidden_size=8, num_attention_heads=2,
        intermediate_size=8, num_hidden_layers=48, max_position_embeddings=8)  # fmt: skip
    AlbertModel(shared).save_pretrained(top / "albert")
    return top


@pytest.mark.parametrize("kind", ["ours", "gpt2", "albert"])
def test_a_model_whose_layers_fit_is_looked_at(models: Path, kind: str) -> None:
    check_model_folder(models / kind)
    assert Saved.at(str(models / kind)).config


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("ours", ["depth"]),
        ("gpt2", ["n_layer"]),
        ("albert", ["num_hidden_layers"]),
        ("gpt2", ["text_config", "num_hidden_layers"]),
        ("gpt2", ["num_local_experts"]),
        ("gpt2", ["vision", "depths"]),
    ],
)
def test_more_layers_than_the_weights_have_are_refused_before_they_are_made(
    models: Path, tmp_path: Path, kind: str, path: list[str]
) -> None:
    folder = Path(shutil.copytree(models / kind, tmp_path / kind))
    config = place = json.loads((folder / "config.json").read_text())
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = [2, 10**9] if path[-1] == "depths" else 10**9
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        RunError, match=rf"config.json: {path[-1]} is 1,000,000,000, more than the \d+ tensors"
    ):
        Saved.at(str(folder))


def test_a_vocabulary_larger_than_the_number_of_tensors_passes(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    sizes = {"vocab_size": 128_256, "hidden_size": 8192}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    check_model_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "hidden_size": -1}))
    with pytest.raises(RunError, match="hidden_size: expected a number from 0 on, got -1"):
        check_model_folder(tmp_path)


def test_some_layers_more_than_tensors_pass(tmp_path: Path) -> None:
    """Layers may share their weights."""
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    for layers, refused in ((SPARE + 1, False), (SPARE + 2, True)):
        (tmp_path / "config.json").write_text(json.dumps({"n_layer": layers}))
        if refused:
            with pytest.raises(RunError, match="n_layer"):
                check_model_folder(tmp_path)
        else:
            check_model_folder(tmp_path)


@pytest.mark.parametrize("listed", ["../x.safetensors", "/x", 3, None])
def test_an_index_names_weights_of_its_folder_alone(tmp_path: Path, listed: object) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": listed}} if listed else {"weight_map": []}))
    with pytest.raises(RunError, match="expected safetensors files of this folder"):
        weight_files(tmp_path)


def test_damaged_weights_are_left_to_their_reader(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"n_layer": 10**9}))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    check_model_folder(tmp_path)
    with pytest.raises(ArgumentError):
        Saved.at(str(tmp_path))
