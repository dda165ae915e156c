"""`hessblocks price` on a tiny Llama: its files and page, going on, bad input."""

import copy
import csv
import importlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import hessblocks as hb
from hessblocks.cli.app import main
from hessblocks.data import Windows, documents_of, encoded
from hessblocks.errors import ArgumentError
from hessblocks.inspection import pricing
from hessblocks.inspection.subject import other_function
from hessblocks.progress import Progress
from hessblocks.report.pretrained_pages import price_headline
from hessblocks.settings import PricingSettings
from tests.cli.helpers import Outcome, Shell, sentence
from tests.models.gguf_files import SMOL, byte_level
from tests.pictures import empty_pictures

LETTERS = "abcdefghijklmnopqrstuvwxyz .\n"
FEW = ["--sequences", "6", "--tokens", "8", "--samples", "6"]
ASKED = ["--round", "3,4", "--prune", "0.25", "--allocate", "3.5", "--check", "3"]


def llama(folder: Path, seed: int = 0, width: int = 16, context: int = 16) -> Path:
    torch.manual_seed(seed)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"max_position_embeddings": context, "hidden_size": width}
    config = LlamaConfig(vocab_size=30, initializer_range=0.2, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    inner = Tokenizer(models.WordLevel({"<end>": 0} | {c: i + 1 for i, c in enumerate(LETTERS)}))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<end>", unk_token="<end>"
    ).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _blank(blank: None) -> None:
    """No test looks at pictures."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a text, and out/ as the command left it."""
    here = tmp_path_factory.mktemp("price")
    llama(here / "model")
    (here / "text.txt").write_text("".join(LETTERS[i * i * 7 % 29] for i in range(300)))
    with pytest.MonkeyPatch.context() as patch:
        empty_pictures(patch)
        assert main([*map(str, words(here, here / "out")), "--json"]) == 0
    return here


def words(place: Path, out: Path, *more: object) -> list[object]:
    data = ["--data", place / "text.txt"]
    return ["price", place / "model", *data, *FEW, *ASKED, "--out", out, *more]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(shell: Shell, place: Path, out: Path, *more: object) -> Outcome:
    return shell(*words(place, out, *more))


def test_every_number_is_that_of_the_library(place: Path) -> None:
    model, tokenizer = hb.load(place / "model")
    ids = encoded(tokenizer, documents_of(place / "text.txt"))
    drawn = Windows(ids, 8).drawn(12, 0)
    edits = hb.rounded(bits=3), hb.rounded(bits=4), hb.pruned(share=0.25)
    bill = hb.price(
        hb.Problem(model, [{"input_ids": rows} for rows in drawn[:6].split(1)]),
        hb.change_each(model, *edits),
        samples=6,
    )
    found = rows(place / "out" / "bill.csv")
    assert [row["name"] for row in found] == list(bill)
    assert len(found) == 3 * (2 * 7 + 1)
    for row in found:
        own = bill[row["name"]]
        for name in ("forecast", "diagonal", "full", "gradient"):
            assert float(row[name]) == pytest.approx(getattr(own, name).value, rel=1e-9)
            assert float(row[f"{name}_error"]) == pytest.approx(
                getattr(own, name).standard_error, rel=1e-9
            )
    allocation, other = bill.allocate(bits=3.5), {"input_ids": drawn[6:]}
    shared = rows(place / "out" / "allocation.csv")
    assert [float(row["bits"]) for row in shared] == [price.bits for price in allocation.choices]
    assert len(shared) == 15  # and the head
    checked = rows(place / "out" / "check.csv")
    assert [float(row["measured"]) for row in checked] == pytest.approx(
        [number.value for number in bill.check(3, other).measured], rel=1e-9
    )
    together = {row["name"]: row for row in rows(place / "out" / "together.csv")}
    assert list(together) == ["all, 3 bits", "all, 4 bits", "all, 0.25 pruned", "allocation"]
    measured = bill.check([allocation.names], other).measured[0]
    assert float(together["allocation"]["measured"]) == pytest.approx(measured.value, rel=1e-9)
    three = bill.sum(name for name in bill if name.endswith("3 bits")).forecast
    assert float(together["all, 3 bits"]["forecast"]) == pytest.approx(three.value, rel=1e-9)


