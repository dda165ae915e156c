"""Labelled tasks: labels true by construction, classes equally frequent, splits without a common
text."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from experiments.tests.data.library import write_library
from hessblocks.errors import ArgumentError, RunError
from hessblocks_studies.data import docstrings
from hessblocks_studies.data.docstrings import SPLITS, Docstring, load_docstrings
from hessblocks_studies.data.tasks import SEPARATOR, TASKS, Task, make_task, sentences, swapped


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Docstring, ...]:
    with pytest.MonkeyPatch.context() as patch:
        source = write_library(tmp_path_factory.mktemp("library"))
        patch.setenv("HESSBLOCKS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(docstrings.data, "standard_library", lambda: source)
        return load_docstrings()


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest, records: tuple[Docstring, ...]) -> Task:
    return make_task(request.param, records)


def test_no_file_and_no_text_is_in_two_splits(task: Task) -> None:
    for what in ("file", "origin"):
        seen = [{getattr(e, what) for e in task.splits[split]} for split in SPLITS]
        assert sum(map(len, seen)) == len(set().union(*seen))


def test_a_text_that_two_files_share_is_left_out_of_training(
    task: Task, records: tuple[Docstring, ...]
) -> None:
    """The planted fault: training files repeat what stands in the test files."""
    test = [r for r in records if r.split == "test" and r.kind != "prose"]
    copies = [replace(r, split="train", file="net/copy.py") for r in test]
    again = make_task(task.name, [*records, *copies])
    origins = {split: {e.origin for e in again.splits[split]} for split in SPLITS}
    assert not origins["train"] & origins["test"]


def test_every_class_is_equally_frequent_and_takes_turns(task: Task) -> None:
    for split in SPLITS:
        labels = [example.label for example in task.splits[split]]
        assert len(set(Counter(labels).values())) == 1
        assert labels[: len(task.classes)] == list(range(len(task.classes)))
    assert Counter(e.label for e in task.first("train", 7)).most_common()[0][1] <= 3
    assert len(task.first("train", None)) == len(task.splits["train"])


def test_a_task_is_the_same_every_time_and_another_with_another_seed(
    task: Task, records: tuple[Docstring, ...]
) -> None:
    assert make_task(task.name, records) == task
    assert make_task(task.name, records, seed=1) != task


def test_matching_keeps_a_functions_own_docstring_or_gives_it_anothers(
    records: tuple[Docstring, ...],
) -> None:
    own = {(r.signature, r.text) for r in records if r.kind == "function"}
    split_of = {r.text: r.split for r in records}
    for split, examples in make_task("matching", records).splits.items():
        for example in examples:
            signature, text = example.text.split(SEPARATOR, 1)
            assert ((signature, text) in own) == bool(example.label)
            assert split_of[text] == split


def test_acceptable_sentences_are_as_written_and_others_have_two_words_swapped(
    records: tuple[Docstring, ...],
) -> None:
    written = {sentence for record in records for sentence in sentences(record.text)}
    for examples in make_task("acceptability", records).splits.values():
        for example in examples:
            assert (example.text in written) == bool(example.label)
            ours, theirs = (t[:-1].split() for t in (example.text, example.origin))
            assert sorted(ours) == sorted(theirs)
            moved = sum(a != b for a, b in zip(ours, theirs, strict=True))
            assert moved == (0 if example.label else 2)


def test_a_topic_is_the_package(records: tuple[Docstring, ...]) -> None:
    task = make_task("topic", records)
    assert task.classes == ("math", "net", "text")
    for examples in task.splits.values():
        assert all(task.classes[e.label] == e.file.split("/")[0] for e in examples)


def test_sentences_are_plain() -> None:
    text = (
        "Return x.  The quick brown fox jumps. It returns `code` of this here.\n\nNot this one "
        "either."
    )
    assert sentences(text) == ["The quick brown fox jumps."]
    draw = np.random.default_rng(0)
    assert {swapped("A b a.", draw) for _ in range(20)} == {"b A a.", "A a b."}


def test_unknown_tasks_and_small_libraries_are_refused(records: tuple[Docstring, ...]) -> None:
    with pytest.raises(ArgumentError, match="task: 'topics' is unknown; did you mean 'topic'"):
        make_task("topics", records)
    with pytest.raises(RunError, match="too small for it"):
        make_task("matching", [r for r in records if r.split != "test"])
