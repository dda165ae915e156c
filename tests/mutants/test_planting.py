"""A fault finds its place by what the code does, and writes there alone."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.mutants.mutant import fault
from tests.mutants.planting import planted
from tests.mutants.sources import sources

CODE = '''
"""Means and ends: µ, ∑."""

LIMIT: int = 3


class Fit:
    """A line."""

    def error(self, values: list[float], *, scale: float = 0.975) -> float:
        mean = sum(values) / len(values)  # µ
        spread = sum((one - mean) ** 2 for one in values) / (len(values) - 1)
        return scale * spread if spread > LIMIT else call(mean, "a", seeds=1, own=None)


def ends(values, folder):
    with held(folder):
        low = min(values)
        high = max(values)
    found = {"low": low, "high": high, "text": f"{low}, {high}"}
    if low < 0 and (high > 0 or not found):
        sync(folder)
    if low > high:
        sync(
            folder,
            low,
        )
    elif low == high:
        call(folder)
    return found[:, 0]
'''
ROOM = {
    "package/room/means.py": CODE,
    "package/other.py": "def other(values):\n    return len(values)\n",
}


def write(folder: Path, files: Mapping[str, str] = ROOM) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "package"


def result(folder: Path, change: str, within: str = "") -> tuple[str, str]:
    """The name of the file and its text after a change."""
    file, text = planted(fault("one", change, within=within), sources((folder,)))
    return file.name, text.decode()


SOUND = [
    ("len($x) - 1 => len($x)", "", "(len(values) - 1)", "(len(values))"),
    ("LIMIT = 3 => LIMIT = 4", "", "int = 3", "int = 4"),
    ("scale = 0.975 => scale = 0.95", "", "float = 0.975", "float = 0.95"),
    ("seeds=1 => seeds=2", "", "seeds=1", "seeds=2"),
    ("'low': $x => 'low': 0", "", '"low": low', '"low": 0'),
    ("call($$a, seeds=1, **$$b) => call($$a, **$$b)", "", ", seeds=1", ""),
    ("call($a, 'a', **$$rest) => call($a, **$$rest)", "", ' "a",', ""),
    ("{**$$a, 'high': $h, **$$b} => {**$$a, **$$b}", "", ' "high": high,', ""),
    ("f'{$a}, {$b}' => f'{$b}, {$a}'", "", "{low}, {high}", "{high}, {low}"),
    ("$a and ($b or not $c) => $a and $b", "", "(high > 0 or not found)", "(high > 0)"),
    ("sync(folder) =>", "", "        sync(folder)", "        pass"),
    ("$x = min($v); $y = max($v) => $x = min($v); $y = 0", "", "max(values)", "0"),
    ("with held($f): $$body => if True: $$body", "", "with held(folder)", "if True"),
    ("held($$none, $f) => free($f, $$none)", "", "held(folder)", "free(folder)"),
    ("call($$all) => call(2, $$all)", "Fit", "call(mean", "call(2, mean"),
    ("found[:, 0] => found[:, :, 0]", "", "[:, 0]", "[:, :, 0]"),
    ("LIMIT => 0", "Fit.error", "> LIMIT", "> 0"),
    ("return len($x) => return 0", "other", "return len(values)", "return 0"),
    ("return len($x) => return 0", "package.other", "return len(values)", "return 0"),
    ("$one - mean => $one", "", "one - mean", "one"),
]


def test_one_place_is_changed(tmp_path: Path) -> None:
    package = write(tmp_path)
    for change, within, old, new in SOUND:
        file, text = result(package, change, within)
        right = ROOM[f"package/{'' if file == 'other.py' else 'room/'}{file}"]
        assert right.count(old) == 1, change
        assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(right.replace(old, new))), change
        for before, after in zip(right.split("\n"), text.split("\n"), strict=True):
            assert before == after or old.strip() in before, f"{change}: {before} has changed"


CHANGES = [
    ("len($x) - 1 => len($x)", "error"),
    ("sum(($one - $m) ** 2 for $one in $all) => 0", ""),
    ("$x > LIMIT => $x >= LIMIT", ""),
    ("if $low < 0 and $more: $$body => if $low < 0: $$body", "ends"),
    ("with held($f): $$body => if True: $$body", ""),
    ("call($$a, seeds=1, **$$b) => call($$a, **$$b)", "Fit.error"),
]


def reformatted(text: str) -> str:
    """Other quotes, brackets, line breaks and comments."""
    text = ast.unparse(ast.parse(text)).replace("'", '"').replace("(mean,", "(  # why\n\n  (mean),")
    return text.replace("    if low", "\n    # now\n    if (low)").replace(
        "len(values)", "len((values))"
    )


def reordered(text: str) -> str:
    """The functions in another order, with a new one before them."""
    start, end = text.index("class Fit"), text.index("def ends")
    first = "def first(low):\n    return low < 0\n\n\n"
    return text[:start] + first + text[end:] + "\n\n" + text[start:end]


def renamed(text: str) -> str:
    """Local variables under other names."""
    names = {"values": "given", "mean": "centre", "one": "each", "low": "least", "folder": "place"}
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for field in ("id", "arg"):
            if (name := getattr(node, field, None)) in names:
                setattr(node, field, names[name])
    return ast.unparse(tree)


@pytest.mark.parametrize("way", [reformatted, reordered, renamed])
def test_a_fault_follows_code_that_is_written_otherwise(tmp_path: Path, way) -> None:
    other = way(CODE)
    assert other != CODE
    package = write(tmp_path)
    wrong = [way(result(package, change, within)[1]) for change, within in CHANGES]
    write(tmp_path, {"package/room/means.py": other})
    sources.cache_clear()
    for (change, within), meant in zip(CHANGES, wrong, strict=True):
        now = result(package, change, within)[1]
        assert now != other, change
        assert ast.dump(ast.parse(now)) == ast.dump(ast.parse(meant)), change


@pytest.mark.parametrize(
    "file", ["room/middles.py", "hall/means.py", "deep/down/fits.py", "means.py"]
)
def test_a_fault_follows_a_file_that_moves(tmp_path: Path, file: str) -> None:
    package = write(tmp_path)
    wrong = [result(package, change, within)[1] for change, within in CHANGES]
    (package / "room/means.py").unlink()
    write(package, {file: CODE})
    sources.cache_clear()
    for (change, within), meant in zip(CHANGES, wrong, strict=True):
        assert result(package, change, within) == (Path(file).name, meant), change


@pytest.mark.parametrize(
    ("change", "within", "said"),
    [
        ("len($x) => 0", "", "found 3: package.other.other, package.room.means.Fit.error"),
        ("len($x) => 0", "Fit.ends", "within Fit.ends, found 0: nowhere"),
        ("median($x) => 0", "", "found 0: nowhere"),
        ("low < => 0", "", "is no pattern"),
        ("{$$a, 'x': 1} => {$$a}", "", "is no pattern"),
        ("low < 0", "", "expected one =>"),
        ("low < 0 => $high", "", "high stands in the replacement alone"),
        ("low < 0 => (low < (0))", "", "changes nothing"),
        ("$x < $x => 0", "", "found 0"),
        ("if low == $x: $$body => pass", "", "reads otherwise than meant"),
    ],
)
def test_what_does_not_match_once_says_so(
    tmp_path: Path, change: str, within: str, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        result(write(tmp_path), change, within)


@pytest.mark.parametrize(
    "change", ["sync($a, $b) =>", "sync($a, $b) => a = 1; b = 2", "$a(folder, low) => 0"]
)
def test_lines_behind_a_fault_keep_their_numbers(tmp_path: Path, change: str) -> None:
    right, wrong = CODE.split("\n"), result(write(tmp_path), change)[1].split("\n")
    assert len(wrong) == len(right)
    start = right.index("        sync(")
    assert wrong[:start] == right[:start]
    assert wrong[start + 4 :] == right[start + 4 :]


def test_two_packages_are_searched(tmp_path: Path) -> None:
    first = write(tmp_path)
    second = write(tmp_path / "experiments", {"package/study.py": "SEEDS = 3\n"})
    files = sources((first, second))
    assert planted(fault("one", "SEEDS = 3 => SEEDS = 1"), files)[0] == second / "study.py"
    assert planted(fault("one", "LIMIT = 3 => LIMIT = 1"), files)[0].is_relative_to(first)
