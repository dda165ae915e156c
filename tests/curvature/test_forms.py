"""The forms of data, outputs and losses that users have, against torch's own mean loss and its
Hessian."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.func import functional_call
from transformers.modeling_outputs import SequenceClassifierOutput

import hessblocks as hb
from hessblocks.curvature import custom_groups
from hessblocks.errors import ArgumentError
from tests.breadth import everyday

ROWS, FEATURES, CLASSES, PLACES = 6, 3, 4, 2
pytestmark = pytest.mark.filterwarnings(
    "ignore::hessblocks.curvature.AttentionBackendWarning",
    "ignore::hessblocks.curvature.PrecisionWarning",
)


class Net(nn.Module):
    """A small classifier; `places` puts its classes on axis 1 of three."""

    def __init__(self, places: int = 0, form: Callable[[Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES * max(1, places))
        self.places, self.form = places, form

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Any:
        x = x if shift is None else x + shift
        logits = self.last(torch.tanh(self.first(x)))
        return self.form(logits.view(-1, CLASSES, self.places) if self.places else logits)


def check(
    model: nn.Module,
    batches: Any,
    loss: Any,
    mean: Callable[[nn.Module, dict[str, Tensor]], Tensor],
) -> None:
    """Value, H and H_o + H_f against a mean loss written out with torch."""
    parameters = dict(model.named_parameters())
    sizes = [p.numel() for p in parameters.values()]

    def whole(flat: Tensor) -> Tensor:
        pieces = zip(parameters.items(), flat.split(sizes), strict=True)
        return mean(model, {n: v.view_as(p) for (n, p), v in pieces})

    point = torch.cat([p.detach().flatten() for p in parameters.values()])
    expected = torch.autograd.functional.hessian(whole, point)
    problem = hb.Problem(model, batches, loss=loss)
    group = custom_groups(model, {"all": list(parameters)})["all"]
    assert problem.value() == pytest.approx(float(whole(point)), rel=1e-12)
    full = hb.Hessian(problem, group).dense()
    parts = hb.OuterProduct(problem, group).dense() + hb.Functional(problem, group).dense()
    for found in (full, parts):
        assert (found - expected).norm() <= 1e-12 * expected.norm()


def features(rows: int = ROWS) -> Tensor:
    return torch.randn(rows, FEATURES, dtype=torch.float64)


def weights() -> Tensor:
    return torch.tensor([0.5, 2.0, 1.0, 0.1], dtype=torch.float64)


CLASS = torch.tensor([0, 3, 1, -100, 2, 1])
PLACED = torch.tensor([[0, 1], [3, -100], [2, 2], [1, 0], [0, 0], [3, 1]])
LOSSES: dict[str, tuple[nn.Module, Tensor, int]] = {
    "cross-entropy": (nn.CrossEntropyLoss(), CLASS, 0),
    "ignored class": (nn.CrossEntropyLoss(ignore_index=1), CLASS.clamp(min=0), 0),
    "weighted": (nn.CrossEntropyLoss(weight=weights()), CLASS, 0),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), CLASS, 0),
    "weighted and smoothed": (
        nn.CrossEntropyLoss(weight=weights(), label_smoothing=0.2, ignore_index=2),
        CLASS.clamp(min=0),
        0,
    ),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), CLASS, 0),
    "classes on axis 1": (nn.CrossEntropyLoss(), PLACED, PLACES),
    "weighted on axis 1": (nn.CrossEntropyLoss(weight=weights()), PLACED, PLACES),
    "soft labels": (nn.CrossEntropyLoss(), torch.rand(ROWS, CLASSES), 0),
    "weighted soft labels": (nn.CrossEntropyLoss(weight=weights()), torch.rand(ROWS, CLASSES), 0),
    "soft labels on axis 1": (nn.CrossEntropyLoss(), torch.rand(ROWS, CLASSES, PLACES), PLACES),
    "squared error": (nn.MSELoss(), torch.randn(ROWS, CLASSES), 0),
    "sum of squares": (nn.MSELoss(reduction="sum"), torch.randn(ROWS, CLASSES), 0),
    "binary": (nn.BCEWithLogitsLoss(), torch.randint(0, 2, (ROWS, CLASSES)), 0),
    "binary, weighted": (
        nn.BCEWithLogitsLoss(pos_weight=weights()),
        torch.rand(ROWS, CLASSES),
        0,
    ),
    "binary sum": (nn.BCEWithLogitsLoss(reduction="sum"), torch.rand(ROWS, CLASSES), 0),
    "huber": (nn.HuberLoss(delta=0.3), torch.randn(ROWS, CLASSES), 0),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    everyday(
        LOSSES,
        "ignored class",
        "weighted and smoothed",
        "classes on axis 1",
        "weighted soft labels",
        "sum of squares",
        "binary, weighted",
        "huber",
    ),
)
def test_a_loss_module_of_torch(name: str) -> None:
    module, labels, places = LOSSES[name]
    model, x = Net(places).double(), features()
    if labels.is_floating_point() or "binary" in name:
        labels = labels.double()

    def mean(model: nn.Module, parameters: dict[str, Tensor]) -> Tensor:
        found: Tensor = module.double()(functional_call(model, parameters, (x,)), labels)
        return found

    check(model, [(x, labels)], module, mean)
    check(model, [(x[:2], labels[:2]), (x[2:], labels[2:])], module, mean)
    assert module.reduction in ("mean", "sum")


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "pair": lambda x, y: [(x, y)],
    "one pair": lambda x, y: (x, y),
    "pair with a dict": lambda x, y: [({"x": x}, y)],
    "one pair with a dict": lambda x, y: ({"x": x}, y),
    "pair of several": lambda x, y: [((x - 1, torch.ones_like(x)), y)],
    "list pair": lambda x, y: [[x, y]],
    "dict with labels": lambda x, y: [{"x": x, "labels": y}],
    "lists of numbers": lambda x, y: [(x.tolist(), y.tolist())],
    "loader": lambda x, y: torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=4
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_of_data(name: str) -> None:
    model, x, y = Net().double(), features(), CLASS.clamp(min=0)
    if name == "lists of numbers":  # they become single precision, as in torch.tensor
        x = x.float()
        model = model.float()
        problem = hb.Problem(model, FORMS[name](x, y), loss="classification")
        expected = nn.functional.cross_entropy(model(x), y)
        assert problem.value() == pytest.approx(expected.item(), rel=1e-6)
        return
    check(
        model,
        FORMS[name](x, y),
        "classification",
        lambda m, p: nn.functional.cross_entropy(functional_call(m, p, (x,)), y),
    )


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda logits: logits,
    "dict": lambda logits: {"logits": logits, "other": 1},
    "tuple": lambda logits: (logits, None),
    "model output": lambda logits: SequenceClassifierOutput(logits=logits),
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("own", [False, True])
def test_a_form_of_outputs(name: str, own: bool) -> None:
    model, x, y = Net(form=OUTPUTS[name]).double(), features(), CLASS.clamp(min=0)

    def logits_of(outputs: Any) -> Tensor:
        if isinstance(outputs, dict):
            return outputs["logits"]
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def rows(outputs: Any, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(logits_of(outputs), batch[1], reduction="none")

    check(
        model,
        [(x, y)],
        rows if own else "classification",
        lambda m, p: nn.functional.cross_entropy(logits_of(functional_call(m, p, (x,))), y),
    )


def test_token_ids_as_lists() -> None:
    model = hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=11, context=8)
    tokens = torch.randint(0, 11, (2, 6))
    expected = hb.Problem(model, {"input_ids": tokens}).value()
    assert hb.Problem(model, [tokens.tolist()]).value() == expected
    assert hb.Problem(model, [{"input_ids": tokens.tolist()}]).value() == expected


_T5 = {
    "d_model": 8,
    "d_kv": 2,
    "d_ff": 6,
    "num_layers": 1,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_BART = {
    "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 6, "decoder_ffn_dim": 6,
    "max_position_embeddings": 12, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
SEQ2SEQ: dict[str, Callable[[], nn.Module]] = {
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=11, **_T5)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(vocab_size=11, **_BART)),
}


@pytest.mark.parametrize(("kind", "step"), [("t5", 1e-3), ("bart", 1e-5)])
def test_an_encoder_decoder(kind: str, step: float) -> None:
    """Against differences of the gradient; T5's norms work in single precision, which wants long
    steps."""
    torch.manual_seed(1)
    model = SEQ2SEQ[kind]().eval().double()
    tokens, labels = torch.randint(3, 11, (2, 5)), torch.randint(3, 11, (2, 4))
    labels[0, -1] = -100
    batch = {"input_ids": tokens, "labels": labels}
    problem = hb.Problem(model, [batch], loss="seq2seq")
    assert problem.value() == pytest.approx(float(model(**batch).loss.detach()), rel=1e-6)
    name = next(n for n, p in model.named_parameters() if "decoder" in n and p.ndim == 2)
    parameter = model.get_parameter(name)
    group = custom_groups(model, {"one": name})["one"]
    direction = torch.randn(group.size, dtype=torch.float64)
    product = hb.Hessian(problem, group) @ direction
    slopes = []
    for share in (step, -2 * step):
        with torch.no_grad():
            parameter += share * direction.view_as(parameter)
        slopes += torch.autograd.grad(model(**batch).loss, parameter)
    difference = (slopes[0] - slopes[1]).flatten() / (2 * step)
    assert (product - difference).norm() <= 1e-3 * difference.norm()


REFUSED: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "no reduction": (
        lambda m: hb.Problem(m, [(features(), CLASS)], loss=nn.CrossEntropyLoss(reduction="none")),
        "expected reduction='mean' or 'sum', got 'none'",
    ),
    "another module": (
        lambda m: hb.Problem(m, [(features(), CLASS)], loss=nn.CTCLoss()),
        "CTCLoss is unknown; known: CrossEntropyLoss, MSELoss",
    ),
    "labels of another shape": (
        lambda m: hb.Problem(m, [(features(), torch.zeros(ROWS))], loss=nn.MSELoss()).value(),
        "expected the shape of the logits",
    ),
    "classes on the wrong axis": (
        lambda m: hb.Problem(m, [(features(), PLACED)], loss=nn.CrossEntropyLoss()).value(),
        "classes stand on axis 1",
    ),
    "seq2seq without decoder": (
        lambda m: hb.Problem(m, [(features(), CLASS)], loss="seq2seq").value(),
        "expects an encoder-decoder",
    ),
    "ragged lists": (
        lambda m: hb.Problem(m, [[[1, 2], [3]]]),
        "lists of numbers must have equal lengths",
    ),
    "labels in a dict": (
        lambda m: hb.Problem(m, [(features(), {"y": CLASS})], loss="classification"),
        "expected labels in one tensor",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused(name: str) -> None:
    call, sentence = REFUSED[name]
    with pytest.raises(ArgumentError, match=sentence):
        call(Net().double())
