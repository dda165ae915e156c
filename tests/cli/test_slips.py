"""Slips of the keyboard are answered before torch is loaded: exit status 2, and what to type."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.test_start import HEAVY

SECONDS = 1.5
"""Most processor time of an answer, with the start of Python."""
PRICE = "price model --data code.txt"
QUANTISE = "quantise model new.gguf --data code.txt"
SLIPS = {
    # the model
    "price gpt2 --data code.txt --round 4": "MODEL: 'gpt2' is not a folder.* run `hf download",
    "price modell --data code.txt --round 4": "did you mean model?",
    "price no/such/model --data code.txt --round 4": "MODEL: no/such/model does not exist",
    "price ./nowhere.gguf --data code.txt --round 4": "MODEL: ./nowhere.gguf does not exist",
    "price code.txt --data code.txt --round 4": "code.txt is a text, not a model; did you exchange",
    "price model/model.safetensors --data code.txt": "is a part of a model; give its folder model",
    "price model/config.json --data code.txt": "is a part of a model; give its folder model",
    "signal preset:sas preset:sas": "MODEL: preset:sas was given twice",
    "price none --data code.txt --round 4": "none holds no model, since it has no config.json",
    "price run --data code.txt --round 4": r"run holds no model, since it has no weights",
    "price doc.pdf --data code.txt --round 4": "MODEL: doc.pdf is a PDF",
    "price bad.gguf --data code.txt --round 4": "bad.gguf is damaged or not a GGUF file",
    "price head --data code.txt --round 4": "head is a GGUF file; rename it so that it ends in",
    "price ggufs --data code.txt --round 4": "ggufs is a folder; give its file ggufs/a.gguf",
    "price preset:pre-ln --data code.txt --round 4": "`hessblocks train pre-ln --out runs/pre-ln",
    "price sas --data code.txt --round 4": "sas is a block without trained weights; type",
    "curvature sas-p": "MODEL: sas-p is a block, not a model: write preset:sas-p",
    "curvature preset:sasp": "MODEL: 'sasp' is unknown; did you mean 'sas-p'",
    "curvature gtp2": "MODEL: 'gtp2' is not a folder",
    "curvature code.txt": "code.txt is a text, not a model; did you exchange MODEL and --data",
    "signal sas --data random": "sas is a block, not a model: write preset:sas",
    "signal preset:skiples": "MODEL: 'skiples' is unknown; did you mean 'skipless'",
    # the text
    f"{PRICE}x --round 4": "--data: code.txtx is not a file or folder",
    "price model --data none --round 4": "--data: none holds no files; give a folder with text",
    "price model --data empty.txt --round 4": "--data: empty.txt has too little text",
    "price model --data doc.pdf --round 4": "--data: doc.pdf is a PDF",
    "price model --data bin.dat --round 4": "--data: bin.dat is not UTF-8 text; convert it",
    "price model --data model --round 4": "--data: model is a model, not a text; did you exchange",
    "price model --data head --round 4": "--data: head is a model, not a text; did you exchange",
    "price model --data short.txt --round 4": (
        "short.txt has 44 bytes; 3,072 tokens are needed .32 times 96., about 12.3 kB: give more"
    ),
    "train sas --data short.txt": "--data: short.txt has 44 bytes",
    "curvature model --data pythoncode": "--data: pythoncode is not a file or folder",
    "simplify model --data code.txt --also nowhere": "nowhere is not a file or folder",
    # numbers
    PRICE: "--round: there is nothing to price; give bits such as 3,4",
    f"{PRICE} --cache 4 --tokens 9": "--tokens: --cache prices scales per channel.* --tokens 32",
    f"{PRICE} --round 16": "--round: expected bits from 2 to 8, got '16'",
    f"{PRICE} --formats gguf:Q4K": "--formats: 'gguf:Q4K' is unknown; did you mean 'gguf:Q4_K'",
    f"{PRICE} --allocate 3": "--allocate: needs --round, the bits to choose from; for example",
    f"{PRICE} --round 2,3,4 --allocate 5": "5 bits are above all of --round.* --round 2,3,4,5",
    f"{PRICE} --round 4,8 --allocate 3": "3 bits are below all of --round.* --round 3,4,8",
    f"{PRICE} --round 4 --against model": "--against: a quantised copy is priced alone",
    f"{PRICE} --merge nowhere/at/all": "--merge: nowhere/at/all does not exist",
    "simplify model --data code.txt --save 15": "--save: expected a share from 0, below 1, got 15",
    "simplify model --data code.txt --kinds layers": "--kinds: 'layers' is unknown; .* 'layer'",
    "train sas --heads 5": "--heads: 5 heads do not divide the width 128; use 2 or 4 heads",
    "compare --heads 5": "--heads: 5 heads do not divide the width 128",
    "presets --heads 5": "--heads: 5 heads do not divide the width 128",
    "curvature preset:sas --heads 5": "--heads: 5 heads do not divide the width 128",
    "train sas --vocab-size 100": "--vocab-size: expected at least 257",
    "train sas --accumulate 3": "--batch-size: 8 sequences cannot be divided evenly",
    "compare --curvature-tokens 500 --signal-every 5": "--curvature-tokens: 500 are longer than",
    "compare --context 16": "32 are longer than the context of 16; add --curvature-tokens 16",
    # names
    "compare --presets sas,op,sas": "--presets: sas was given twice; give each once",
    "train sasp": "PRESET: 'sasp' is unknown; did you mean 'sas-p'",
    "train model": "PRESET: model is a file or folder, not a block",
    "train nowhere.json": "PRESET: nowhere.json is not a file; give one that exists",
    "train block.json": 'PRESET: block.json holds no block.* "kind": "block"',
    "compare --presets sas,presas": "--presets: 'presas' is unknown",
    "train sas --device tpu": "--device: expected auto, cpu or cuda, got 'tpu'",
    "train sas --report-to wandbb": "--report-to: 'wandbb' is unknown; did you mean 'wandb'",
    "trian sas": 'Unknown command "trian"',
    # what is written
    f"{QUANTISE}": "--size-of: give one of --size-of, --bytes, --bits, --nats",
    f"{QUANTISE} --size-of q4km": "--size-of: 'q4km' is unknown; did you mean 'Q4_K_M'",
    f"{QUANTISE} --bytes 90X": "--bytes: expected a size such as 90M, got '90X'",
    "quantise model new.bin --data code.txt --size-of Q4_0": "FILE: --to gguf writes a name that",
    f"{QUANTISE.replace('new', 'bad')} --bits 4": "FILE: bad.gguf exists already; remove it",
    "quantise model code.txt/x.gguf --data code.txt --bits 4": "FILE: code.txt/x.gguf cannot be",
    "train sas --out code.txt": "--out: code.txt cannot be written .*code.txt is a file",
    "curvature preset:sas --out code.txt/x": "--out: code.txt/x cannot be written",
    "quantise model /proc/x.gguf --data code.txt --bits 4": "FILE: /proc/x.gguf cannot be written",
    f"{PRICE} --round 4 --out ggufs": "ggufs holds something other than a run of .*price",
    "demo --out ggufs": "ggufs holds something other than a run of `hessblocks demo`",
    "signal preset:sas --out ggufs": "ggufs holds something other than a run of .*signal`",
    "train sas --out ggufs": "ggufs holds something other than a run of `hessblocks train`",
    "compare --out /proc/x": "--out: /proc/x cannot be written",
    "report nowhere": "DIR: nowhere has no config.json",
    "report code.txt": "DIR: code.txt is a file; give the folder that holds it",
    "report none": "DIR: none has no config.json",
}
"""What is typed → a pattern of the answer."""
SCRIPT = """
import contextlib, io, json, sys, time
from hessblocks.cli import main
answers = {}
for words in json.load(sys.stdin):
    before, errors = time.process_time(), io.StringIO()
    with contextlib.redirect_stderr(errors):
        status = main(words.split())
    spent = time.process_time() - before
    loaded = sorted({name.partition(".")[0] for name in sys.modules})
    answers[words] = [status, spent, errors.getvalue(), loaded]
    if "torch" in loaded:
        break
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Status, processor seconds, words and loaded packages of each answer, in one process."""
    here = tmp_path_factory.mktemp("slips")
    for name in ("none", "run", "model", "ggufs"):
        (here / name).mkdir()
    for name in ("run/config.json", "model/config.json", "block.json"):
        (here / name).write_text("{}")
    files = {"model/model.safetensors": b"", "head": b"GGUF\3\0\0\0", "ggufs/a.gguf": b"GGUF"}
    files |= {"bad.gguf": b"text", "doc.pdf": b"%PDF-1.7 and so on", "empty.txt": b""}
    files |= {"bin.dat": bytes(range(256)) * 9, "short.txt": b"forty-five letters and spaces, and "
              b"not more."}  # fmt: skip
    for name, content in files.items():
        (here / name).write_bytes(content)
    (here / "code.txt").write_text("x = 1 and so on, line by line\n" * 3000)
    before = sorted(here.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([*SLIPS]),
        capture_output=True,
        text=True,
        check=False,
        cwd=here,
        env={"PYTHONPATH": ":".join(sys.path), "HF_HOME": str(here / "hub"), "PATH": "/usr/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert sorted(here.rglob("*")) == before  # nothing is written
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("words", SLIPS)
def test_a_slip_is_answered_at_once(words: str, answers: dict[str, Any]) -> None:
    status, seconds, errors, loaded = answers[words]
    assert status == 2
    assert re.search(SLIPS[words], errors), errors
    assert len(errors.splitlines()) == 1
    assert not HEAVY & {*loaded}
    assert seconds < SECONDS - 0.5  # Python and the option parser take the rest
