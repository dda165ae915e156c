"""Windows and batches of a corpus against the text they were made from."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from hessblocks.data import python_code
from hessblocks.data.corpus import END_OF_TEXT, Corpus, learn_encoding, pieces_of, token_type
from hessblocks.data.python_code import CorpusWarning, load_corpus, user_files
from hessblocks.errors import ArgumentError
from tests.data.helpers import write_code


@pytest.fixture
def corpus(code: Path) -> Corpus:
    with pytest.warns(CorpusWarning, match="supports"):
        return load_corpus(code)


def documents(corpus: Corpus, split: str) -> list[str]:
    text = corpus.tokenizer.decode(corpus.splits[split].tolist(), skip_special_tokens=False)
    return text.split(END_OF_TEXT)[:-1]


def test_the_tokens_decode_to_the_files_each_in_one_split(corpus: Corpus, code: Path) -> None:
    train, validation = documents(corpus, "train"), documents(corpus, "validation")
    assert sorted(train + validation) == sorted(p.read_text() for p in code.iterdir())
    assert len(validation) == 3


def test_windows_tile_the_split_without_overlap(corpus: Corpus) -> None:
    windows = corpus.windows("train", 7)
    joined = torch.cat([windows[index]["input_ids"] for index in range(len(windows))])
    whole = corpus.splits["train"]
    assert len(whole) - 7 < len(joined) <= len(whole)
    assert np.array_equal(joined.numpy(), whole[: len(joined)])
    assert torch.equal(windows[-1]["labels"], joined[-7:])
    with pytest.raises(IndexError):
        windows[len(windows)]


def test_the_curvature_batch_is_held_out_and_fixed_by_its_seed(corpus: Corpus) -> None:
    batch = corpus.curvature_batch(5, 16, seed=3)
    windows = corpus.windows("validation", 16)
    known = {tuple(windows[i]["input_ids"].tolist()) for i in range(len(windows))}
    rows = [tuple(row.tolist()) for row in batch["input_ids"]]
    assert batch["labels"].shape == (5, 16)
    assert set(rows) <= known
    assert torch.equal(batch["input_ids"], corpus.curvature_batch(5, 16, seed=3)["input_ids"])
    assert not torch.equal(batch["input_ids"], corpus.curvature_batch(5, 16, seed=4)["input_ids"])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_window_is_drawn_twice(corpus: Corpus, seed: int) -> None:
    """As many as there are: each once, in an order of the seed's own."""
    windows = corpus.windows("validation", 16)
    every = [tuple(windows[i]["input_ids"].tolist()) for i in range(len(windows))]
    drawn = corpus.curvature_batch(len(windows), 16, seed=seed)["input_ids"]
    assert len(windows) > 3
    assert sorted(tuple(row.tolist()) for row in drawn) == sorted(every)