def test_the_page_opens_with_the_answer(place: Path) -> None:
    page = (place / "out" / "report.html").read_text()
    costs = {
        row["name"]: row
        for row in json.loads((place / "out" / "summary.json").read_text())["together"]
    }
    first = page.partition('<p class="headline">')[2].partition("</p>")[0]
    assert first.startswith("At 3.")
    assert "on average the allocation is expected to cost" in first
    assert re.search("all matrices would cost .* at 3 bits", first)
    value = costs["all, 3 bits"]["forecast"]
    said = first.partition("would cost ")[2].partition(" ")[0]
    assert float(said) == pytest.approx(value, rel=0.5)
    assert "One at a time: 3 changes measured on held-out data" in page
    assert page.count('<img src="data:image/svg+xml') == 3
    assert "model.layers.1.mlp.down_proj.weight, 3 bits" in page


def test_the_same_call_goes_on_and_draws_nothing(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(place / "out", tmp_path / "out")
    for name in ("bill.csv", "report.html"):
        (out / name).unlink()
    monkeypatch.setattr(pricing, "price", None)
    monkeypatch.setattr(pricing, "_summary", None)  # nothing is measured again
    outcome = run(shell, place, out, "--json")
    assert outcome.status == 0, outcome.errors
    assert (out / "bill.csv").read_text() == (place / "out" / "bill.csv").read_text()
    assert (
        json.loads(outcome.output)["together"]
        == json.loads((place / "out" / "summary.json").read_text())["together"]
    )
    (out / "report.html").unlink()
    assert shell("report", out).status == 0
    assert (out / "report.html").exists()


@pytest.mark.slow
def test_bits_are_allocated_anew_from_the_same_samples(
    shell: Shell, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(place / "out", tmp_path / "out")
    monkeypatch.setattr(pricing, "price", None)
    outcome = run(shell, place, out, "--allocate", "3.2")
    assert outcome.status == 0, outcome.errors
    assert json.loads((out / "config.json").read_text())["allocate"] == 3.2
    before, now = (json.loads((one / "summary.json").read_text()) for one in (place / "out", out))
    assert now["bill"] == before["bill"]
    assert now["bits"] <= 3.2 < before["bits"]


def test_other_settings_and_damaged_samples_are_refused(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(place / "out", tmp_path / "out")
    outcome = run(shell, place, out, "--prune", "0.5")
    assert outcome.status == 2
    assert "prune is" in sentence(outcome)
    with (out / "draws.safetensors").open("r+b") as file:
        file.truncate(900)
    outcome = run(shell, place, out)
    assert outcome.status == 1
    assert "draws.safetensors: damaged" in sentence(outcome)


@pytest.mark.slow
def test_samples_of_another_run_are_refused(shell: Shell, place: Path, tmp_path: Path) -> None:
    assert run(shell, place, tmp_path / "out", "--seed", "1").status == 0
    shutil.copy(place / "out" / "draws.safetensors", tmp_path / "out")
    outcome = run(shell, place, tmp_path / "out", "--seed", "1")
    assert outcome.status == 1
    assert "of another run" in sentence(outcome)


def test_a_merge_and_no_check(shell: Shell, place: Path, tmp_path: Path) -> None:
    other = llama(tmp_path / "other", seed=1)
    data = ["--data", place / "text.txt"]
    out = tmp_path / "out"
    outcome = shell(
        "price", place / "model", *data, *FEW, "--merge", other, "--check", 0, "--out", out
    )
    assert outcome.status == 0, outcome.errors
    assert "all, 0.5 merged: " in outcome.output
    assert re.search(r"about \d\S* s of processor time", outcome.errors)
    (row,) = rows(out / "together.csv")
    assert not row["measured"]
    assert not (out / "check.csv").exists()
    llama(other, seed=2)
    again = ["price", place / "model", *data, *FEW, "--merge", other, "--check", 0, "--out", out]
    assert "with other settings (merged is" in sentence(shell(*again))


def test_a_page_of_a_damaged_summary_says_what_is_missing(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(place / "out", tmp_path / "out")
    whole = json.loads((out / "summary.json").read_text())
    for name, said in (("together", r"damaged \(no 'together'\)"), ("samples", "'samples'")):
        left = {key: value for key, value in whole.items() if key != name}
        (out / "summary.json").write_text(json.dumps(left))
        outcome = shell("report", out)
        assert outcome.status == 1
        assert re.search(said, sentence(outcome)), outcome.errors


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--round", "1,4"], "--round: expected bits from 2 to 8, got '1'"),
        (["--round", "9"], "--round: expected bits from 2 to 8, got '9'"),
        (["--prune", "0.1,1"], "--prune: expected shares between 0 and 1, got '1'"),
        (["--prune", "half"], "--prune: expected shares between 0 and 1, got 'half'"),
        ([], "--round: there is nothing to price"),
        (["--prune", "0.1", "--allocate", "3"], "--allocate: needs --round, the bits"),
        (["--round", "4", "--allocate", "3"], "--allocate: 3 bits are below all of --round"),
        (["--round", "4", "--data", "no.txt"], "--data: no.txt is not a file or folder"),
        (["--round", "4", "--sequences", "30"], "--sequences: 60 windows of 8 tokens"),
        (["--round", "4", "--tokens", "17"], "--tokens: 17 are longer than the context of 16"),
        (["--merge", "no/such/model"], "--merge: no/such/model does not exist"),
        (["--merge", "WIDER"], "--merge: .* has other parameters than model"),
    ],
)
def test_what_cannot_be_priced_is_refused_in_a_sentence(
    shell: Shell, place: Path, tmp_path: Path, more: list[str], said: str
) -> None:
    if "WIDER" in more:
        more = ["--merge", str(llama(tmp_path / "wider", width=24))]
    importlib.import_module("pydantic")  # which cyclopts asks where something has imported it
    data = ["--data", place / "text.txt"]
    outcome = shell("price", place / "model", *data, *FEW, *more, "--out", tmp_path / "out")
    assert outcome.status == 2, outcome.errors
    assert re.search(said, sentence(outcome)), outcome.errors
    assert not (tmp_path / "out").exists()


def test_numbers_flipped_in_the_samples_are_never_used(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(place / "out", tmp_path / "out")
    path = out / "draws.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 16
    path.write_bytes(data)
    outcome = run(shell, place, out)
    assert outcome.status == 1
    assert "draws.safetensors: damaged" in sentence(outcome)


def test_shares_close_together_are_priced_apart_and_a_check_costs_no_more_than_there_is(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    data, out = ["--data", place / "text.txt"], tmp_path / "out"
    asked = ["--prune", "0.12341,0.12342", "--check", 10**8]
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:

        def stop(_: object, changes: dict[str, object], *more: object, form: object) -> None:
            found.extend(changes)
            raise ArgumentError("enough")

        patch.setattr(pricing, "price", stop)
        outcome = shell("price", place / "model", *data, *FEW, *asked, "--out", out)
    assert outcome.status == 2
    assert len(found) == 2 * (2 * 7 + 1)
    assert "30 changes: " in outcome.errors
    assert f"{30 + 1 + 2 * 3} over other text for the check" in outcome.errors


def test_an_allocation_is_compared_with_uniform_bits_of_its_budget(
    place: Path, tmp_path: Path
) -> None:
    """Where 4 bits cost more than 3 somewhere, 4 on average are not reached; 3 is no match."""
    model, _ = hb.load(place / "model")
    problem = hb.Problem(model, {"input_ids": torch.randint(29, (6, 8))})
    changes = hb.change_each(model, hb.rounded(bits=3), hb.rounded(bits=4))
    bill = hb.price(problem, changes, samples=6)
    for numbers in (bill.draws.along, bill.draws.squares):
        numbers[:, 1] *= 1e4
    settings = PricingSettings(round=(3, 4), allocate=4.0, check=0)
    found = pricing._summary(replace(bill), None, settings, tmp_path, Progress())
    assert 3 < found["bits"] < found["asked"] == 4
    (first, *_) = price_headline(found)
    assert re.match(r"At 3\.\d+ bits .* would cost .* at 4 bits, .* at 3 bits\.", first)


def test_formats_are_priced_with_embedding_and_head(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    model = llama(tmp_path / "model", width=64)
    given = ["price", model, "--data", place / "text.txt", *FEW, "--out", tmp_path / "out"]
    outcome = shell(*given, "--formats", "mlx:2,mlx:4,bf16", "--allocate", "6", "--check", "2")
    assert outcome.status == 0, outcome.errors
    found = rows(tmp_path / "out" / "bill.csv")
    tables = {row["how"]: float(row["bits"]) for row in found if "embed" in row["place"]}
    assert tables == {"mlx:2": 2.5, "mlx:4": 4.5, "bf16": 16.0}  # scales counted
    assert not found[0].get("full")
    allocation = rows(tmp_path / "out" / "allocation.csv")
    bits = sum(float(row["bytes"]) for row in allocation) * 8
    assert bits <= 6 * sum(float(row["size"]) for row in allocation)
    told = " ".join(outcome.output.split())
    assert re.search("would cost .* at mlx:4", told)
    alone = [row for row in found if row["how"] == "mlx:2"]
    dearest = max(alone, key=lambda row: float(row["forecast"]))["place"]
    name = dearest.removeprefix("model.").removesuffix(".weight")
    assert re.search(rf"Dearest alone, mlx:2: {re.escape(name)} [\d.]+", told)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "takes rounding errors for independent" in page
    for said in (outcome.errors, page):
        assert re.findall("2 of 16 matrices have rows that mlx:(.) does not", said) == ["2", "4"]

    unknown = shell(*given[:-1], tmp_path / "other", "--formats", "mlx:9")
    assert re.search(r"'mlx:9'.*mlx:8", sentence(unknown))


def test_a_quantised_copy_is_billed_against_its_original(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    model, copy = LlamaForCausalLM.from_pretrained(place / "model"), tmp_path / "copy"
    name = "model.layers.1.mlp.up_proj.weight"
    with torch.no_grad():
        model.get_parameter(name).mul_(4).round_().div_(4)
        model.get_input_embeddings().weight.mul_(16).round_().div_(16)
    model.save_pretrained(copy)
    given = ["price", place / "model", "--data", place / "text.txt", *FEW, "--check", "2"]
    outcome = shell(*given, "--against", copy, "--out", tmp_path / "out")
    assert outcome.status == 0, outcome.errors
    found = {row["place"]: row for row in rows(tmp_path / "out" / "bill.csv")}
    assert set(found) == {name, "model.embed_tokens.weight"}
    assert "second moments of the inputs" in (tmp_path / "out" / "report.html").read_text()
    (together,) = rows(tmp_path / "out" / "together.csv")
    assert 0.3 < float(together["forecast"]) / float(together["measured"]) < 3

    scaled, turned = (shutil.copytree(copy, tmp_path / name) for name in ("scaled", "turned"))
    with torch.no_grad():  # as AWQ, which takes scales from matrices into norms
        model.model.norm.weight.mul_(1.5)
    model.save_pretrained(scaled)
    config = json.loads((turned / "config.json").read_text())
    (turned / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))
    half = tmp_path / "half"
    model.half().model.norm.weight.data.div_(1.5)
    model.save_pretrained(half)
    assert shell(*given, "--against", half, "--out", tmp_path / "half-out").status == 0
    for more, said in (
        (["--against", scaled], r"differs from model in model\.norm\.weight too"),
        (["--against", turned], "differs from model in rms_norm_eps too"),
        (["--against", place / "model"], "has the same weights as model"),
        (["--against", copy, "--round", "4"], "a quantised copy is priced alone"),
        (["--against", llama(tmp_path / "wide", width=24)], "has weights of other sizes"),
        (["--against", tmp_path / "none"], r"--against: \S+ does not exist"),
    ):
        outcome = shell(*given, *more, "--out", tmp_path / "other")
        assert outcome.status == 2
        assert re.search(said, sentence(outcome)), outcome.errors


@pytest.mark.parametrize("tied", ["model", "copy"])
def test_a_copy_may_be_tied_otherwise_where_both_matrices_are_equal(
    tied: str, shell: Shell, place: Path, tmp_path: Path
) -> None:
    folders = [shutil.copytree(place / "model", tmp_path / name) for name in ("model", "copy")]
    for folder in folders:
        model = LlamaForCausalLM.from_pretrained(folder)
        table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        with torch.no_grad():
            if folder.name == "copy":
                table.mul_(16).round_().div_(16)
            head.copy_(table)
        if folder.name == tied:
            model.config.tie_word_embeddings = True
            model.tie_weights()
        model.save_pretrained(folder)
    given = ["price", folders[0], "--data", place / "text.txt", *FEW, "--against", folders[1]]
    outcome = shell(*given, "--out", tmp_path / "out")
    assert outcome.status == 0, outcome.errors
    places = {"model.embed_tokens.weight", *(["lm_head.weight"] if tied == "copy" else [])}
    assert {row["place"] for row in rows(tmp_path / "out" / "bill.csv")} == places

    loose = folders[tied == "model"]
    model = LlamaForCausalLM.from_pretrained(loose)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.01)
    model.save_pretrained(loose)
    outcome = shell(*given, "--out", tmp_path / "other")
    assert outcome.status == 2
    assert "in tie_word_embeddings too" in sentence(outcome)


def test_what_else_a_copy_lacks_or_moved_is_named(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(place / "model", attention_bias=True)
    model, biased = LlamaForCausalLM(config), tmp_path / "biased"
    shutil.copytree(place / "model", biased)
    model.save_pretrained(biased)
    given = ["price", biased, "--data", place / "text.txt", *FEW, "--check", "2", "--against"]
    outcome = shell(*given, place / "model", "--out", tmp_path / "other")
    assert outcome.status == 2
    said = r"--against: \S+ has no model\.layers\.0\.self_attn\.q_proj\.bias"
    assert re.search(said, sentence(outcome)), outcome.errors

    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(16).round_().div_(16)
        model.model.norm.weight.mul_(1.005)
    model.save_pretrained(tmp_path / "moved")
    outcome = shell(*given, tmp_path / "moved", "--out", tmp_path / "out")
    assert outcome.status == 0, outcome.errors
    told = json.loads((tmp_path / "out" / "summary.json").read_text())["told"]
    assert "the copy's model.norm.weight differ by up to 1% too, which is in no number" in told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 4}, "num_attention_heads"),
        ({"rope_theta": 1e6}, "rope_parameters.rope_theta"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rms_norm_eps": 1e-3}, "rms_norm_eps"),
    ],
)
def test_another_function_of_equal_shapes_is_not_a_model_to_merge_with(
    place: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    model, _ = hb.load(place / "model")
    config = copy.deepcopy(model.config)
    assert not other_function(model.config, config, (None, None))
    config.update({"rms_norm_eps": config.rms_norm_eps * (1 + 1e-8), "_name_or_path": "elsewhere"})
    assert not other_function(model.config, config, (None, None))
    if "rope_theta" in change:
        config.rope_parameters = {**config.rope_parameters, **change}
    else:
        config.update(change)
    assert said in other_function(model.config, config, (None, None))


def test_another_vocabulary_is_not_a_model_to_merge_with(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(place / "model", tmp_path / "other")
    path = other / "tokenizer.json"
    content = json.loads(path.read_text())
    words = content["model"]["vocab"]
    first, second = [*words][:2]
    words[first], words[second] = words[second], words[first]
    path.write_text(json.dumps(content))
    outcome = shell("price", place / "model", "--data", place / "text.txt", *FEW, "--merge", other)
    assert outcome.status == 2
    assert (
        "computes something else from its weights than model, since they differ in vocabulary"
        in sentence(outcome)
    )


def test_another_tokeniser_of_equal_vocabulary_is_not_a_model_to_merge_with() -> None:
    tokenizer, bare = byte_level(SMOL), LlamaConfig()
    stored = json.loads(tokenizer.backend_tokenizer.to_str())
    fewer, unsplit = copy.deepcopy(stored), copy.deepcopy(stored)
    del fewer["model"]["merges"][3:]
    unsplit["pre_tokenizer"]["pretokenizers"][-1]["use_regex"] = False
    assert not other_function(bare, bare, (tokenizer, byte_level(SMOL)))
    flags, spelled = copy.deepcopy(stored), copy.deepcopy(stored)
    for added in flags["added_tokens"]:  # a GGUF file does not hold them
        added |= {"lstrip": True, "rstrip": True}
    assert stored["added_tokens"]
    second = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(flags)))
    assert not other_function(bare, bare, (tokenizer, second))
    letter = next(pair[0] for pair in stored["model"]["merges"] if pair[0].isalpha())
    spelled["added_tokens"].append(
        stored["added_tokens"][0] | {"content": letter, "id": stored["model"]["vocab"][letter]}
    )
    for content in (fewer, unsplit, spelled):
        inner = Tokenizer.from_str(json.dumps(content))
        second = PreTrainedTokenizerFast(tokenizer_object=inner)
        assert other_function(bare, bare, (tokenizer, second)) == ["tokenizer"]


def test_a_tokeniser_draws_no_tokens(place: Path, tmp_path: Path) -> None:
    model = shutil.copytree(place / "model", tmp_path / "model")
    content = json.loads(byte_level(SMOL).backend_tokenizer.to_str())
    content["model"]["dropout"] = 0.5
    (model / "tokenizer.json").write_text(json.dumps(content))
    _, tokenizer = hb.load(model)
    assert len({tuple(tokenizer("the cat sat on the mat")["input_ids"]) for _ in range(9)}) == 1


def test_a_tokeniser_that_cannot_be_read_gives_its_reason(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(place / "model", tmp_path / "model")
    (model / "tokenizer.json").write_text("{")
    outcome = shell("price", model, "--data", place / "text.txt", *FEW, "--round", 4)
    assert outcome.status == 1
    assert "cannot be read (" in sentence(outcome)
    with pytest.warns(UserWarning, match="tokenizer of .* cannot be read"):
        assert hb.load(model)[1] is None


def test_another_seed_gives_other_windows_and_other_draws(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = hb.load(place / "model")
    subject = pricing.Subject(name="m", model=model, tokenizer=tokenizer)
    texts = documents_of(place / "text.txt")
    few = {"sequences": 6, "tokens": 8, "samples": 6, "round": (4,)}
    settings = [PricingSettings(**few, seed=seed) for seed in (0, 1, 0)]
    windows = [pricing.drawn_batches(subject, texts, one, 6)[0]["input_ids"] for one in settings]
    assert torch.equal(windows[0], windows[2])
    assert not torch.equal(windows[0], windows[1])
    seeds = []
    draw = pricing.price
    monkeypatch.setattr(
        pricing, "price", lambda *a, **more: (seeds.append(a[3]), draw(*a, **more))[1]
    )
    problem = hb.Problem(model, {"input_ids": windows[0]}, loss="causal-lm")
    changes = hb.change_each(model, hb.rounded(bits=4))
    bills = []
    for number, one in enumerate(settings[:2]):
        folder = place / f"seed {number}"
        folder.mkdir()
        bills.append(pricing.stored_bill(problem, changes, one, [folder], {}, Progress(), 0.0))
    assert seeds == [0, 1]
    assert not torch.equal(bills[0].draws.along, bills[1].draws.along)


def test_a_check_of_activations_takes_twelve_windows_at_most(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def note(*given: Any) -> Any:
        asked.append(given[-1])
        raise ArgumentError("seen")

    monkeypatch.setattr(pricing, "drawn_batches", note)
    for fields in ({"cache": (3,)}, {"activations": (8,)}, {"round": (3,)}):
        with pytest.raises(ArgumentError, match="seen"):
            pricing.measure_price(str(place / "model"), place / "text.txt", sequences=30, **fields)
    assert asked == [12, 12, 30]


def test_a_cache_is_priced_head_by_head_with_a_recipe(
    shell: Shell, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("".join(LETTERS[i * i * 7 % 29] for i in range(900)))
    model, out = llama(tmp_path / "model", context=48), tmp_path / "out"
    given = ["price", model, "--data", tmp_path / "text.txt", *FEW, "--tokens", "40"]
    outcome = shell(*given, "--cache", "4", "--check", "1", "--out", out)
    assert outcome.status == 0, outcome.errors
    cost = r"^32 changes: 6 forward and 6 backward .*; about [\d.]+ s of processor time, "
    assert re.search(cost, outcome.errors, re.M)
    found = rows(out / "bill.csv")
    assert len(found) == 2 * 2 * 2 * 4  # layers, heads, keys and values, grids
    assert {row["bits"] for row in found} == {"4.0"}
    together = {row["name"]: row for row in rows(out / "together.csv")}
    (recipe,) = (name for name in together if name.startswith("recipe at 4 bits: keys, 4 bits per"))
    grids = [f"all, {kind}, 4 bits per {per}" for kind in ("keys", "values")
             for per in ("token", "channel")]  # fmt: skip
    costs = [float(together[name]["forecast"]) for name in grids]
    cheapest = min(costs[:2]) + min(costs[2:])
    # keys and values together grow a little more with the loss than each alone
    assert float(together[recipe]["forecast"]) == pytest.approx(cheapest, rel=1e-3)
    page = (out / "report.html").read_text()
    assert "axis_key=" in page
    assert "the first token" in page
    dearest = json.loads((out / "summary.json").read_text())["sentences"][0]
    costs = [float(together[name]["measured"]) for name in grids[:2]]
    assert f"keys cost {min(costs):.3g} nats (measured)" in dearest
    again = shell(*given, "--cache", "4", "--check", "1", "--out", out)
    assert again.status == 0
    assert rows(out / "bill.csv") == found

    given = ["price", place / "model", "--data", place / "text.txt", *FEW, "--out", tmp_path / "no"]
    assert "give --tokens 32 or more" in sentence(shell(*given, "--cache", "4"))
    both = shell(*given, "--cache", "4", "--round", "3")
    assert "activations and weights are priced apart" in sentence(both)
    outcome = shell(*given[:-1], tmp_path / "inputs", "--activations", "4,8", "--check", "0")
    assert outcome.status == 0, outcome.errors
    assert len(rows(tmp_path / "inputs" / "bill.csv")) == 2 * 7 * 2
    assert json.loads((tmp_path / "inputs" / "summary.json").read_text())["what"] == "inputs"
