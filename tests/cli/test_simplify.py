"""`hessblocks simplify` on a tiny Llama: its files and page, going on, bad input."""

import copy
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors import SafetensorError
from transformers import LlamaConfig, LlamaForCausalLM

import hessblocks as hb
from hessblocks.cli.app import main
from hessblocks.models import HessblocksForCausalLM, to_family
from hessblocks.settings import SimplifySettings
from hessblocks.simplify import run as running
from hessblocks.storage import mended_store, write_manifest
from tests.cli.helpers import Shell, sentence
from tests.cli.test_price import LETTERS, llama, rows
from tests.models.gguf_files import SMOL, byte_level

FEW = ["--sequences", "4", "--fitted", "6", "--tokens", "8", "--steps", "6"]


@pytest.fixture(autouse=True)
def _blank(blank: None) -> None:
    """No test looks at pictures, but at those of `place`, which is made before."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a text, and out/ as the command left it."""
    here = tmp_path_factory.mktemp("simplify")
    llama(here / "model")
    (here / "text.txt").write_text("".join(LETTERS[i * i * 7 % 29] for i in range(900)))
    assert main([*map(str, words(here, here / "out")), "--json"]) == 0
    return here


def words(place: Path, out: Path, *more: object) -> list[object]:
    data = ["--data", place / "text.txt", "--save", "0.2"]
    return ["simplify", place / "model", *data, *FEW, "--out", out, *more]


def test_the_result_is_a_model_as_any_other_with_a_card(place: Path) -> None:
    found = json.loads((place / "out" / "summary.json").read_text())
    model, tokenizer = hb.load(place / "out" / "model")
    original = hb.from_pretrained_blocks(place / "model")
    size = sum(p.numel() for p in original.parameters())
    assert 1 - sum(p.numel() for p in model.parameters()) / size == pytest.approx(found["saved"])
    assert found["saved"] >= 0.2
    tokens = tokenizer("abc", return_tensors="pt")["input_ids"]
    assert model.generate(tokens, max_new_tokens=3, do_sample=False).shape[1] >= 4
    card = (place / "out" / "model" / "README.md").read_text()
    data = ModelCard(card).data
    assert (data.base_model, data.license) == ("model", None)
    assert "whose files name none" in card
    command = f"hessblocks simplify model --data text.txt --save 0.2 {' '.join(FEW)}"
    assert sorted(command.split()) == sorted(row(card, "made by").replace("\\", "").split())
    assert "parameters saved" in card
    assert "made from | a pretrained llama" in card
    assert "opened by | pip install hessblocks" in card
    assert len(rows(place / "out" / "removals.csv")) == len(found["removals"]) == 10
    whole = to_family(original)
    assert type(whole).__name__ == "LlamaForCausalLM"


def row(card: str, name: str) -> str:
    """The second cell of a row of a card's table."""
    return card.partition(f"| {name} | ")[2].partition(" |")[0]


