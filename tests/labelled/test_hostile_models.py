"""A model folder of somebody else's is fine-tuned without executing anything of it."""

import json
import pickle
import shutil
from pathlib import Path

import pytest

from hessblocks.errors import RunError
from hessblocks.progress import Progress
from hessblocks.settings import FinetuneSettings
from hessblocks.training.labelled.labelled_run import finetune_saved
from tests.inspection.test_hostile_folders import TRAP, Bomb


@pytest.mark.parametrize("beside", [False, True])
def test_code_and_pickles_are_left_alone(
    saved: dict[str, Path], reviews: Path, tmp_path: Path, beside: bool
) -> None:
    marker, model = tmp_path / "executed", tmp_path / "model"
    shutil.copytree(saved["gpt2"], model)
    (model / "evil.py").write_text(TRAP.format(marker=str(marker)), encoding="utf-8")
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    classes = {
        "config.json": {
            "AutoConfig": "evil.Evil",
            "AutoModelForSequenceClassification": "evil.EvilModel",
        },
        "tokenizer_config.json": {"AutoTokenizer": ["evil.EvilTokenizer", None]},
    }
    for name, planted in classes.items():
        said = json.loads((model / name).read_text(encoding="utf-8"))
        (model / name).write_text(json.dumps(said | {"auto_map": planted}), encoding="utf-8")
    settings, out = FinetuneSettings(epochs=1), tmp_path / "out"
    if beside:
        finetune_saved(str(model), reviews, settings, out, Progress())
        assert not list(out.rglob("*.py"))
    else:
        (model / "model.safetensors").unlink()
        with pytest.raises(RunError, match=r"MODEL: .* cannot be loaded .*safetensors"):
            finetune_saved(str(model), reviews, settings, out, Progress())
    assert not marker.exists()
