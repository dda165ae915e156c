"""`hessblocks quantise` on a tiny Llama: the file, its page, another size, going on, bad input."""

import csv
import json
import random
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

import hessblocks as hb
from hessblocks import export, inspection
from hessblocks.bill import bill as bills
from hessblocks.cli.app import main
from hessblocks.inspection import pricing, quantising
from hessblocks.report.pretrained_pages import quantise_headline
from hessblocks.storage import read_object
from tests.cli.helpers import Shell, sentence
from tests.models.gguf_files import tiny_llama, write
from tests.pictures import empty_pictures

gguf = pytest.importorskip("gguf")
pytest.importorskip("libgguf")
FEW = ["--sequences", "8", "--tokens", "16", "--samples", "8", "--check", "6"]
MIX = ["--size-of", "IQ4_NL"]


@pytest.fixture(autouse=True)
def _blank(blank: None) -> None:
    """No test looks at pictures."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a text, and out/ and model.gguf as the command left them."""
    here = tmp_path_factory.mktemp("quantise")
    model = tiny_llama()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.ndim == 2 else 1)
    write(model, str(here / "tiny.gguf"))
    letters = random.Random(0)
    (here / "text.txt").write_text("".join(letters.choices("abcdefghij", k=4000)))
    with pytest.MonkeyPatch.context() as patch:
        empty_pictures(patch)
        assert main([*words(here), *MIX, "--json"]) == 0
    return here


def words(place: Path, file: str = "model.gguf", out: str = "out") -> list[str]:
    given = ["quantise", place / "tiny.gguf", place / file, "--data", place / "text.txt"]
    return [*map(str, given), *FEW, "--out", str(place / out)]


