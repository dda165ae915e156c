"""A newcomer's first script: a Llama folder of their own, twelve lines, nothing to be told off
for."""

import warnings
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SCRIPT = """
import torch, hessblocks as hb
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("llama")
batch = {"input_ids": torch.randint(0, model.config.vocab_size, (4, 16))}
problem, groups = hb.Problem(model, batch), hb.parameter_groups(model)
H = hb.Hessian(problem)
top = hb.extreme_eigenvalues(H, 1, "largest")
hb.spectral_density(H, steps=20).plot().savefig("spectrum.png")
hb.curvature_map(problem, groups, probes=4).plot().savefig("map.png")
hb.group_norms(problem, groups, probes=4).plot().savefig("norms.png")
hb.measure_curvature("llama", batch, probes=4, out="run", finish=hb.report.write_curvature_report)
print(problem, top, sep="\\n")
"""
REPORT = Path("run", "report.html")


def save_llama(folder: Path) -> LlamaForCausalLM:
    """A tiny Llama in the folder `llama`, as the script expects it."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 40}
    config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder / "llama")
    return model


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaForCausalLM:
    model = save_llama(tmp_path)
    monkeypatch.chdir(tmp_path)
    return model


@pytest.mark.slow
def test_twelve_lines_measure_a_saved_llama_without_a_warning(
    llama: LlamaForCausalLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in SCRIPT.splitlines() if line]
    assert len(lines) <= 12
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(SCRIPT, "first.py", "exec"), names)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Problem(LlamaForCausalLM, trainable parameters ")
    assert said[1].startswith("eigenvalues ")
    for name in ("spectrum", "map", "norms"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert "The curvature of llama" in (tmp_path / REPORT).read_text(encoding="utf-8")
