"""Long texts: read in blocks, encoded in parts, stopped by a signal and taken up again."""

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hessblocks.data import corpus, texts
from hessblocks.data.corpus import learn_encoding, write_tokens
from hessblocks.data.python_code import load_corpus
from hessblocks.data.texts import TextFile, cut_runs, pieces_of, slices_of, text_file
from hessblocks.errors import RunError
from tests.data.helpers import write_code

TEXT = "".join(f"naïve {n}🙂\r\n" * (n % 3) + "日本" * (n % 7) for n in range(60)) + "\n\nend"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_BLOCK", 64)
    monkeypatch.setattr(corpus, "_BATCH", 256)


@pytest.fixture
def file(tmp_path: Path) -> TextFile:
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    found = text_file(path)
    assert found is not None
    return found


def cut_at_once(text: str, most: int = 64) -> list[str]:
    """The pieces, from the whole text."""
    found = []
    while len(text) > most:
        cut = text.rfind("\n", 0, most) + 1 or most
        found.append(text[:cut])
        text = text[cut:]
    return [*found, text]


@pytest.mark.usefixtures("small")
def test_a_file_in_blocks_is_the_text(file: TextFile) -> None:
    assert "".join(file.blocks()) == TEXT
    assert len(file) == len(TEXT)
    assert max(map(len, file.blocks())) <= 64
    assert list(pieces_of(file)) == list(pieces_of(TEXT)) == cut_at_once(TEXT)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("at", [1, 20, 130, len(TEXT) - 1])
def test_a_file_is_cut_at_a_line_end_where_one_is_near(file: TextFile, at: int) -> None:
    head, tail = file.cut(at)
    end = TEXT.rfind("\n", 0, at) + 1
    assert head.stop == (end if end > at // 2 else at)
    assert "".join(head.blocks()) == TEXT[: head.stop]
    assert "".join(tail.blocks()) == TEXT[head.stop :]


@pytest.mark.parametrize("content", [b"a\0b", b"abc\xff", "é".encode()[:1]])
def test_binary_and_blank_files_are_told_apart(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UnicodeError):
        text_file(tmp_path / "file")
    for blank in (b" \n\t", b""):
        (tmp_path / "file").write_bytes(blank)
        assert text_file(tmp_path / "file") is None


@pytest.mark.usefixtures("small")
def test_parts_are_small_and_hold_the_tokens_in_order(file: TextFile, tmp_path: Path) -> None:
    encoding, batches = learn_encoding([TEXT], 300), []

    class Watched:
        get_vocab_size = encoding.get_vocab_size

        @staticmethod
        def encode_batch_fast(batch: list[str], **given: Any) -> Any:
            batches.append(sum(map(len, batch)))
            return encoding.encode_batch_fast(batch, **given)

    count = write_tokens([file, "short"], Watched, tmp_path / "a.bin")
    found = list(memoryview((tmp_path / "a.bin").read_bytes()).cast("H"))
    expected = [*cut_at_once(TEXT), corpus.END_OF_TEXT, "short", corpus.END_OF_TEXT]
    assert found == [i for e in encoding.encode_batch(expected) for i in e.ids]
    assert count == len(found)
    assert len(batches) > 3
    assert max(batches) <= 256 + 64


@pytest.mark.usefixtures("small")
def test_an_interrupted_corpus_leaves_nothing_and_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_code(tmp_path / "code", files=1) / "module_0.py"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus, "write_tokens", stop)
        with pytest.raises(KeyboardInterrupt):
            load_corpus(path, 280)
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]
    load_corpus(path, 280)
    folder = next(entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir())
    names = {"seal.json", "tokenizer.json", "train.bin", "validation.bin"}
    assert {file.name for file in folder.iterdir()} == names


def test_a_text_that_changes_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_code(tmp_path / "code", files=1) / "module_0.py"

    def late(*given: Any) -> int:
        path.write_text(path.read_text() + "x = 1\n")
        return write_tokens(*given)

    monkeypatch.setattr(corpus, "write_tokens", late)
    with pytest.raises(RunError, match=r"module_0.py was changed while it was read"):
        load_corpus(path, 280)


def test_learning_ends_with_a_signal_though_the_trainer_looks_at_none() -> None:
    interrupted, released, ended = (threading.Event() for _ in range(3))
    threads = []

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def learn() -> None:
        threads.append(threading.current_thread())
        while not interrupted.wait(0.1):  # one that comes just before the main thread waits is lost
            os.kill(os.getpid(), signal.SIGINT)
        released.wait(60)
        ended.set()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            corpus._run_interruptibly(learn)
        assert not ended.is_set()
    finally:
        signal.signal(signal.SIGINT, before)
        released.set()
    assert threads != [threading.main_thread()]  # which the trainer would hold
    with pytest.raises(ValueError, match="nobody"):
        corpus._run_interruptibly(lambda: int("nobody"))


@pytest.mark.parametrize("seed", range(20))
def test_slices_are_cut_where_the_encoding_cuts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_SLICE", 5)
    draw = random.Random(seed)
    pieces = [
        "word",
        "'s",
        "\n",
        "\n\n",
        " ",
        "   ",
        "\r\n",
        "\t",
        "x=1",
        "日本",
        "\x1c",
        "\u2028",
        "🙂",
    ]
    text = "".join(draw.choice(pieces) for _ in range(400))
    encoding = learn_encoding([text * 3], 400)
    found = list(slices_of(text))
    assert "".join(found) == text
    assert len(found) > 30
    assert [i for one in found for i in encoding.encode(one).ids] == encoding.encode(text).ids


def test_a_long_run_of_one_letter_is_learnt_from_in_pieces() -> None:
    """Its cost would be quadratic: nine minutes for a million."""
    text = "ab " + "a" * 20_000 + " " * 9_000 + "cd"
    assert "".join(cut_runs(text)) == text
    assert [len(run) for run in cut_runs(text)] == [3 + 8192, 8192, 3616 + 8192, 810]
    start = time.process_time()
    learn_encoding(["a" * 1_000_000], 400)
    assert time.process_time() - start < 5
