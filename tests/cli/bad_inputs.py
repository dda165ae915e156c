"""Bad input of the command line, and the sentence that answers each.

python -m tests.cli.bad_inputs     prints the table of cases and answers as Markdown
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from tests.data.helpers import write_code

SIZES = ("--depth", "1", "--width", "16", "--heads", "2", "--vocab-size", "300", "--context", "32")
TINY = (*SIZES, "--steps", "4", "--batch-size", "2", "--evaluate-every", "2")
LOOK = ("--data", "random", "--sequences", "1", "--tokens", "4")
PROBES = ("--probes", "4")


@dataclass(frozen=True)
class Bad:
    """Words that a user types, in the folder that `files` fills; code/ holds text to train on."""

    words: tuple[str, ...]
    status: int
    answer: str
    """A pattern that what is said on standard error must match."""
    files: Callable[[Path], object] = lambda here: None
    """Fills the working folder beforehand."""


def gpt2(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 300, "n_positions": 32}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(folder)
    return folder


def bert(folder: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    BertForMaskedLM(BertConfig(**sizes, intermediate_size=16, vocab_size=300)).save_pretrained(
        folder
    )


def nan(folder: Path) -> None:
    weights = load_file(gpt2(folder) / "model.safetensors")
    save_file(
        {name: torch.full_like(value, torch.nan) for name, value in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def cut(folder: Path) -> None:
    weights = gpt2(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])


def without_weights(folder: Path) -> None:
    (gpt2(folder) / "model.safetensors").unlink()


def bad_json(folder: Path) -> None:
    (gpt2(folder) / "config.json").write_text('{"model_type": ')


def another_block(folder: Path) -> None:
    sizes = {"depth": 2, "width": 16, "heads": 2, "vocab_size": 300, "context": 32}
    hb.build("sas", **sizes).save_pretrained(folder)
    hb.build("pre-ln", **sizes).save_pretrained(folder.with_name("other"))
    shutil.copy(folder.with_name("other") / "config.json", folder / "config.json")


def sparse(file: Path) -> None:
    with file.open("wb") as text:
        text.truncate(60 * 2**30)


def closed(folder: Path) -> None:
    (write_code(folder) / "module_0.py").chmod(0)


def train(*words: str, preset: str = "sas") -> tuple[str, ...]:
    return ("train", preset, "--data", "code", *TINY, "--out", "out", *words)


def compare(*words: str) -> tuple[str, ...]:
    return ("compare", "--data", "code", *TINY, "--out", "out", *words)


def curvature(*words: str) -> tuple[str, ...]:
    return ("curvature", *words, *PROBES, "--out", "out")


CASES: dict[str, Bad] = {
    # the command line itself
    "unknown preset": Bad(
        train(preset="sasp"), 2, "PRESET: 'sasp' is unknown; did you mean 'sas-p'"
    ),
    "unknown command": Bad(("trian",), 2, 'Unknown command "trian"'),
    "no preset": Bad(("train",), 2, "PRESET is missing; type hessblocks train PRESET"),
    "an option without its value": Bad(
        train("--optimiser"), 2, "--optimiser has no value; type hessblocks train PRESET"
    ),
    "a depth between two": Bad(
        train("--depth", "2.5"), 2, "--depth: expected a whole number, got '2.5'"
    ),
    "a seed between two": Bad(
        train("--seed", "1.5"), 2, "--seed: expected a whole number, got '1.5'"
    ),
    "an opposite that no option has": Bad(train("--no-bf16"), 2, "Unknown option: --no-bf16"),
    "an option that would be empty": Bad(("presets", "--empty-set"), 2, "Unknown option: --empty"),
    "a word too many": Bad(("presets", "sas"), 2, "sas: nothing more was expected here"),
    "blocks without their option": Bad(
        ("compare", "pre-ln", "sas"),
        2,
        "pre-ln sas: nothing more was expected here; type --presets pre-ln,sas.",
    ),
    "a share that is no number": Bad(
        train("--warmup", "5 %%"), 2, "--warmup: expected a share such as 0.15 or 15%, got '5 %%'"
    ),
    "an option before the command": Bad(("--depth", "2"), 2, 'Unknown command "--depth"'),
    "unknown option": Bad(train("--stepz", "3"), 2, "Unknown option: --stepz"),
    "depth 0": Bad(
        train("--depth", "0"), 2, "--depth: expected a whole number of at least 1, got 0"
    ),
    "depth text": Bad(train("--depth", "many"), 2, "--depth: expected a whole number, got 'many'"),
    "heads that do not divide": Bad(
        train("--width", "15", "--heads", "4"), 2, "--heads: 4 heads do not divide the width 15"
    ),
    "vocabulary 0": Bad(train("--vocab-size", "0"), 2, "--vocab-size: expected"),
    "vocabulary -5": Bad(train("--vocab-size", "-5"), 2, "--vocab-size: expected"),
    "rate nan": Bad(
        train("--learning-rate", "nan"), 2, "--learning-rate: expected a number above 0"
    ),
    "rate -1": Bad(train("--learning-rate", "-1"), 2, "--learning-rate: expected a number above 0"),
    "rate inf": Bad(
        train("--learning-rate", "inf"), 2, "--learning-rate: expected a number above 0"
    ),
    "rate 1e30": Bad(train("--learning-rate", "1e30"), 1, "diverged"),
    "momentum with adamw": Bad(train("--momentum", "0.9"), 2, "--momentum: adamw has none"),
    "unknown optimiser": Bad(
        train("--optimiser", "adam"),
        2,
        'Invalid value "adam" for --optimiser. Choose from: .* Did you mean "adamw"',
    ),
    "unknown schedule": Bad(
        train("--schedule", "const"), 2, 'Invalid value "const" for --schedule'
    ),
    # data
    "data missing": Bad(train("--data", "/nope/x"), 2, "--data: /nope/x is not a file or folder"),
    "data empty file": Bad(
        train("--data", "empty.txt"),
        2,
        "--data: empty.txt has too little text",
        lambda p: (p / "empty.txt").touch(),
    ),
    "data an empty name": Bad(train("--data", ""), 2, "--data: expected a file or folder, got ''"),
    "data tiny file": Bad(
        train("--data", "tiny.txt"),
        2,
        "--data: ",
        lambda p: (p / "tiny.txt").write_text("x = 1\n"),
    ),
    "data empty folder": Bad(
        train("--data", "none"), 2, "--data: none holds no files", lambda p: (p / "none").mkdir()
    ),
    "data binary": Bad(
        train("--data", "bin.dat"),
        2,
        "--data: bin.dat is not UTF-8 text",
        lambda p: (p / "bin.dat").write_bytes(bytes(range(256)) * 200),
    ),
    "data with a name in Unicode": Bad(
        train("--data", "日本 ü"), 0, "", lambda p: write_code(p / "日本 ü")
    ),
    "data unreadable": Bad(
        train("--data", "secret/module_0.py"), 2, "cannot be read", lambda p: closed(p / "secret")
    ),
    "a sparse text of 60 GB": Bad(
        train("--data", "vast.txt"), 2, "--data: vast.txt", lambda p: sparse(p / "vast.txt")
    ),
    # the folder to write
    "out read-only": Bad(
        train("--out", "shut/out"),
        2,
        "--out: shut/out cannot be written",
        lambda p: (p / "shut").mkdir(mode=0o555),
    ),
    "out is a file": Bad(
        train("--out", "afile"),
        2,
        "--out: afile cannot be written",
        lambda p: (p / "afile").write_text("text"),
    ),
    "out under a file": Bad(
        train("--out", "afile/x"),
        2,
        "--out: afile/x cannot be written",
        lambda p: (p / "afile").write_text("text"),
    ),
    "out in /proc": Bad(train("--out", "/proc/x"), 2, "--out: /proc/x cannot be written"),
    "out a foreign folder": Bad(
        train("--out", "m_ok"),
        2,
        "--out: m_ok holds something other than a run of `hessblocks train`; choose a new",
        lambda p: gpt2(p / "m_ok"),
    ),
    # machine and sizes
    "cuda absent": Bad(train("--device", "cuda"), 2, "--device: this machine has no usable cuda"),
    "cuda:7": Bad(train("--device", "cuda:7"), 2, "--device: expected auto, cpu or cuda"),
    "device tpu": Bad(train("--device", "tpu"), 2, "--device: expected auto, cpu or cuda"),
    "seed -1": Bad(train("--seed", "-1"), 2, "--seed: expected 0 or more, got -1"),
    "seed 2**70": Bad(train("--seed", str(2**70)), 2, "--seed"),
    "width beyond the memory": Bad(train("--width", "10000000"), 2, "--width: "),
    "batch beyond the memory": Bad(train("--batch-size", "1000000000"), 2, "--batch-size: "),
    "context longer than the text": Bad(train("--context", "100000000"), 2, "--context|--data"),
    "accumulation that does not divide": Bad(
        train("--accumulate", "3"), 2, "--batch-size: 2 sequences cannot be divided evenly"
    ),
    "unknown curvature groups": Bad(
        train("--curvature-every", "2", "--curvature-groups", "qery"),
        2,
        "--curvature-groups: 'qery' is unknown",
    ),
    # comparisons
    "presets empty": Bad(compare("--presets", ""), 2, "--presets: expected names with commas"),
    "presets twice": Bad(
        compare("--presets", "sas,sas"), 2, "--presets: sas was given twice; give each once"
    ),
    "presets with a space": Bad(
        compare(
            *("--presets", "pre-ln, sas", "--curvature-probes", "4"),
            *("--curvature-sequences", "1", "--curvature-tokens", "4"),
        ),
        0,
        "",
    ),
    # trackers
    "a tracker that is not installed": Bad(
        train("--report-to", "trackio"), 2, "--report-to: trackio is not installed; run pip install"
    ),
    "an unknown tracker": Bad(
        compare("--report-to", "wandbb"),
        2,
        "--report-to: 'wandbb' is unknown; did you mean 'wandb'",
    ),
    "a command that is nearly one of before": Bad(("finetun",), 2, 'Unknown command "finetun"'),
    # models to measure
    "model folder missing": Bad(curvature("nofolder/x/y"), 2, "MODEL: nofolder/x/y does not exist"),
    "no name of a model": Bad(curvature("a b", *LOOK), 2, "MODEL: a b does not exist; give"),
    "hub name, no network": Bad(
        curvature("gpt2"), 2, "MODEL: 'gpt2' is not a folder, and no model"
    ),
    "hub name with a slash": Bad(
        curvature("openai-community/gpt2"), 2, "MODEL: 'openai-community/gpt2' is not a folder"
    ),
    "a file for a folder": Bad(
        curvature("afile"),
        2,
        "MODEL: afile is a text, not a model",
        lambda p: (p / "afile").write_text("text"),
    ),
    "a folder without model": Bad(
        curvature("m_empty"), 2, "MODEL: m_empty holds no model", lambda p: (p / "m_empty").mkdir()
    ),
    "cut weights": Bad(curvature("m", *LOOK), 1, "damaged or cut off", lambda p: cut(p / "m")),
    "bad JSON": Bad(
        curvature("m", *LOOK), 1, "m/config.json, line 1: not JSON", lambda p: bad_json(p / "m")
    ),
    "no weights": Bad(
        curvature("m", *LOOK),
        2,
        "MODEL: m holds no model, since it has no weights",
        lambda p: without_weights(p / "m"),
    ),
    "NaN weights": Bad(curvature("m", *LOOK), 1, "not finite|NaN|nan", lambda p: nan(p / "m")),
    "a masked model": Bad(
        curvature("m", *LOOK), 2, "MODEL: m is a BertForMaskedLM", lambda p: bert(p / "m")
    ),
    "configuration of another block": Bad(
        curvature("m", *LOOK),
        1,
        "weights are those of another block",
        lambda p: another_block(p / "m"),
    ),
    "no tokenizer": Bad(
        curvature("m", "--sequences", "1", "--tokens", "4"),
        2,
        "no tokenizer",
        lambda p: gpt2(p / "m"),
    ),
    "tokens beyond the context": Bad(
        curvature("m", "--data", "random", "--tokens", "64"),
        2,
        "--tokens: 64 are longer than the context of 32",
        lambda p: gpt2(p / "m"),
    ),
    "unknown groups": Bad(
        curvature("m", *LOOK, "--groups", "*.qery"),
        2,
        r"--groups: '\*.qery' matches nothing",
        lambda p: gpt2(p / "m"),
    ),
    "unknown parts": Bad(
        curvature("m", *LOOK, "--parts", "inner"),
        2,
        "--parts: 'inner' is unknown",
        lambda p: gpt2(p / "m"),
    ),
    "unknown level": Bad(
        curvature("m", *LOOK, "--level", "layer"),
        2,
        'Invalid value "layer" for --level',
        lambda p: gpt2(p / "m"),
    ),
    "unknown method": Bad(
        curvature("m", *LOOK, "--method", "sample"),
        2,
        'Invalid value "sample" for --method. .* Did you mean "sampled"',
        lambda p: gpt2(p / "m"),
    ),
    "sampled parts": Bad(
        curvature("m", *LOOK, "--method", "sampled"),
        2,
        "--method: sampled measures the outer part alone; add --parts outer",
        lambda p: gpt2(p / "m"),
    ),
    "a memory limit that is no number": Bad(
        curvature("m", *LOOK, "--memory-limit", "nan"),
        2,
        "--memory-limit: expected .*GB",
        lambda p: gpt2(p / "m"),
    ),
    "more eigenvalues than parameters": Bad(
        curvature("m", *LOOK, "--eigenvalues", "100000000"),
        2,
        r"--eigenvalues: 100000000 are more than the \d+ parameters",
        lambda p: gpt2(p / "m"),
    ),
    "a classifier without labels": Bad(
        curvature("m", *LOOK, "--loss", "classification"),
        2,
        "--loss: classification needs labelled data; from Python",
        lambda p: gpt2(p / "m"),
    ),
    "a masked loss of a causal model": Bad(
        curvature("m", *LOOK, "--loss", "masked-lm"),
        2,
        "MODEL: m is a GPT2LMHeadModel",
        lambda p: gpt2(p / "m"),
    ),
    "a text that is not there, for a model": Bad(
        curvature("m", "--data", "nowhere.txt"),
        2,
        "--data: nowhere.txt is not a file or folder",
        lambda p: gpt2(p / "m"),
    ),
    "one probe": Bad(
        ("curvature", "m", *LOOK, "--probes", "1"),
        2,
        "--probes: expected a whole number of at least 4, got 1",
        lambda p: gpt2(p / "m"),
    ),
    "memory limit 0": Bad(
        curvature("m", *LOOK, "--memory-limit", "0"),
        2,
        "--memory-limit: expected .*GB",
        lambda p: gpt2(p / "m"),
    ),
    "memory limit too small": Bad(
        curvature("m", *LOOK, "--memory-limit", "1e-9"),
        2,
        "--memory-limit: .* limit is 1 bytes",
        lambda p: gpt2(p / "m"),
    ),
    "memory limit -1": Bad(
        curvature("m", *LOOK, "--memory-limit", "-1"),
        2,
        "--memory-limit: expected .*GB",
        lambda p: gpt2(p / "m"),
    ),
    "a depth for a saved model": Bad(
        curvature("m", *LOOK, "--depth", "3"),
        2,
        "--depth: a saved model has sizes",
        lambda p: gpt2(p / "m"),
    ),
    "unknown preset to measure": Bad(curvature("preset:foo"), 2, "MODEL: 'foo' is unknown"),
    "preset without a name": Bad(curvature("preset:"), 2, "MODEL: '' is unknown"),
    "model without a name": Bad(curvature(""), 2, "MODEL: "),
    "signal of nothing": Bad(("signal", "--out", "out"), 2, "MODEL is missing; type hessblocks"),
    "signal of NaN": Bad(
        ("signal", "m", *LOOK, "--out", "out"), 1, "not finite|NaN|nan", lambda p: nan(p / "m")
    ),
    "signal of both": Bad(
        (
            "signal",
            "preset:sas",
            "preset:pre-ln",
            *SIZES[:8],
            *LOOK[:2],
            "--tokens",
            "4",
            "--out",
            "out",
        ),
        0,
        "",
    ),
    # reports
    "report of nothing": Bad(("report", "nodir"), 2, "DIR: nodir has no config.json"),
    "report of a foreign folder": Bad(
        ("report", "foreign"),
        1,
        "config.json.* expected",
        lambda p: [
            (p / "foreign").mkdir(),
            (p / "foreign" / "config.json").write_text(json.dumps({"a": 1})),
        ],
    ),
    "report of a file": Bad(
        ("report", "afile"),
        2,
        "DIR: afile is a file; give the folder that holds it",
        lambda p: (p / "afile").write_text("text"),
    ),
    "report of an empty folder": Bad(
        ("report", "none"), 2, "DIR: none has no config.json", lambda p: (p / "none").mkdir()
    ),
    "an error with --json": Bad(train("--json", preset="nope"), 2, "PRESET: 'nope' is unknown"),
}


def prepare(here: Path, case: Bad) -> None:
    """Fill a working folder."""
    write_code(here / "code")
    case.files(here)


def table() -> None:
    """Print every case with its exit status and the last line of its answer."""
    print("| case | exit | answer |\n| --- | --- | --- |")
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            prepare(Path(folder), case)
            nobody = name in NOT_FOR_ROOT and os.geteuid() == 0
            if nobody:
                print(f"| {name} | - | only for a user without root's rights |")
                continue
            run = subprocess.run(
                [sys.executable, "-m", "hessblocks", *case.words],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
        said = re.sub(
            r"\s+", " ", run.stderr.strip().splitlines()[-1] if run.stderr.strip() else ""
        )
        trace = " **traceback**" if "Traceback" in run.stderr else ""
        print(f"| {name} | {run.returncode}{trace} | {said[:160].replace('|', '/')} |", flush=True)


NOT_FOR_ROOT = ("data unreadable", "out read-only")
"""Root may read and write everything; tests/cli/test_permissions.py asks them of another user."""

if __name__ == "__main__":
    table()
