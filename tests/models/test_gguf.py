"""Models in llama.cpp's format: small files written with its own package, read as any model is."""

import shutil

import pytest
import torch

import hessblocks as hb
from hessblocks.models import Saved
from tests.models.gguf_files import WORDS, tiny_llama, write


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    return write(model, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_gguf_file_gives_the_logits_of_the_model_that_was_written(model, file):
    found, _ = hb.load(file)
    ids = torch.arange(20).view(2, 10) % len(WORDS)
    with torch.no_grad():
        torch.testing.assert_close(found(ids).logits, model(ids).logits, atol=1e-5, rtol=0)


def test_the_tokeniser_is_the_one_that_the_file_holds(file):
    _, tokenizer = hb.load(file)
    ids = tokenizer("abcab", add_special_tokens=False)["input_ids"]
    assert [WORDS[one] for one in ids] == ["abc", "ab"]


def test_the_model_is_an_ordinary_one_that_can_be_saved_and_measured(file, tmp_path, capsys):
    model, tokenizer = hb.load(file)
    assert not capsys.readouterr().err  # no bar of transformers
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, _ = hb.load(tmp_path)
    ids = torch.arange(8)[None]
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    problem = hb.Problem(again, {"input_ids": ids}, loss="causal-lm")
    assert hb.Hessian(problem, hb.parameter_groups(again)["layers.1.attention.query"]).shape


def test_a_gguf_model_is_named_after_its_file(file):
    assert Saved.at(str(file)).name == "tiny"


def test_a_result_in_a_run_folder_is_named_after_the_run(file, tmp_path, monkeypatch):
    run = tmp_path / "simplify-tiny"
    model, _ = hb.load(file)
    for name in ("model", "model-0.15-even", "modelled"):
        model.save_pretrained(run / name)
        shutil.copy(file, run / f"{name}.gguf")
    (run / "config.json").write_text("{}")  # as of a model, in a folder or a cache
    assert Saved.at(str(run / "model")).name == Saved.at(str(run / "model.gguf")).name == "model"
    (run / "environment.json").write_text("{}")
    assert Saved.at(str(run)).name == "simplify-tiny"
    for ending in ("", ".gguf"):
        names = [Saved.at(str(run / f"model{more}{ending}")).name for more in ("", "-0.15-even")]
        assert names == ["simplify-tiny", "simplify-tiny-0.15-even"]
        assert Saved.at(str(run / f"modelled{ending}")).name == "modelled"
    monkeypatch.chdir(run / "model")
    assert Saved.at(".").name == "simplify-tiny"


def cut(file, path, share):
    whole = file.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    return path


@pytest.mark.parametrize("share", [0, 0.01, 0.5])
def test_a_file_that_is_cut_off_is_refused(file, tmp_path, share):
    with pytest.raises(hb.RunError, match=r"short\.gguf is damaged or not a GGUF file"):
        hb.load(cut(file, tmp_path / "short.gguf", share))


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "text.gguf").write_text("not a model " * 100)
    with pytest.raises(hb.RunError, match="damaged or not a GGUF"):
        hb.load(tmp_path / "text.gguf")


def test_an_unknown_architecture_is_refused_with_those_that_are_known(model, tmp_path):
    path = write(model, tmp_path / "other.gguf", kind="mysterious")
    with pytest.raises(hb.ArgumentError, match=r"'mysterious', which .* it reads .*llama"):
        hb.load(path)


def test_more_layers_than_tensors_are_refused_before_they_are_made(model, tmp_path):
    with pytest.raises(hb.RunError, match="names 24 layers"):
        hb.load(write(model, tmp_path / "deep.gguf", layers=24))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(hb.ArgumentError, match="is not a file"):
        hb.load(tmp_path / "none.gguf")


def test_without_the_package_it_says_what_to_install(file, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(hb.ArgumentError, match="pip install gguf"):
        hb.load(file)


def test_a_model_of_another_task_names_its_own(tmp_path):
    hb.build("pre-ln", depth=1, vocab_size=300, task="masked-lm").save_pretrained(tmp_path)
    with pytest.raises(hb.ArgumentError, match="its task is masked-lm"):
        hb.load(tmp_path)
    model, tokenizer = hb.load(tmp_path, task="masked-lm")
    assert type(model).__name__ == "HessblocksForMaskedLM"
    assert tokenizer is None
    with pytest.raises(hb.ArgumentError, match="task"):
        hb.load(tmp_path, task="translation")