def test_an_even_result_opens_without_hessblocks_with_the_same_logits_and_licence(
    place: Path, tmp_path: Path, shell: Shell
) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    command = words(place, tmp_path / "out", "--even", "--steps", "0")
    command[1] = tmp_path / "model"
    assert shell(*command).status == 0
    made = tmp_path / "out" / "model"
    data = ModelCard.load(made / "README.md").data
    assert (data.base_model, data.license) == ("model", "apache-2.0")
    said = row((made / "README.md").read_text(), "made by")
    assert "--save 0.2 --even" in said.replace("\\", "")
    found = subprocess.run(
        [sys.executable, "-c", OPENED, str(made), str(tmp_path / "logits.pt")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    model, _ = hb.load(made)
    with torch.no_grad():
        logits = hb.from_pretrained_blocks(model)(torch.arange(12)[None]).logits
    assert torch.allclose(torch.load(tmp_path / "logits.pt"), logits, atol=1e-5)


def test_more_than_was_asked_is_told_with_the_reason(
    place: Path, tmp_path: Path, shell: Shell
) -> None:
    """256 units go in steps of 64, a quarter of which is 22 %; 32 units go one by one."""
    shutil.copytree(place / "model", tmp_path / "wide")
    config = LlamaConfig.from_pretrained(tmp_path / "wide", intermediate_size=256)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "wide")
    for source, save, told in (("wide", 0.15, True), ("wide", 0.22, False), ("model", 0.15, False)):
        out = tmp_path / f"{source}-{save}"
        command = words(place, out, "--even", "--steps", "0", "--save", save)
        command[1] = (tmp_path if source == "wide" else place) / source
        found = " ".join(shell(*command).output.split())
        clause = f"({100 * save:.0f} % asked; widths stay multiples of 64)"
        page = " ".join((out / "report.html").read_text().split())
        assert (clause in found) == (clause in page) == told
        saved = json.loads((out / "summary.json").read_text())["saved"]
        assert (saved > save + 0.005 and source == "wide") == told


OPENED = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
assert type(model).__name__ == "LlamaForCausalLM" and "hessblocks" not in sys.modules
torch.save(model(torch.arange(12)[None]).logits.detach(), sys.argv[2])
"""


@pytest.mark.bad_input
@pytest.mark.parametrize("broken", [OSError(28, "No space left on device"), SafetensorError("28")])
def test_a_full_disk_leaves_no_model_and_a_sentence(
    place: Path, tmp_path: Path, shell: Shell, broken: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise broken

    monkeypatch.setattr(transformers.LlamaForCausalLM, "save_pretrained", full)
    found = shell(*words(place, tmp_path / "out", "--even", "--steps", "0"))
    assert found.status == 1
    assert re.search(r"out/model:? cannot be written", sentence(found))
    assert not {"model", "summary.json"} & {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.bad_input
def test_a_target_that_the_family_or_the_tokeniser_lacks_is_refused_at_once(
    place: Path, tmp_path: Path, shell: Shell
) -> None:
    found = shell(*words(place, tmp_path / "out"), "--to", "gguf")
    assert "way in which this tokeniser splits text is not known" in sentence(found)
    shutil.copytree(place / "model", tmp_path / "gpt2")
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=30)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    byte_level(SMOL).save_pretrained(tmp_path / "gpt2")
    command = [*words(place, tmp_path / "out"), "--to", "gguf"]
    command[1] = tmp_path / "gpt2"
    assert "ids that the model lacks" in sentence(shell(*command))
    config.vocab_size = 300
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    assert "layer 0 is not one of Llama's" in sentence(shell(*command))
    assert not (tmp_path / "out").exists()


def test_a_folder_with_a_known_tokeniser_becomes_a_gguf_file(
    place: Path, tmp_path: Path, shell: Shell
) -> None:
    gguf = pytest.importorskip("gguf")
    config = LlamaConfig.from_pretrained(place / "model", vocab_size=300)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    byte_level(SMOL).save_pretrained(tmp_path / "model")
    command = words(place, tmp_path / "out", "--to", "gguf", "--kinds", "mlp units,heads")
    command[1] = tmp_path / "model"
    found = shell(*command)
    assert found.status == 0, found.output
    reader, model = gguf.GGUFReader(tmp_path / "out" / "model.gguf"), tmp_path / "out" / "model"
    assert reader.fields["tokenizer.ggml.pre"].contents() == "smollm"
    assert len(reader.fields["deci.feed_forward_length"].contents()) == 2
    stored = sum(int(tensor.n_elements) for tensor in reader.tensors)
    assert stored == sum(weight.numel() for weight in hb.load(model)[0].parameters())
    del reader
    file, first = tmp_path / "out" / "model.gguf", (tmp_path / "out" / "model.gguf").read_bytes()
    assert shell(*command, "--steps", "0").status == 0  # this run wrote it
    assert (tmp_path / "out" / "model-0.2-steps-6.gguf").read_bytes() == first
    points, written = (tmp_path / "out" / "points.jsonl").read_bytes(), file.read_bytes()
    shutil.rmtree(model)  # the file alone tells its settings
    assert shell(*command, "--steps", "0").status == 0
    assert (tmp_path / "out" / "points.jsonl").read_bytes() == points
    assert not (tmp_path / "out" / "model-0.2-steps-0.gguf").exists()
    for content in (b"mine", written[:-1] + b"x"):
        file.write_bytes(content)
        told = shell(*command, "--steps", "0")
        assert told.status == 2
        assert "model.gguf would be replaced, but was not written by this run" in sentence(told)
        assert file.read_bytes() == content
    folder = [word for word in command if word not in ("--to", "gguf")]
    assert shell(*folder, "--steps", "0").status == 0
    assert file.read_bytes() == content


def test_the_page_opens_with_the_answer_and_has_no_blank_picture(place: Path) -> None:
    page = (place / "out" / "report.html").read_text()
    found = json.loads((place / "out" / "summary.json").read_text())
    first = page.partition('<p class="headline">')[2].partition("</p>")[0]
    assert first.startswith(f"{found['saved']:.1%} fewer parameters cost")
    assert "tokens that nothing was chosen by" in first
    assert "foretold" in page
    assert "Before and after" in page
    assert (place / "out" / "figures" / "removals.png").stat().st_size > 5000


def test_the_cost_is_told_from_the_passes_that_are_left(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kinds in two layers, the second of which is done; passes of 3 and 1 seconds."""
    seconds = iter([3.0, 1.0] * 3)
    monkeypatch.setattr(running, "seconds_of", lambda *_: next(seconds))
    monkeypatch.setattr(running, "_solution_seconds", lambda *_: 12.0)
    model, store = hb.from_pretrained_blocks(place / "model"), mended_store(tmp_path)
    store.add("layer 1", [])
    asked = SimplifySettings(kinds=("layer", "heads"), tokens=8, batch=4, steps=6)
    held = torch.zeros(6, 8, dtype=torch.long)
    fit = torch.zeros(12, 8, dtype=torch.long)
    told, total = running._cost(model, fit, held, asked, store)
    assert total == 4 + 42 + 48
    assert told.startswith("2 removals at most, besides refits: 4 s; ")
    assert "one pass of refits: 42 s; " in told  # 5 passes over twice the held-out, and solutions
    assert told.endswith(
        "healing: 48 s (processor time on a CPU)"
    )  # 6 x 4 windows are 4 times the held-out 6
    store.add("layer 0", [])
    told, _ = running._cost(model, fit, held, asked, store)
    assert told.startswith("0 removals at most, besides refits: 0 s; ")
    told = running._cost(model, fit, held, replace(asked, save=0.0), store)
    assert told == ("every removal is measured already", 0.0)


def test_the_cost_tells_of_the_solutions_of_every_matrix(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers with an output matrix each; 15 solutions and a sum, 1 s each."""
    monkeypatch.setattr(running, "seconds_of", lambda run, _: (run(), 1.0)[1])
    model = hb.from_pretrained_blocks(place / "model")
    assert running._solution_seconds(model, 100) == pytest.approx(2 * (15 + 100 / 32))
    monkeypatch.setattr(running, "SOLVED", 16)  # half of the inputs: 4 and 8 times the work
    assert running._solution_seconds(model, 100) == pytest.approx(2 * (8 * 15 + 4 * 100 / 16))


def test_a_result_that_predicts_nothing_is_not_saved_and_the_stage_at_fault_is_named(
    place: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ruined(model: HessblocksForCausalLM, *_: object, **__: object) -> HessblocksForCausalLM:
        worse = copy.deepcopy(model)
        for layer in worse.model.layers:
            layer.mlp.output.weight.data.fill_(float("inf"))
        return worse

    def refused(patch: str, value: object, *more: object) -> str:
        out = tmp_path / "-".join((patch, *map(str, more)))
        with monkeypatch.context() as patched:
            patched.setattr(running, patch, value)
            told = sentence(shell(*words(place, out, "--even", *more)))
        assert not {"model", "summary.json"} & {path.name for path in out.iterdir()}
        return told

    assert refused("heal", ruined) == (
        "hessblocks: healing: the model has a KL divergence of nan nats per token; try a lower "
        "--learning-rate"
    )
    refits = "hessblocks: refits: the model has a KL divergence of "
    less = " nats per token; remove less, with a smaller --save"
    for steps in ("0", "6"):
        assert refused("one_pass", ruined, "--steps", steps) == f"{refits}nan{less}"
    told = refused("LARGEST", 1.0, "--steps", "0")  # no perplexity, with a finite divergence
    assert told.startswith(refits)
    assert told.endswith(less)
    assert "nan" not in told


@pytest.mark.parametrize("more", [["--even"], ["--kinds", "layer"]])
def test_a_model_whose_own_perplexity_is_no_number_is_refused(
    place: Path, tmp_path: Path, shell: Shell, more: list[str]
) -> None:
    model = LlamaForCausalLM.from_pretrained(shutil.copytree(place / "model", tmp_path / "large"))
    model.lm_head.weight.data.mul_(1e30)
    model.save_pretrained(tmp_path / "large")
    command = words(place, tmp_path / "out", *more)
    command[1] = tmp_path / "large"
    told = sentence(shell(*command))
    assert told.startswith("hessblocks: MODEL: its loss on held-out text is ")


@pytest.mark.parametrize("towards", ["logits", "text"])
def test_of_the_models_before_and_after_healing_the_better_is_saved(
    place: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, towards: str
) -> None:
    """Healing is a seeded change for the worse; the test text is not looked at for the choice."""
    more = ["--even", "--towards", towards]
    plain = shell(*words(place, tmp_path / "plain", *more, "--steps", "0"))
    assert "updates of healing" not in plain.output

    def spoilt(model: HessblocksForCausalLM, *_: object, **__: object) -> HessblocksForCausalLM:
        worse = copy.deepcopy(model)
        for weight in worse.model.layers.parameters():
            weight.data += torch.randn(weight.shape, generator=torch.manual_seed(0))
        return worse

    with monkeypatch.context() as patched:
        patched.setattr(running, "heal", spoilt)
        told = shell(*words(place, tmp_path / "out", *more))
    assert "so the model before it was saved" in " ".join(told.output.split())
    weights = [
        (tmp_path / n / "model" / "model.safetensors").read_bytes() for n in ("plain", "out")
    ]
    assert weights[0] == weights[1]
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    (text,) = found["texts"]
    assert found["kept"] == "removed"
    assert text["healed"]["kl"] > text["removed"]["kl"]
    card = (tmp_path / "out" / "model" / "README.md").read_text()
    assert f"{text['removed']['perplexity']:.4g}, before" in card.replace("\\", "")
    fewer = ["--steps", "40", "--learning-rate", "0.01"]
    told = shell(*words(place, tmp_path / "healed", *more, *fewer))
    assert "(saved: the better on" in " ".join(told.output.split())
    assert json.loads((tmp_path / "healed" / "summary.json").read_text())["kept"] == "healed"


@pytest.mark.slow
def test_an_interrupted_call_goes_on_and_ends_the_same(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    def torn(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(running, "heal", torn)
        shell(*words(place, tmp_path / "out"))
    points = (tmp_path / "out" / "points.jsonl").read_bytes()
    made = json.loads((place / "out" / "summary.json").read_text())["layers"]
    assert made
    assert points == (place / "out" / "points.jsonl").read_bytes()
    lines = points.splitlines(keepends=True)
    (tmp_path / "out" / "points.jsonl").write_bytes(b"".join([lines[0], *lines[2:-1]]))
    assert shell(*words(place, tmp_path / "out")).status == 0
    one, other = (json.loads((p / "out" / "summary.json").read_text()) for p in (place, tmp_path))
    for found in (one, other):
        del found["seconds"]
        for numbers in ("before", "after"):
            del found[numbers]["prompt"], found[numbers]["decoding"]
    assert one == other
    tables = [(p / "out" / "removals.csv").read_bytes() for p in (place, tmp_path)]
    assert tables[0] == tables[1]
    kept = (tmp_path / "out" / "points.jsonl").stat().st_mtime_ns
    assert shell(*words(place, tmp_path / "out")).status == 0
    assert (tmp_path / "out" / "points.jsonl").stat().st_mtime_ns == kept


def test_an_earlier_result_is_named_by_letters_of_a_path_alone(tmp_path: Path) -> None:
    """Its name comes from a file, which others may have written."""
    (tmp_path / "model").mkdir()
    store = mended_store(tmp_path)
    for label, name in (
        ("0.2-even", "model-0.2-even"),
        ("../../x", "model-earlier"),
        (["a"], "model-earlier"),
    ):
        write_manifest(tmp_path / "model", "a", "model", {"run": "r", "label": label})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(running.storage, "check_manifest", lambda *_, **__: "")
            earlier = running._earlier(tmp_path, "r", store, "folder", "0.1")
        assert earlier == {tmp_path / "model": tmp_path / name}


def test_a_full_disk_is_reported(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    shutil.copytree(place / "out", tmp_path / "out")

    def full(*_: object, **__: object) -> None:
        raise ValueError("No space left on device (os error 28)")  # tokenizers: an Exception

    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.save_pretrained", full)
    told = shell(*words(place, tmp_path / "out"), "--steps", "0")
    assert told.status == 1
    assert "model cannot be written (No space left on device" in sentence(told)


def test_another_target_or_healing_needs_no_new_table(
    place: Path, tmp_path: Path, shell: Shell
) -> None:
    shutil.copytree(place / "out", tmp_path / "out")
    before = (tmp_path / "out" / "points.jsonl").read_bytes()
    more = ["--save", "0.3", "--steps", "0"]
    assert shell(*words(place, tmp_path / "out"), *more).status == 0
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["saved"] >= 0.3
    (text,) = found["texts"]
    assert "healed" not in text  # it would be the same
    assert (tmp_path / "out" / "points.jsonl").read_bytes() == before
    tables = [(p / "out" / "removals.csv").read_bytes() for p in (place, tmp_path)]
    assert tables[0] == tables[1]  # columns too, though all rows come from the store
    other = shell(*words(place, tmp_path / "out"), "--sequences", "5")
    assert (other.status, "with other settings (sequences" in sentence(other)) == (2, True)


def test_a_model_of_other_settings_gets_another_name_and_is_never_lost(
    place: Path, tmp_path: Path, shell: Shell
) -> None:
    out, few = tmp_path / "out", ["--even", "--steps", "0"]
    assert shell(*words(place, out, *few)).status == 0
    first = (out / "model" / "model.safetensors").read_bytes()
    assert shell(*words(place, out, *few, "--also", place / "text.txt")).status == 0
    assert not list(out.glob("model-*"))  # the same model
    more = words(place, out, *few, "--save", "0.1")
    told = shell(*more)
    earlier = out / "model-0.2-even-steps-0"
    assert f"model of other settings is now {earlier}" in told.output + told.errors
    assert (earlier / "model.safetensors").read_bytes() == first
    second = (out / "model" / "model.safetensors").read_bytes()
    assert second != first
    assert shell(*more).status == 0
    assert [path.name for path in out.glob("model-*")] == [earlier.name]
    assert shell(*words(place, out, *few)).status == 0
    assert (out / "model-0.1-even-steps-0" / "model.safetensors").read_bytes() == second
    told = shell(*more)
    assert (told.status, f"{earlier.name}, is taken" in sentence(told)) == (2, True)
    assert (out / "model" / "model.safetensors").read_bytes() == first
    assert (earlier / "model.safetensors").read_bytes() == first


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("changed", "has another config.json than was written"),
        ("added", "holds notes.txt, which is not one of its files"),
        ("another's", "has no seal.json"),
        ("another run's", "is of another run"),
        ("trained", "is of another run"),
        ("older", "is of another run"),
        ("a file", "is a file"),
    ],
)
def test_a_model_that_this_run_did_not_write_is_not_replaced(
    case: str, said: str, place: Path, tmp_path: Path, shell: Shell
) -> None:
    shutil.copytree(place / "out", tmp_path / "out")
    model = tmp_path / "out" / "model"
    if case == "changed":
        (model / "config.json").write_text((model / "config.json").read_text() + " ")
    elif case == "added":
        (model / "notes.txt").write_text("mine")
    else:
        shutil.rmtree(model)
        if case == "another's":
            llama(model)
        elif case == "a file":
            model.write_text("mine")
        elif case in ("trained", "older"):  # seals without a run in what they remember
            llama(model)
            own = {"of": "another"} if case == "trained" else {}
            write_manifest(model, "another", "model", {"step": 1})
            seal = json.loads((model / "seal.json").read_text())
            del seal["of"]
            (model / "seal.json").write_text(json.dumps(seal | own))
        else:
            other = words(place, tmp_path / "other", "--kinds", "mlp units", "--steps", "0")
            assert shell(*other).status == 0
            shutil.copytree(tmp_path / "other" / "model", model)
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    del files[tmp_path / "out" / "config.json"]  # has the new number of steps
    told = shell(*words(place, tmp_path / "out"), "--steps", "0")
    assert (told.status, f"model would be replaced, but {said}" in sentence(told)) == (2, True)
    assert all(path.read_bytes() == content for path, content in files.items())


def test_another_text_of_the_same_length_is_refused(
    place: Path, tmp_path: Path, shell: Shell
) -> None:
    text, command = tmp_path / "text.txt", [*words(place, tmp_path / "out")]
    command[command.index("--data") + 1] = text
    command += ["--save", "0", "--kinds", "layer"]
    text.write_text((place / "text.txt").read_text())
    assert shell(*command).status == 0
    text.write_text("".join(sorted(text.read_text())))
    assert "with other settings (windows is" in sentence(shell(*command))


@pytest.mark.parametrize("even", [True, False])
def test_the_final_figure_is_of_text_by_which_nothing_was_chosen(
    place: Path, tmp_path: Path, shell: Shell, even: bool
) -> None:
    """Other words in the last tenth, and in another file, change no weight."""
    text, command = (place / "text.txt").read_text(), [*words(place, tmp_path / "out")]
    ends = (text, text[:815] + text[815:][::-1])
    models, costs = [], []
    for number, changed in enumerate(ends):
        here = tmp_path / str(number)
        here.mkdir()
        (here / "text.txt").write_text(changed)
        (here / "other.txt").write_text(changed[::-1])
        command[command.index("--data") + 1] = here / "text.txt"
        command[command.index("--out") + 1] = here / "out"
        more = ["--also", here / "other.txt", "--steps", "0", *(["--even"] if even else [])]
        assert shell(*command, *more).status == 0
        models.append((here / "out" / "model" / "model.safetensors").read_bytes())
        found = json.loads((here / "out" / "summary.json").read_text())
        costs.append([one["removed"]["kl"] for one in found["texts"]])
        assert [one["text"] for one in found["texts"]][1] == "other.txt"
        assert found["removals"] == [] if even else found["removals"]
    assert models[0] == models[1]
    assert costs[0][0] != costs[1][0]


def test_without_a_target_the_table_alone_is_made(
    place: Path, tmp_path: Path, shell: Shell
) -> None:
    out = tmp_path / "table"
    found = shell(*words(place, out), "--save", "0", "--kinds", "layer,mlp units")
    assert found.status == 0
    assert found.output.startswith("One at a time: 4 removals")
    assert not (out / "model").exists()
    shutil.rmtree(out / "figures")
    assert shell("report", out).status == 0
    assert (out / "figures" / "removals.svg").exists()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--save", "1.0"], r"--save: expected a share from 0, below 1"),
        (["--kinds", "heads"], r"save: 20\.0% of the parameters are more than can go"),
        (["--kinds", "layers"], r"--kinds: 'layers' is unknown"),
        (["--tokens", "17"], r"--tokens: 17 are longer than the context of 16"),
        (
            ["--sequences", "400"],
            r"--data: .* has 900 bytes; 3,200 tokens are needed \(400 times 8\)",
        ),
        (["--fitted", "2", "--tokens", "4"], r"text: 8 tokens are too few to fit weights"),
        (["--towards", "teacher"], r"--towards"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    place: Path, tmp_path: Path, shell: Shell, more: list[str], message: str
) -> None:
    found = shell(*words(place, tmp_path / "out"), *more)
    assert found.status == 2
    assert re.search(message, sentence(found))
    # what nothing was measured for may be asked for in another way in the same folder
    assert (tmp_path / "out").exists() == ("heads" in more)


def test_nats_for_a_percent_are_the_kl_over_the_percents_saved(place: Path) -> None:
    table = [row for row in rows(place / "out" / "removals.csv") if row["nats_per_percent"]]
    assert table
    for row in table:
        percents = 100 * float(row["share"])
        assert float(row["nats_per_percent"]) * percents == pytest.approx(float(row["kl"]))