def rows(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def test_the_file_has_the_mixs_size_and_costs_less(place: Path) -> None:
    found = rows(place / "out" / "files.csv")
    own, mixed = found["this file"], found["IQ4_NL"]
    assert int(own["bytes"]) <= int(mixed["bytes"])
    assert float(own["forecast"]) < float(mixed["forecast"])
    stored = sum(int(t.n_bytes) for t in gguf.GGUFReader(place / "model.gguf").tensors)
    assert stored == int(own["bytes"])
    summary = json.loads((place / "out" / "summary.json").read_text())
    assert summary["size"] == (place / "model.gguf").stat().st_size


def test_weights_and_kl_are_those_that_are_reported(place: Path) -> None:
    model, tokenizer = hb.load(place / "tiny.gguf")
    again, _ = hb.load(place / "model.gguf")
    with (place / "out" / "allocation.csv").open(newline="") as file:
        chosen = {row["place"]: row["how"] for row in csv.DictReader(file)}
    tensors = {t.name: t.tensor_type.name for t in gguf.GGUFReader(place / "model.gguf").tensors}
    assert {f"gguf:{kind}" for kind in tensors.values()} - {"gguf:F32"} == set(chosen.values())
    settings = quantising.make(quantising.QuantisingSettings, {
        "size_of": "IQ4_NL", "sequences": 8, "tokens": 16, "check": 6,
    })  # fmt: skip
    subject = quantising.Subject(name="tiny", model=model, tokenizer=tokenizer)
    texts = quantising.documents_of(place / "text.txt")
    _, other = pricing.drawn_batches(subject, texts, settings, 6)
    with torch.no_grad():
        before, after = (
            one(other).logits[:, :-1].double().log_softmax(-1) for one in (model, again)
        )
    kl = float((before.exp() * (before - after)).sum(-1).mean())
    assert kl == pytest.approx(
        float(rows(place / "out" / "files.csv")["this file"]["measured"]), rel=1e-6
    )


def test_a_file_that_costs_more_than_was_forecast_says_so(place: Path) -> None:
    summary = read_object(place / "out" / "summary.json")
    (file, *_) = summary["files"]
    file |= {"forecast": 1e-5, "forecast_error": 1e-6, "measured": 5e-5, "measured_error": 1e-6}
    assert "Trust what is measured: it is 5 times the forecast." in quantise_headline(summary)
    file |= {"measured_error": 3e-5}
    assert not [said for said in quantise_headline(summary) if said.startswith("Trust")]


def test_the_page_says_three_numbers_and_the_neighbours(shell: Shell, place: Path) -> None:
    page = (place / "out" / "report.html").read_text()
    for said in ("forecast", "measured", "Standard files of llama.cpp beside it", "perplexity"):
        assert said in page
    files, summary = rows(place / "out" / "files.csv"), (place / "out" / "summary.json").read_text()
    share = float(files["this file"]["measured"]) / float(files["IQ4_NL"]["measured"])
    assert f"of which this file has {share:.2f}" in page
    counts = json.loads(summary)["counts"]
    others = re.findall(
        r"(\d+) at gguf", page[page.index("other weights: ") :].partition("</p>")[0]
    )
    assert sum(map(int, others)) == sum(counts.values()) - 1  # but the embedding
    assert "types.txt" in page
    shown, folded = page.partition("This file and others")[2].split("<details", 1)
    names = re.findall(r'<th scope="row">([^<]*)</th>', shown)
    assert len(names) == 10
    assert names[0] == "this file"
    assert names[1] == "IQ4_NL"  # of the nearest size
    assert "Q8_0" in folded
    lines = (place / "out" / "types.txt").read_text().splitlines()
    tensors = gguf.GGUFReader(place / "model.gguf").tensors
    stored = {t.name: t.tensor_type.name for t in tensors if len(t.shape) > 1}
    assert read_as_llama_quantize(lines, [*stored]) == stored
    assert read_as_llama_quantize(lines, ["own.token_embd.weight"]) == {}  # whole names alone
    assert shell("report", place / "out").status == 0


def read_as_llama_quantize(lines: list[str], names: list[str]) -> dict[str, str]:
    """As llama.cpp does: words in lower case, and the first pattern that is found in a name."""
    pairs = [line.lower().partition("=") for line in lines]
    found = {}
    for name in names:
        kinds = [kind.upper() for pattern, _, kind in pairs if re.search(pattern, name)]
        found |= {name: kinds[0]} if kinds else {}
    return found


def test_again_costs_nothing_and_another_size_no_samples(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(place / "out", tmp_path / "out")
    monkeypatch.setattr(bills, "Diagonal", None)
    outcome = shell(*words(place), *MIX)
    assert outcome.status == 0, outcome.errors
    again = [*words(place, str(tmp_path / "other.gguf"))[:-1], out]
    outcome = shell(*again, "--bits", "9")
    assert outcome.status == 0, outcome.errors
    first = out / "report-model.gguf.html"
    assert first.read_bytes() == (place / "out" / "report.html").read_bytes()
    assert f"the page of {place / 'model.gguf'} is now {first}" in outcome.errors
    assert "other.gguf" in (out / "report.html").read_text()
    size = (tmp_path / "other.gguf").stat().st_size
    assert 8 * size <= 9 * tiny_llama().num_parameters()
    outcome = shell(*again[:2], tmp_path / "third.gguf", *again[3:], "--nats", "0.001")
    assert outcome.status == 0, outcome.errors
    assert float(rows(out / "files.csv")["this file"]["forecast"]) <= 0.001
    assert (tmp_path / "third.gguf").stat().st_size < size


def test_pages_of_files_of_one_name_in_several_folders_are_all_kept(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(place / "out", tmp_path / "out")
    pages = [(out / "report.html").read_text()]
    given = words(place, out=str(out))
    for size in ("8", "8.5", "9"):
        (tmp_path / size).mkdir()
        monkeypatch.chdir(tmp_path / size)
        given[2] = "model.gguf"
        outcome = shell(*given, "--bits", size)
        assert outcome.status == 0, outcome.errors
        pages.append((out / "report.html").read_text())
    names = ["report-model.gguf.html", "report-model.gguf-2.html", "report-model.gguf-3.html"]
    assert [(out / name).read_text() for name in [*names, "report.html"]] == pages
    Path("model.gguf").unlink()
    given[2] = "../9/model.gguf"  # the same file
    assert shell(*given, "--bits", "9").status == 0
    assert len([*out.glob("report*.html")]) == 4


def test_a_simplified_model_is_measured_against_the_model_it_was_made_from(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    """One file holds both changes: what was removed, and the rounding."""
    source, text = place / "tiny.gguf", place / "text.txt"
    few = ["--sequences", "4", "--fitted", "8", "--tokens", "16", "--steps", "0"]
    smaller = ["simplify", source, "--data", text, "--even", "--save", "0.1", *few]
    outcome = shell(*smaller, "--out", tmp_path / "smaller")
    assert outcome.status == 0, outcome.errors
    file = tmp_path / "both.gguf"
    call = ["quantise", tmp_path / "smaller" / "model", file, "--data", text, *FEW, *MIX]
    call = [*call, "--out", tmp_path / "out"]
    assert shell(*call).status == 0
    outcome = shell(*call, "--original", source)  # the file is already there
    assert outcome.status == 0, outcome.errors
    original, tokenizer = hb.load(source)
    settings = quantising.make(quantising.QuantisingSettings, {
        "size_of": "IQ4_NL", "sequences": 8, "tokens": 16, "check": 6,
    })  # fmt: skip
    subject = quantising.Subject(name="tiny", model=original, tokenizer=tokenizer)
    _, windows = pricing.drawn_batches(subject, quantising.documents_of(text), settings, 6)
    with torch.no_grad():
        before, smaller_model, both = (
            model(windows).logits[:, :-1].double().log_softmax(-1)
            for model in (original, hb.load(tmp_path / "smaller" / "model")[0], hb.load(file)[0])
        )
    summary = read_object(tmp_path / "out" / "summary.json")
    for key, after in (("model", smaller_model), ("measured", both)):
        kl = float((before.exp() * (before - after)).sum(-1).mean())
        assert kl == pytest.approx(summary["original"][key], rel=1e-4), key
        assert summary["original"][f"{key}_error"] > 0
    assert "Against tiny, from which smaller was made: forecast" in outcome.output
    again = shell(*call, "--original", source)
    assert again.status == 0
    assert "nothing is measured again" in again.errors
    # a vocabulary of the same size with other words
    other = shutil.copytree(tmp_path / "smaller" / "model", tmp_path / "other")
    (other / "seal.json").unlink()
    words_of = json.loads((other / "tokenizer.json").read_text())
    ids = words_of["model"]["vocab"]
    first, second = sorted(ids, key=ids.get)[5:7]
    ids[first], ids[second] = ids[second], ids[first]
    (other / "tokenizer.json").write_text(json.dumps(words_of))
    outcome = shell(*call, "--original", other)
    assert outcome.status == 2
    assert "--original: " in sentence(outcome)
    assert "vocabulary" in sentence(outcome)


def test_an_original_that_has_changed_is_measured_again(place: Path, tmp_path: Path) -> None:
    """A name alone does not tell that what lies there is as it was."""
    out, original = shutil.copytree(place / "out", tmp_path / "out"), tmp_path / "original"
    call = [str(place / "tiny.gguf"), place / "text.txt", tmp_path / "own.gguf"]
    options = {"size_of": "IQ4_NL", "sequences": 8, "tokens": 16, "samples": 8, "check": 6}
    model, tokenizer = hb.load(place / "tiny.gguf")
    tokenizer.save_pretrained(original)
    found = []
    for scale in (1, 2):
        model.model.embed_tokens.weight.data *= scale
        model.save_pretrained(original)
        again = hb.inspection.measure_quantise(*call, out=out, original=str(original), **options)
        found.append(again["original"]["model"])
    assert found[0] < 1e-6 < found[1]


def test_an_original_that_cannot_be_compared_is_refused_before_anything_is_written(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    model, tokenizer = hb.load(place / "tiny.gguf")

    def refused(folder: Path) -> str:
        given = [*words(place, str(tmp_path / "own.gguf"))[:-1], tmp_path / "out"]
        outcome = shell(*given, *MIX, "--original", folder)
        assert outcome.status == 2
        assert not (tmp_path / "own.gguf").exists()
        assert not (tmp_path / "out").exists()
        return sentence(outcome)

    model.save_pretrained(tmp_path / "other")
    assert "--original: other has no tokenizer" in refused(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    model.resize_token_embeddings(model.config.vocab_size + 3)  # padded to a multiple
    model.save_pretrained(tmp_path / "other")
    assert "another size of the vocabulary than tiny" in refused(tmp_path / "other")
    short = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=len(tokenizer), n_positions=8)
    GPT2LMHeadModel(short).save_pretrained(tmp_path / "short")
    tokenizer.save_pretrained(tmp_path / "short")
    assert "longer than the context of 8 of short" in refused(tmp_path / "short")


def test_each_size_has_a_folder_by_default_and_all_share_the_samples(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [*words(place, str(tmp_path / "x.gguf"))[:-2]]
    assert shell(*given, *MIX).status == 0
    monkeypatch.setattr(bills, "Diagonal", None)
    page = Path("runs/quantise-tiny-IQ4_NL/report.html").read_bytes()
    given[2] = str(tmp_path / "y.gguf")
    outcome = shell(*given, "--bits", "9")
    assert outcome.status == 0, outcome.errors
    assert Path("runs/quantise-tiny-IQ4_NL/report.html").read_bytes() == page
    assert "y.gguf" in Path("runs/quantise-tiny-9-bits/report.html").read_text()
    for name, size in (("x.gguf", ["--size-of", "iq4_nl"]), ("y.gguf", ["--bits", "9.0"])):
        given[2] = str(tmp_path / name)
        assert "nothing is measured again" in shell(*given, *size).errors


def test_a_size_is_named_in_lower_or_upper_case(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bills, "Diagonal", None)
    out = shutil.copytree(place / "out", tmp_path / "out")
    outcome = shell(*words(place, str(tmp_path / "six.gguf"))[:-1], out, "--size-of", "q6_k")
    assert outcome.status == 0, outcome.errors
    found = rows(out / "files.csv")
    assert float(found["Q6_K"]["measured"]) > 0
    fallback = "rows are no multiple of 256; as in llama.cpp, 15 in Q8_0, not Q6_K"
    for said in (outcome.errors, outcome.output, (out / "report.html").read_text()):
        assert fallback in " ".join(said.split())
    assert 0 <= int(found["Q6_K"]["bytes"]) - int(found["this file"]["bytes"]) < 1e4


def test_an_equal_call_reads_its_folder_and_one_with_any_other_file_is_measured(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = shutil.copytree(place, tmp_path / "here", ignore=shutil.ignore_patterns("out", "model*"))
    given, out = [*words(here), *MIX], here / "out"
    first, measured = shell(*given), []

    assert len(rows(out / "files.csv")) == 18
    assert "8 more rows on the page" in first.output
    assert len(re.findall(r"MB +\d", first.output)) == 10

    def measure(**arguments: Any) -> dict[str, Any]:
        measured.append(arguments)
        return {**read_object(out / "summary.json"), "out": str(out)}

    monkeypatch.setattr(inspection, "measure_quantise", measure)
    assert shell(*given).output.splitlines()[:-3] == first.output.splitlines()[:-3]  # but seconds
    assert not measured
    for name in ("text.txt", "tiny.gguf", "out/report.html", "out/files.csv"):
        content = (here / name).read_bytes()
        (here / name).write_bytes(content + b" ")
        assert shell(*given).status == 0
        assert measured.pop()["source"] == str(here / "tiny.gguf"), name
        (here / name).write_bytes(content)
    assert shell(*given, "--seed", "1").status == 0
    assert measured.pop()
    assert "exists already" in sentence(shell(*given[:-2], "--bits", "9"))  # refused at once
    content = (here / "model.gguf").read_bytes()
    (here / "model.gguf").write_bytes(content + b" ")
    assert "exists already" in sentence(shell(*given))
    (here / "model.gguf").write_bytes(content)
    assert not measured
    (out / "finished.json").write_text("{")
    assert shell(*given).status == 0
    assert measured


def test_an_equal_call_loads_no_model(place: Path, tmp_path: Path) -> None:
    given = [*words(place, str(tmp_path / "own.gguf"))[:-1], str(tmp_path / "out"), *MIX]
    script = "import sys; from hessblocks.cli import main; print(main(sys.argv[1:]), *sys.modules)"
    assert main(given) == 0
    done = subprocess.run([sys.executable, "-c", script, *given], capture_output=True, text=True)
    status, *modules = done.stdout.splitlines()[-1].split()
    assert status == "0"
    assert "nothing is measured again" in done.stderr
    assert not {"transformers", "libgguf", "matplotlib"} & {*modules}


def test_a_call_that_was_stopped_after_the_file_goes_on_and_another_file_is_left_alone(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, file = tmp_path / "out", tmp_path / "own.gguf"
    given = [*words(place, str(file))[:-1], out, *MIX]
    assert shell(*given).status == 0
    summary = (out / "summary.json").read_text()
    (out / "summary.json").unlink()  # as of a call that was stopped while it measured
    monkeypatch.setattr(bills, "Diagonal", None)
    outcome = shell(*given)
    assert outcome.status == 0, outcome.errors
    before, after = (
        json.loads(text)["files"][0] for text in (summary, (out / "summary.json").read_text())
    )
    assert after["bytes"] == before["bytes"]
    assert after["measured"] == pytest.approx(before["measured"])
    file.write_bytes(bytes(file.stat().st_size))
    outcome = shell(*given)
    assert outcome.status == 2
    assert "exists already" in sentence(outcome)
    inside = shell(*words(place, str(tmp_path / "x.gguf"))[:-1], tmp_path / "x.gguf" / "out", *MIX)
    assert inside.status == 2
    assert "lies in FILE" in sentence(inside)


def test_a_stopped_call_for_another_file_does_not_end_with_the_numbers_of_the_first(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    out, calls = tmp_path / "out", []
    for name, size in (("first.gguf", "Q4_0"), ("second.gguf", "Q8_0")):
        calls.append([*words(place, str(tmp_path / name))[:-1], out, "--size-of", size])
    assert shell(*calls[0]).status == 0
    with monkeypatch.context() as patch:
        patch.setattr(hb.Bill, "together", stop)
        assert shell(*calls[1]).status != 0
    outcome = shell(*calls[1])
    assert outcome.status == 0, outcome.errors
    summary = read_object(out / "summary.json")
    assert summary["file"] == str(tmp_path / "second.gguf")
    assert summary["files"][0]["bits"] > 8


def test_what_no_sample_reaches_does_not_end_the_call_after_the_file(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    short = ["2" if word == "16" else word for word in words(place, str(tmp_path / "x.gguf"))]
    outcome = shell(*short[:-1], tmp_path / "out", "--bits", "9", "--json")
    assert outcome.status == 0, outcome.errors
    for text in (outcome.output, (tmp_path / "out" / "summary.json").read_text()):
        json.loads(text, parse_constant=pytest.fail)  # NaN is no JSON
    assert (tmp_path / "out" / "report.html").exists()


def test_a_file_that_differs_from_what_was_priced_is_reported(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*given: Any) -> Any:
        weights = read(*given)
        weights["model.layers.1.mlp.up_proj.weight"][3, 5] += 1e-6
        return weights

    read = export.read_gguf
    monkeypatch.setattr(export, "read_gguf", other)
    out = shutil.copytree(place / "out", tmp_path / "out")
    outcome = shell(*words(place, str(tmp_path / "bad.gguf"))[:-1], out, "--bits", "9")
    assert outcome.status == 1
    assert "up_proj.weight reads back differently than priced" in sentence(outcome)


@pytest.mark.parametrize(
    ("file", "more", "said"),
    [
        ("x.gguf", [], "--size-of: give one of --size-of, --bytes, --bits, --nats"),
        ("x.gguf", ["--bits", "5", "--nats", "1"], "--size-of: give only one of"),
        ("x.gguf", ["--bytes", "90X"], "--bytes: expected a size such as 90M, got '90X'"),
        ("x.gguf", ["--bytes", "1k"], r"--bytes: expected \S+M to \S+M .* got 0.001M"),
        ("x.gguf", ["--bits", "16"], "--bits: expected .* in these formats"),
        ("x.gguf", ["--nats", "1e-9"], "nats: expected at least"),
        ("x.gguf", ["--size-of", "Q9"], "--size-of: .*'Q9'.*IQ4_NL"),
        ("x.bin", MIX, r"FILE: --to gguf writes a name that ends in .gguf"),
        ("x.gguf", ["--bits", "8", "--to", "torchao"], "FILE: --to torchao writes a folder"),
        ("x", [*MIX, "--to", "torchao"], "--size-of: 'IQ4_NL' is unknown. Known: torchao:8, bf16"),
        ("text.txt.gguf", MIX, "exists already; remove it"),
    ],
)
def test_what_cannot_be_written_is_refused_in_a_sentence(
    shell: Shell, place: Path, tmp_path: Path, file: str, more: list[str], said: str
) -> None:
    (place / "text.txt.gguf").touch()
    out = shutil.copytree(place / "out", tmp_path / "out")
    outcome = shell(*words(place, file)[:-1], out, *more)
    assert outcome.status == 2, outcome.errors
    assert re.search(said, sentence(outcome)), outcome.errors
    assert not (place / "x.gguf").exists()


def saved(place: Path, folder: Path, model: Any) -> str:
    """A model with the tokeniser of the GGUF file, as a folder."""
    model.save_pretrained(folder)
    hb.load(place / "tiny.gguf")[1].save_pretrained(folder)
    return str(folder)


@pytest.mark.bad_input
def test_models_that_nothing_fits_or_whose_names_are_unknown_are_refused(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    sizes = {"vocab_size": 31, "num_hidden_layers": 1, "num_attention_heads": 2}
    narrow = LlamaConfig(hidden_size=20, intermediate_size=40, **sizes)
    other = GPTNeoXConfig(hidden_size=32, intermediate_size=64, **sizes)
    for model, said in (
        (LlamaForCausalLM(narrow), r"--to gguf: none of its formats fits rows of \[20, 40\]"),
        (GPTNeoXForCausalLM(other), "llama.cpp's names for a model of the kind gpt_neox are not"),
    ):
        given = words(place, str(tmp_path / "x.gguf"), str(tmp_path / "out"))
        given[1] = saved(place, tmp_path / type(model).__name__, model)
        outcome = shell(*given, *MIX)
        assert outcome.status == 2, outcome.errors
        assert re.search(said, sentence(outcome)), outcome.errors
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.bad_input
def test_a_full_disk_is_a_sentence_and_leaves_no_file(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file may grow beyond a few bytes while the library writes, so the error is its own."""

    def limited(write: Any) -> Any:
        def run(*given: Any, **more: Any) -> Any:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (7, hard))
            try:
                return write(*given, **more)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        return run

    folder = tmp_path / "files"
    folder.mkdir()
    write = gguf.GGUFWriter.write_tensors_to_file
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", limited(write))
    out = shutil.copytree(place / "out", tmp_path / "out")
    outcome = shell(*words(place, str(folder / "x.gguf"))[:-1], out, "--bits", "9")
    assert outcome.status == 1
    assert "x.gguf: cannot be written (" in sentence(outcome)
    monkeypatch.setattr(export.folders, "save_file", limited(export.folders.save_file))
    with pytest.raises(hb.RunError, match=r"folder: cannot be written \("):
        export.write_folder(folder / "folder", tiny_llama(), None, {}, {}, "compressed-tensors")
    assert not [*folder.iterdir()]


def test_a_folder_of_integers_has_one_format_for_fused_weights(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors")
    torch.manual_seed(0)
    model = tiny_llama()
    config = model.config
    config.hidden_size, config.intermediate_size, config.head_dim = 64, 128, 32
    saved(place, tmp_path / "model", type(model)(config))
    given = words(place)
    given[1], given[2] = str(tmp_path / "model"), str(tmp_path / "folder")
    outcome = shell(*given[:-1], tmp_path / "out", "--to", "compressed-tensors", "--nats", "1e-5")
    assert outcome.status == 0, outcome.errors
    assert "Weights that runtimes fuse have one format" in outcome.output
    settings = json.loads((tmp_path / "folder" / "config.json").read_text())["quantization_config"]
    groups = settings["config_groups"].values()
    bits = {name: one["weights"]["num_bits"] for one in groups for name in one["targets"]}
    for layer in range(2):
        found = {bits[f"model.layers.{layer}.self_attn.{n}_proj"] for n in "qkv"}
        assert len(found) == 1
    assert shell("report", tmp_path / "out").status == 0
