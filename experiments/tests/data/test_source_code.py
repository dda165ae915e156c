"""Code of installed packages, and code without tables."""

from pathlib import Path

import pytest

from hessblocks.data import standard_library
from hessblocks.errors import ArgumentError
from hessblocks_studies.data.source_code import (
    is_table,
    library_code,
    load_package_corpus,
    package_files,
)


def test_an_installed_package_is_a_text_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "plenty"
    for place in (
        *(f"part_{n}.py" for n in range(40)),
        "tests/test_part.py",
        "notes.txt",
        "__init__.py",
    ):
        (package / place).parent.mkdir(parents=True, exist_ok=True)
        (package / place).write_text("raise RuntimeError  # never imported\n" * 20)
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    source = package_files("plenty")
    held = set(source.splits["validation"])
    assert len(held) == 4
    assert held | set(source.splits["train"]) == {
        "__init__.py",
        *(f"part_{n}.py" for n in range(40)),
    }
    corpus = load_package_corpus("plenty", 270)
    assert "never imported" in corpus.tokenizer.decode(corpus.splits["validation"][:200].tolist())
    (package / "part_0.py").write_text("other = 1\n")
    assert package_files("plenty").fingerprint != source.fingerprint


TABLE = (
    "from x import y\n\nFOUND = {\n"
    + "".join(f"    {n}: '\\\\x{n}',  # no\n" for n in range(40))
    + "}\n"
)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        (TABLE, True),
        ("# said\n\n" * 90 + TABLE, True),
        ("x = (\n" + "    'a',\n" * 3 + ")\ny = 1\n", False),
        ("x = 1  # 'a'\n" * 9, False),
        ("'a'\n" * 2 + "x\n" * 2, False),
        ("", False),
    ],
)
def test_a_table_is_mostly_lines_of_literals(text: str, table: bool, tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(text)
    assert is_table(tmp_path / "some.py") is table


def test_tables_of_the_standard_library_are_left_out() -> None:
    usual, code = standard_library(), library_code()
    (all_of, kept) = ({*one.splits["train"], *one.splits["validation"]} for one in (usual, code))
    assert kept < all_of
    gone = all_of - kept
    assert {
        "encodings/cp037.py",
        "encodings/__init__.py",
        "html/entities.py",
        "stringprep.py",
    } <= gone
    assert not {"ast.py", "argparse.py", "typing.py"} & gone
    assert len(gone) < 0.2 * len(all_of)
    assert code.splits["test-domain"] == usual.splits["test-domain"]


def test_packages_beside_each_other_are_one_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("one/a", "two/b", "elsewhere/three/c"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).parent.joinpath("__init__.py").touch()
        for number in range(20):
            (tmp_path / f"{place}{number}.py").write_text(f"x = {number}\n")
    (tmp_path / "two" / "b0.py").write_text(TABLE)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    monkeypatch.syspath_prepend(tmp_path)
    source = package_files("one+two", tables=False)
    files = {*source.splits["train"], *source.splits["validation"]}
    assert {"one/a3.py", "two/b3.py"} < files
    assert "two/b0.py" not in files
    assert "two/b0.py" in {p for own in package_files("one+two").splits.values() for p in own}
    with pytest.raises(ArgumentError, match="they lie in different folders"):
        package_files("one+three")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_thing", "not installed"),
        ("platform", "no package in one folder"),
        ("hardly", "too few"),
        (".", "not installed"),
        ("../x", "not installed"),
        ("no.such", "not installed"),
        ("__main__", "not installed"),
        ("hardly.part", "not installed"),
        ("", "not installed"),
    ],
)
def test_a_package_without_text_is_refused_in_a_sentence(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hardly").mkdir()
    (tmp_path / "hardly" / "__init__.py").write_text("raise RuntimeError  # never imported\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ArgumentError, match=said):
        package_files(name)
