"""All that was once tried to break the command line: a sentence and the right exit status for
each."""

import os
import re
from pathlib import Path

import pytest

from tests.cli.bad_inputs import CASES, NOT_FOR_ROOT, prepare
from tests.cli.helpers import Shell

pytestmark = [
    pytest.mark.usefixtures("blank"),
    pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning"),
    pytest.mark.filterwarnings("default:--vocab-size"),
    pytest.mark.filterwarnings("default::hessblocks.training.DivergenceWarning"),
]


@pytest.mark.parametrize("name", CASES)
def test_the_answer(
    name: str, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NOT_FOR_ROOT and os.geteuid() == 0:
        pytest.skip("root may read and write everything")
    case = CASES[name]
    prepare(tmp_path, case)
    monkeypatch.chdir(tmp_path)
    outcome = shell(*case.words)
    assert outcome.status == case.status, outcome.errors
    assert "Traceback" not in outcome.errors
    assert re.search(case.answer, outcome.errors), outcome.errors
