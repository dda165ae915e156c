"""Values and projections near their initial value: the tied last projection, and rates against
gains."""

from collections.abc import Iterator

import pytest
import torch
from transformers import TrainerCallback

from hessblocks.data.corpus import Corpus
from hessblocks.data.python_code import load_corpus
from hessblocks.models.build import build
from hessblocks.settings.run_settings import ModelSettings, RunSettings, TrainingSettings
from hessblocks_studies.blocks_paper.restrict_updates import STUDY, slow_down, tie_last
from hessblocks_studies.shared.trained_points import REFERENCES, train
from hessblocks_studies.shared.variants import BASES, make_block, restricted
from tests.data.helpers import write_code

SIZES = {"width": 16, "heads": 2, "mlp_width": 32}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HESSBLOCKS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield load_corpus(write_code(tmp_path_factory.mktemp("code")), 260)


def model(variant: str, depth: int = 3):
    torch.manual_seed(0)
    return build(make_block(variant, **SIZES), depth=depth, vocab_size=260, context=16)


def settings(**training: object) -> RunSettings:
    chosen = {"steps": 6, "batch_size": 4, "evaluate_every": 6, "evaluation_sequences": 4}
    return RunSettings(
        preset="skipless",
        seed=1,
        model=ModelSettings(depth=3, context=16, **SIZES),
        training=TrainingSettings(**chosen | training),
    )


def matrices(made) -> list[torch.Tensor]:
    """What values and projections multiply by, but the first layer's values; then the latter."""
    attentions = [layer.attention for layer in made.model.layers]
    found = [attention.projection for attention in attentions]
    found += [attention.value for attention in attentions[1:]] + [attentions[0].value]
    return [matrix.effective_weight().detach() for matrix in found]


def test_a_tied_last_projection_undoes_all_before_it() -> None:
    """With zero queries attention passes a token by Π W_V W_P, which is the identity."""
    made = model(restricted("orthogonal", 0.2))
    loose = torch.eye(16)
    tie_last(made)
    product = torch.eye(16)
    for number, layer in enumerate(made.model.layers):
        value, projection = (
            getattr(layer.attention, name).effective_weight() for name in ("value", "projection")
        )
        product = projection @ value @ product
        if number < 2:
            loose = projection @ value @ loose
            assert not torch.allclose(projection @ value, torch.eye(16), atol=0.1)
    assert torch.allclose(product, torch.eye(16), atol=1e-5)
    assert not torch.allclose(loose, torch.eye(16), atol=0.1)


def test_a_smaller_rate_is_that_of_values_and_projections_alone(corpus: Corpus) -> None:
    made = model(restricted("orthogonal", 1))
    seen: list[dict[float, int]] = []

    class Rates(TrainerCallback):
        def on_step_begin(self, *given: object, **named: object) -> None:
            groups = named["optimizer"].param_groups
            seen.append({group["lr"]: sum(p.numel() for p in group["params"]) for group in groups})

    def change(trainer) -> None:
        slow_down(trainer, 0.25)
        trainer.add_callback(Rates())

    train(made, settings(schedule="cosine"), corpus, change=change)
    for rates in seen[1:]:
        slow, own = sorted(rates)
        assert slow == pytest.approx(0.25 * own)
        assert rates[slow] == 5 * 16 * 16
    total = sum(parameter.numel() for parameter in made.parameters())
    assert sum(seen[-1].values()) <= total


def test_a_share_of_1_changes_nothing_and_a_share_of_0_keeps_the_initial_values(
    corpus: Corpus,
) -> None:
    plain, same, still = (model(restricted("orthogonal", 1)) for _ in range(3))
    before = matrices(still)
    train(plain, settings(), corpus)
    train(same, settings(), corpus, change=lambda trainer: slow_down(trainer, 1.0))
    train(still, settings(), corpus, change=lambda trainer: slow_down(trainer, 0.0))
    for one, other in zip(plain.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)
    equal = [torch.equal(*pair) for pair in zip(before, matrices(still), strict=True)]
    assert equal == [True] * 5 + [False]


def test_a_gain_of_beta_is_a_rate_times_its_square_for_sgd(corpus: Corpus) -> None:
    """Eq. 11, exact without clipping and decay; AdamW divides one β out again."""
    beta = 0.5
    gained, slow = model(restricted("identity", beta)), model(restricted("identity", 1))
    chosen = settings(optimiser="sgd", learning_rate=0.3, weight_decay=0.0, clip=1e9)
    train(gained, chosen, corpus)
    train(slow, chosen, corpus, change=lambda trainer: slow_down(trainer, beta**2))
    for one, other in zip(matrices(gained), matrices(slow), strict=True):
        assert not torch.allclose(one, torch.eye(16), atol=1e-4)
        assert torch.allclose(one, other, atol=2e-6)


def test_a_gain_of_beta_is_a_rate_times_beta_for_adam(corpus: Corpus) -> None:
    beta = 0.5
    gained, slow = model(restricted("identity", beta)), model(restricted("identity", 1))
    chosen = settings(learning_rate=1e-3, weight_decay=0.0, clip=1e9)
    train(gained, chosen, corpus)
    train(slow, chosen, corpus, change=lambda trainer: slow_down(trainer, beta))
    moved = [matrix - torch.eye(16) for matrix in matrices(gained)]
    other = [matrix - torch.eye(16) for matrix in matrices(slow)]
    for one, two in zip(moved, other, strict=True):
        assert float((one - two).norm()) < 0.02 * float(one.norm())


def test_each_point_has_a_name_of_its_own_and_each_variant_three_rates() -> None:
    names = [point.name for point in STUDY.settings("laptop", 1)]
    assert len(set(names)) == len(names)
    rates: dict[str, set[str]] = {}
    for name in names:
        variant, _, rate = name.partition(" at rate ")
        rates.setdefault(variant, set()).add(rate)
    assert {"last tied, beta 0.2", "identity, rate x0.1", "orthogonal, rate x0"} <= set(rates)
    assert {*BASES, "identity, beta 0", "trainable gains"} <= set(rates)
    assert "identity, rate x0" not in rates  # identity, beta 0
    assert {name for name, each in rates.items() if len(each) == 4} == {"trainable gains"}
    assert {len(each) for each in rates.values()} == {4, 3, 1}
    assert {variant for variant, each in rates.items() if len(each) == 1} == set(REFERENCES)


def test_the_published_losses_stand_beside_ours() -> None:
    expected = [check.expected for check in STUDY.summarise([]).checks[:3]]
    assert expected[0].endswith(
        "of that of pre-ln, above or below; 1.178 against 1.155 at 18 layers, width 768"
    )
    assert expected[1].endswith(
        "zero queries, above or below; 1.178 against 1.155 at 18 layers, width 768"
    )
    assert expected[2].endswith("; 1.194 against 1.178 at 18 layers, width 768")
