"""Parts of the text that share no token; what the final figure is measured on; saved columns."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hessblocks as hb
from hessblocks.settings import SimplifySettings
from hessblocks.simplify import run as running
from hessblocks.simplify.place import sizes_of

TOKENS = 20_000


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, ...]:
    """The four sets, of a text whose tokens are all different."""
    monkeypatch.setattr(running, "encoded", lambda *_: np.arange(TOKENS))
    monkeypatch.setattr(running, "template_start", lambda *_: [])
    config = SimpleNamespace(vocab_size=TOKENS)
    model = SimpleNamespace(config=config, device="cpu")
    settings = SimplifySettings(sequences=8, fitted=8, tokens=16)
    return running.text_parts(model, object(), [], settings)


def test_validation_and_test_share_no_token_with_another_part(
    windows: tuple[torch.Tensor, ...],
) -> None:
    fitting, validation, test, healing = (set(tokens.flatten().tolist()) for tokens in windows)
    assert fitting <= healing
    assert not validation & test
    assert not (validation | test) & healing
    assert min(test) >= 0.9 * TOKENS
    assert min(validation) >= 0.8 * TOKENS
    assert max(validation) < 0.9 * TOKENS


def test_the_final_figure_is_measured_on_the_last_tenth(
    windows: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    small = [tokens[:4] % 37 for tokens in windows]
    model = hb.build("pre-ln", depth=2, width=16, heads=2, vocab_size=40, context=16)
    monkeypatch.setattr(running, "text_parts", lambda *_: tuple(small))
    saved = SimpleNamespace(
        name="m", licence=None, gguf=None, tokenizer=lambda **_: SimpleNamespace()
    )
    monkeypatch.setattr(running.models, "load_saved", lambda *_: (model, saved))
    monkeypatch.setattr(running, "documents_of", lambda _: [])
    monkeypatch.setattr(running, "start_words", lambda *_: "")
    monkeypatch.setattr(running, "_save", lambda *_: None)
    measured, held, healed, heal = [], running.Held, [], running.heal

    def healing(made: Any, original: Any, text: torch.Tensor, **more: Any) -> Any:
        healed.append(text)
        return heal(made, original, text, **more)

    monkeypatch.setattr(running, "heal", healing)

    def note(given: Any, tokens: torch.Tensor, *more: Any) -> Any:
        measured.append(tokens)
        return held(given, tokens, *more)

    monkeypatch.setattr(running, "Held", note)
    running.simplify_model(
        "m", tmp_path, out=tmp_path / "out", save=0.1, steps=1, device="cpu", tokens=16
    )
    assert not torch.equal(small[1], small[2])
    assert torch.equal(measured[-1], small[2])
    (text,) = healed  # and healed on the training text alone
    assert torch.equal(text, small[3])


def test_the_cache_counts_heads_of_keys_not_of_queries() -> None:
    more = {"width": 32, "heads": 4, "vocab_size": 20, "context": 8}
    model = hb.build("pre-ln", depth=1, slots=["key_value_heads=2"], **more)
    _, _, cached = sizes_of(model.model.layers[0], 8)
    assert cached == 2 * 2 * 8
