"""A text padded on the left is the text alone, or a warning says that the model reads it as another
one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import hessblocks as hb
from hessblocks.curvature import PaddingWarning
from hessblocks.curvature.products import passes
from tests.breadth import everyday
from tests.curvature.cases import stir

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.PrecisionWarning")
SIZES = {
    "vocab_size": 19,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LENGTHS = (7, 4, 6)
LEARNED = {
    "gpt2": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 2},
    "bert": {},
}
COUNTED = {"llama": {}, "opt": {"ffn_dim": 12, "word_embed_proj_dim": 8}, "roberta": {}}
"""Rotary positions, positions that the model counts from the mask, and from its token for
padding."""


class Learned(nn.Module):
    """Learned positions that the mask does not move; a token sees the mean of what came before
    it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(19, 8), nn.Embedding(12, 8)
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 19)

    def mixed(self, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        x = (self.table(ids) + self.places(places)) * (mask != 0)[..., None]
        x = x.cumsum(1) / (mask != 0).cumsum(1).clamp(min=1)[..., None]
        out: Tensor = self.head(torch.tanh(self.inner(x)))
        return out

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.mixed(input_ids, attention_mask, torch.arange(input_ids.shape[1]))


class Told(Learned):
    """As it, told where tokens stand where somebody says so."""

    def forward(  # type: ignore[override]
        self, tokens: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None
    ) -> Tensor:
        places = torch.arange(tokens.shape[1]) if position_ids is None else position_ids
        return self.mixed(tokens, attention_mask, places)


class Unplaced(Learned):
    """As it, without positions."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.mixed(input_ids, attention_mask, torch.zeros_like(input_ids))


class Blind(Learned):
    """Sees its padding, whatever the mask says."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.mixed(input_ids, torch.ones_like(input_ids), torch.zeros_like(input_ids))


class Fixed(Learned):
    """Takes rows of one length alone."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.mixed(input_ids, attention_mask, torch.arange(max(LENGTHS)))


class Added(Learned):
    """Takes a mask that is added to scores: 0 at tokens, less at padding."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.mixed(input_ids, attention_mask == 0, torch.arange(input_ids.shape[1]))


class Last(Unplaced):
    """One answer a text, at its last place, as left padding is for."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return super().forward(input_ids, attention_mask)[:, -1]


def transformer(kind: str, options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    config = hf.AutoConfig.for_model(kind, **{**SIZES, **options})
    auto: Any = hf.AutoModelForMaskedLM if "bert" in kind else hf.AutoModelForCausalLM
    return stir(auto.from_config(config))


def texts() -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.randint(3, 19, (length,)) for length in LENGTHS]


def padded(side: str = "left", dtype: torch.dtype = torch.long, ids: str = "input_ids") -> Any:
    longest = max(LENGTHS)

    def stacked(rows: list[Tensor], value: int = 0) -> Tensor:
        gaps = [(longest - len(row), 0)[:: 1 if side == "left" else -1] for row in rows]
        return torch.stack([F.pad(r, gap, value=value) for r, gap in zip(rows, gaps, strict=True)])

    mask = stacked([torch.ones_like(row) for row in texts()]).to(dtype)
    return {ids: stacked(texts()), "attention_mask": mask}


def labelled(batch: Any) -> Any:
    """With every token but padding as its own label."""
    real = batch["attention_mask"].bool()
    return batch | {"labels": batch["input_ids"].masked_fill(~real, -100)}


def following(batch: Any) -> Tensor:
    """Labels of every token but the first of its text, which nothing stands before."""
    ids: Tensor = batch["input_ids"]
    return ids.masked_fill(batch["attention_mask"].cumsum(1) < 2, -100)


def alone(ids: str = "input_ids") -> list[dict[str, Tensor]]:
    return [{ids: t[None], "attention_mask": torch.ones_like(t[None])} for t in texts()]


def task(model: nn.Module) -> str:
    return "masked-lm" if "MaskedLM" in type(model).__name__ else "causal-lm"


def product(model: nn.Module, batches: Any) -> Tensor:
    if task(model) == "masked-lm":
        batches = [
            labelled(batch) for batch in (batches if isinstance(batches, list) else [batches])
        ]
    problem = hb.Problem(model, batches, task(model))
    size = sum(problem.entries.values())
    draw = torch.Generator().manual_seed(5)
    vector = torch.randn(size, generator=draw, dtype=torch.float64)
    found: Tensor = hb.Hessian(problem) @ vector
    return torch.cat([found, torch.tensor([problem.value()], dtype=torch.float64)])


@pytest.fixture
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PaddingWarning)
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", everyday([*LEARNED, *COUNTED], "gpt2", "bert", "llama", "roberta"))
def test_texts_padded_on_the_left_are_those_texts(kind: str) -> None:
    model = transformer(kind, {**LEARNED, **COUNTED}[kind])
    expected = product(model, alone())
    assert torch.allclose(product(model, padded()), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "dtype",
    everyday([torch.bool, torch.int32, torch.float32, torch.float64], torch.bool, torch.float32),
)
def test_masks_may_be_of_any_kind_of_number(dtype: torch.dtype) -> None:
    model = transformer("gpt2", {})
    assert torch.allclose(product(model, padded(dtype=dtype)), product(model, alone()))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "given",
    [
        lambda batch: (batch, following(batch)),
        lambda batch: [batch],
        lambda batch: [{k: v[i : i + 1] for k, v in batch.items()} for i in range(3)],
        lambda batch: torch.utils.data.DataLoader(
            [{k: v[i] for k, v in batch.items()} for i in range(3)], batch_size=2
        ),
        lambda batch: [{k: v.tolist() for k, v in batch.items()}],
    ],
    ids=["pair", "list", "rows", "loader", "numbers"],
)
def test_batches_may_come_in_any_way(given: Callable[[Any], Any]) -> None:
    model = transformer("gpt2", {})
    assert torch.allclose(product(model, given(padded())), product(model, alone()))


@pytest.mark.usefixtures("quiet")
def test_pieces_of_a_batch_are_padded_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer("gpt2", {})
    expected = product(model, alone())
    monkeypatch.setattr(passes, "FULL_CPU_WORK", 1)
    assert torch.allclose(product(model, padded()), expected)


@pytest.mark.usefixtures("quiet")
def test_what_a_model_does_decides_and_not_its_name() -> None:
    torch.manual_seed(0)
    model = stir(Told())
    own = product(model, alone("tokens"))
    assert torch.allclose(product(model, padded(ids="tokens")), own)
    batch = padded()
    inputs = tuple(batch.values())
    assert torch.allclose(product(model, [(inputs, following(batch))]), own)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("preset", ["sas", "pre-ln"])
def test_models_of_hessblocks_count_for_themselves(preset: str) -> None:
    torch.manual_seed(0)
    position = "learned" if preset == "sas" else None
    sizes = {"depth": 2, "width": 8, "heads": 2, "mlp_width": 6}
    model = stir(hb.build(preset, vocab_size=19, context=9, position=position, **sizes))
    assert torch.allclose(product(model, padded()), product(model, alone()))


@pytest.mark.parametrize(
    ("model", "said"), [(Learned, "by "), (Blind, "by "), (Fixed, "in number, or fail")]
)
def test_a_model_that_cannot_be_told_is_warned_of(model: type[nn.Module], said: str) -> None:
    torch.manual_seed(0)
    with pytest.warns(
        PaddingWarning, match=f"padded on the left .batch 1, .* differ {said}"
    ) as seen:
        found = product(stir(model()), [padded("right"), padded()])
    assert found.isfinite().all()
    assert len([one for one in seen if one.category is PaddingWarning]) == 1


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("model", [Learned, Blind, Fixed])
def test_padding_on_the_right_is_not_asked_about(model: type[nn.Module]) -> None:
    torch.manual_seed(0)
    made, rows = stir(model()), list[int]()
    made.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    product(made, padded("right"))
    assert rows.count(1) == 2  # the widest row is run twice before it is planned
    assert min(rows) == 1


@pytest.mark.usefixtures("quiet")
def test_what_has_no_positions_needs_none() -> None:
    torch.manual_seed(0)
    model = stir(Unplaced())
    assert torch.allclose(product(model, padded()), product(model, alone()))
    answers = padded() | {"labels": torch.tensor([1, 5, 3])}
    assert hb.Problem(stir(Last()), answers, "classification").value() > 0


@pytest.mark.usefixtures("quiet")
def test_positions_that_come_with_a_batch_stay() -> None:
    model, batch = transformer("gpt2", {}), padded()
    places = torch.arange(7).expand(3, -1)
    shifted = hb.Problem(model, batch | {"position_ids": places}).value()
    with torch.no_grad():
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    real = batch["attention_mask"].bool()
    counted = real[:, :-1] & real[:, 1:]
    expected = F.cross_entropy(logits[:, :-1][counted], batch["input_ids"][:, 1:][counted])
    assert shifted == pytest.approx(float(expected))
    told = hb.Problem(model, batch).value()
    assert shifted != pytest.approx(told, rel=1e-3)
    both = [batch, batch | {"position_ids": places}]
    assert hb.Problem(model, both).value() == pytest.approx((told + shifted) / 2)


def test_a_mask_that_is_changed_in_place_is_followed() -> None:
    model, batch, changed = transformer("gpt2", {}), padded("right"), padded()
    problem = hb.Problem(model, batch)
    problem.value()
    for name, tensor in batch.items():
        tensor.copy_(changed[name])
    assert problem.value() == pytest.approx(hb.Problem(model, alone()).value())


@pytest.mark.usefixtures("quiet")
def test_zeros_of_a_mask_that_is_added_are_not_padding() -> None:
    torch.manual_seed(0)
    batch = labelled(padded("right"))
    added = batch | {"attention_mask": torch.where(batch["attention_mask"] == 0, -1e9, 0.0)}
    assert hb.Problem(stir(Added()), added).value() > 0


@pytest.mark.usefixtures("quiet")
def test_inputs_of_a_decoder_have_no_padding_of_the_encoder() -> None:
    torch.manual_seed(0)
    config = hf.T5Config(vocab_size=19, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    model = stir(hf.T5ForConditionalGeneration(config))
    answers = {"decoder_input_ids": torch.randint(3, 19, (3, 7)), "labels": padded()["input_ids"]}
    left, right = (
        hb.Problem(model, padded(side) | answers, "seq2seq").value() for side in ("left", "right")
    )
    assert left == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_encoders_of_two_parts_are_asked_too(side: str) -> None:
    torch.manual_seed(0)
    config = hf.BartConfig(
        vocab_size=19,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        max_position_embeddings=16,
    )
    model = stir(hf.BartForConditionalGeneration(config))
    batch = padded(side) | {"labels": torch.randint(3, 19, (3, 7))}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", PaddingWarning)
        hb.Problem(model, batch, "seq2seq").value()
    assert any(one.category is PaddingWarning for one in seen) == (side == "left")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", everyday(["gpt2", "bert", "llama"], "gpt2"))
def test_closed_forms_are_of_the_texts(kind: str) -> None:
    model = transformer(kind, {**LEARNED, **COUNTED}[kind])
    masked = task(model) == "masked-lm"
    batches = [labelled(padded(s)) if masked else padded(s) for s in ("left", "right")]
    left, right = (hb.exact_last_block(model, batch, task(model)) for batch in batches)
    for part in ("outer", "functional"):
        for group in ("query", "unembedding"):
            blocks = [found.block("query", group, part).dense() for found in (left, right)]
            assert torch.allclose(*blocks, atol=1e-6 * float(blocks[1].abs().max()))
    heads = [hb.exact_attention_curvature(model, batch, task(model)) for batch in batches]
    blocks = [found.block("value", "query", "full").dense() for found in heads]
    assert torch.allclose(*blocks, atol=1e-6 * float(blocks[1].abs().max()))