def test_the_same_files_give_the_same_tokens_again(
    corpus: Corpus, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    with pytest.warns(CorpusWarning):
        assert load_corpus(code).fingerprint == corpus.fingerprint


def test_a_changed_file_changes_the_corpus(corpus: Corpus, code: Path) -> None:
    (code / "module_0.py").write_text("x = 1\n")
    with pytest.warns(UserWarning, match=r"is of another version|supports"):
        assert load_corpus(code).fingerprint != corpus.fingerprint


def test_a_file_with_other_contents_and_the_same_size_and_time_changes_the_corpus(
    corpus: Corpus, code: Path
) -> None:
    path = code / "module_0.py"
    before, text = path.stat(), path.read_text()
    path.write_text(text.swapcase())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.warns(UserWarning, match=r"is of another version|supports"):
        assert load_corpus(code).fingerprint != corpus.fingerprint


def test_a_file_that_was_touched_and_not_changed_builds_nothing(code: Path, corpus: Corpus) -> None:
    os.utime(code / "module_0.py", ns=(1, 1))
    with pytest.warns(UserWarning, match="supports") as said:
        assert load_corpus(code).fingerprint == corpus.fingerprint
    assert not [one for one in said if "another version" in str(one.message)]


def test_a_file_written_anew_with_the_same_size_is_another(code: Path) -> None:
    path, before = code / "module_0.py", user_files(code).fingerprint
    assert user_files(code).fingerprint == before
    status = path.stat()
    path.write_text(path.read_text().replace("0", "1", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert path.stat().st_size == status.st_size
    assert user_files(code).fingerprint != before


@pytest.mark.parametrize("by", ["file", "folder"])
def test_few_files_are_split_within_each(tmp_path: Path, by: str) -> None:
    folder = write_code(tmp_path / "few", files=1 if by == "file" else 3)
    path = folder / "module_0.py" if by == "file" else folder
    corpus = load_corpus(path, 280)
    texts = [file.read_text() for file in sorted(folder.iterdir())]
    pairs = zip(documents(corpus, "train"), documents(corpus, "validation"), strict=True)
    for text, (head, tail) in zip(texts, pairs, strict=True):
        assert head + tail == text
        assert head.endswith("\n")
        assert 0.05 < len(tail) / len(text) < 0.15


def test_files_that_are_not_text_are_left_out_and_reported(code: Path) -> None:
    (code / "weights.bin").write_bytes(b"\x00\x01\x02")
    (code / "latin.txt").write_bytes("é".encode("latin-1"))
    (code / "empty.py").write_text("")
    (code / ".hidden").write_text("secret")
    with pytest.warns(CorpusWarning, match="3 files"):
        corpus = load_corpus(code, 300)
    assert not any("secret" in text for split in corpus.splits for text in documents(corpus, split))


def test_links_are_not_followed_and_are_reported(code: Path, tmp_path: Path) -> None:
    load_corpus(code, 300)  # from now on it is in the cache
    (tmp_path / "secret.txt").write_text("secret")
    (code / "link.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.warns(CorpusWarning, match=r"1 files .* links and are left out"):
        corpus = load_corpus(code, 300)
    assert not any("secret" in text for split in corpus.splits for text in documents(corpus, split))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(ArgumentError, match="holds no files but links, which are not followed"):
        user_files(tmp_path / "links")
    (tmp_path / "chosen").symlink_to(code)
    (tmp_path / "file.py").symlink_to(code / "module_0.py")
    assert user_files(tmp_path / "chosen").fingerprint == user_files(code).fingerprint
    assert user_files(tmp_path / "file.py").links == 0


def random_bytes(path: Path) -> Path:
    path.write_bytes(bytes(range(256)) * 10)
    return path


def empty_file(path: Path) -> Path:
    path.write_text("")
    return path


def empty_folder(path: Path) -> Path:
    path.mkdir()
    return path


def one_letter(path: Path) -> Path:
    path.write_text("x")
    return path


def zero_byte(path: Path) -> Path:
    path.write_text("text " * 99 + "\0")
    return path


def late_latin_1(path: Path) -> Path:
    """Behind the first million characters, at which the reader looks at once."""
    path.write_bytes(b"text\n" * 250_000 + b"caf\xe9")
    return path


def absent(path: Path) -> Path:
    return path


def unreadable(path: Path) -> Path:
    return Path("/proc/self/mem")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (random_bytes, "given is not UTF-8 text"),
        (late_latin_1, "given is not UTF-8 text"),
        (zero_byte, "given is not UTF-8 text"),
        (empty_file, "too little text"),
        (empty_folder, "no files"),
        (one_letter, "too little text"),
        (absent, "is not a file or folder"),
        (unreadable, "cannot be read"),
    ],
)
def test_what_holds_no_text_is_refused(tmp_path: Path, make: object, message: str) -> None:
    path = make(tmp_path / "given")  # type: ignore[operator]
    with pytest.raises(ArgumentError, match=f"--data: .*{message}"):
        load_corpus(path)


def test_an_empty_name_is_not_the_current_folder() -> None:
    with pytest.raises(ArgumentError, match="--data: expected a file or folder"):
        load_corpus("")


def test_a_large_binary_file_is_refused_before_it_is_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_code, "sha256", lambda path: pytest.fail("all of it was read"))
    with (tmp_path / "vast.bin").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ArgumentError, match="is not UTF-8 text"):
        user_files(tmp_path / "vast.bin")


def test_too_little_text_for_one_window_is_refused(tmp_path: Path) -> None:
    corpus = load_corpus(write_code(tmp_path / "few", files=1), 260)
    with pytest.raises(
        ArgumentError, match=r"validation split .* fewer than one context of 100000"
    ):
        corpus.windows("validation", 100_000)
    with pytest.raises(ArgumentError, match="curvature-sequences"):
        corpus.curvature_batch(1000, 16)
    with pytest.raises(ArgumentError, match="'test' is unknown"):
        corpus.windows("test", 16)


def test_a_vocabulary_without_room_for_each_byte_is_refused(code: Path) -> None:
    with pytest.raises(ArgumentError, match="--vocab-size: expected at least 257"):
        load_corpus(code, 256)


def test_any_text_survives_the_encoding() -> None:
    encoding = learn_encoding(["ab ab ab ab"], 300)
    text = 'naïve — 日本 "quoted"\t\r\n  \x01🙂'
    assert encoding.decode(encoding.encode(text).ids) == text


def test_long_texts_are_cut_at_line_ends() -> None:
    text = "x" * 1_500_000 + "\n" + "y\n" * 900_000
    pieces = list(pieces_of(text))
    assert "".join(pieces) == text
    assert len(pieces) == 5 - 1
    assert all(piece.endswith("\n") for piece in pieces[1:])


@pytest.mark.parametrize(("vocabulary", "bytes_each"), [(65_536, 2), (65_537, 4)])
def test_the_token_type_holds_every_token(vocabulary: int, bytes_each: int) -> None:
    assert token_type(vocabulary).itemsize == bytes_each
    assert np.iinfo(token_type(vocabulary)).max >= vocabulary - 1
