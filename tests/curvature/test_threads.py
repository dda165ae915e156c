"""Several threads measure at once: models of their own, or one model in turn."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from hessblocks.curvature.closed import CountedContext, watching
from hessblocks.curvature.closed.watch import note_derivative
from hessblocks.curvature.model_state import exclusive, form_of
from hessblocks.curvature.products.forward import differentiable
from tests.breadth import everyday
from tests.curvature.cases import stir

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).double()
Y = torch.tensor([0, 0, 1, 2, 0, 1])
SIZES = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 8}


def network() -> nn.Module:
    layers = nn.Linear(8, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3)
    return stir(nn.Sequential(*layers))


def asked(model: nn.Module) -> torch.Tensor:
    problem = hb.Problem(model, [(X, Y)], loss="classification")
    group = list(hb.parameter_groups(model).values())[-1]
    block = hb.Hessian(problem, group) @ torch.ones(group.size).double()
    hb.group_norms(problem, method="sampled", parts=["outer"], probes=8)
    whole = hb.Hessian(problem) @ torch.ones(hb.Hessian(problem).shape[0]).double()
    return torch.cat([block, whole, torch.tensor([problem.value()])])


def in_threads(work: Callable[[int], Any], count: int) -> None:
    """Let threads work, switching often; the first error is raised here."""
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if failed:
        raise failed[0]


@pytest.mark.parametrize("own", everyday([True, False], False))
def test_threads_agree_with_one(own: bool) -> None:
    models = [network() for _ in range(3)] if own else [network()] * 3
    expected = [asked(model) for model in models]

    def work(number: int) -> None:
        for _ in range(6):
            torch.testing.assert_close(asked(models[number]), expected[number])

    in_threads(work, 3)
    assert torch.backends.cuda.flash_sdp_enabled()


def test_a_form_waits_for_a_pass_in_another_thread() -> None:
    model = network()
    before = form_of(model)
    with ThreadPoolExecutor(1) as pool:
        with exclusive(model):
            model[1].forward = model[1].forward
            form = pool.submit(form_of, model)
            with pytest.raises(TimeoutError):
                form.result(0.2)
            del model[1].forward
        assert form.result() == before


def test_closed_forms_of_one_model_wait_for_each_other() -> None:
    model = stir(GPT2LMHeadModel(GPT2Config(**SIZES)))
    ids = torch.randint(0, 11, (2, 5))
    expected = hb.exact_attention_curvature(model, ids).norms()
    group = next(iter(hb.parameter_groups(model).values()))
    problem = hb.Problem(model, ids)
    product = hb.Hessian(problem, group) @ torch.ones(group.size).double()

    def work(number: int) -> None:
        for _ in range(3):
            if number:
                again = hb.Problem(model, ids)
                found = hb.Hessian(again, group) @ torch.ones(group.size).double()
                torch.testing.assert_close(found, product)
            else:
                assert hb.exact_attention_curvature(model, ids).norms() == expected

    in_threads(work, 2)


def test_what_holds_for_the_process_holds_until_the_last_thread_is_out() -> None:
    inside, leave = threading.Event(), threading.Event()

    def stay(number: int) -> None:
        with differentiable(network()):
            inside.set()
            leave.wait(600)
            assert not torch.backends.cuda.flash_sdp_enabled()

    thread = threading.Thread(target=lambda: in_threads(stay, 1))
    thread.start()
    inside.wait(600)
    with differentiable(network()):
        pass
    assert not torch.backends.cuda.flash_sdp_enabled()
    leave.set()
    thread.join()
    assert torch.backends.cuda.flash_sdp_enabled()


def test_a_shared_setting_is_made_once() -> None:
    made = []

    @contextmanager
    def setting() -> Iterator[None]:
        made.append("in")
        yield
        made.append("out")

    shared = CountedContext(setting)
    for _ in range(2):
        with shared:
            with shared:
                pass
            assert made[-1] == "in"
    assert made == ["in", "out"] * 2


def test_a_watch_within_another_is_the_one_that_ends() -> None:
    with watching() as outer:
        with watching():
            pass
        note_derivative()
    assert outer.differentiated


def test_a_derivative_is_noted_where_it_is_taken() -> None:
    with watching() as outer, watching() as inner:

        def elsewhere(number: int) -> None:
            with watching() as other:
                note_derivative()
            assert other.differentiated

        in_threads(elsewhere, 1)
        assert not outer.differentiated
        assert not inner.differentiated
        in_threads(lambda number: note_derivative(), 1)  # as a thread of autograd's own
        assert outer.differentiated
        assert inner.differentiated
