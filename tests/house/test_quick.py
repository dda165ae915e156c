"""`make quick` judges a change in any room: by the folder that mirrors it and by planted faults."""

import pytest

from tests.house import quick
from tests.house.test_import_law import packages
from tests.mutants.every import MUTANTS
from tests.mutants.named_tests import found_test
from tests.mutants.planting import place_of


def test_every_package_has_tests_that_are_run_at_a_change() -> None:
    for package in packages():
        files = set(quick.mirrored(f"src/hessblocks/{package}/__init__.py"))
        assert files, package
        assert all((quick.TOP / file).is_file() for file in {*files, *quick.LAWS})


def test_what_is_run_for_other_files() -> None:
    for name, test in {
        "tests/linalg/test_lanczos.py": "tests/linalg/test_lanczos.py",
        "tests/report/folders.py": "tests/report/test_page.py",
        "src/hessblocks/errors.py": "tests/test_public_names.py",
        "experiments/src/hessblocks_studies/shared/differences.py": (
            "experiments/tests/test_differences.py"
        ),
        "docs/log.md": "tests/test_docs.py",
    }.items():
        assert test in quick.mirrored(name), name
    with pytest.raises(ValueError, match="tests/lanczos holds no tests"):
        quick.room("lanczos")


def test_the_tests_that_faults_of_a_file_name_are_run() -> None:
    if not quick.git("rev-parse", "HEAD"):
        pytest.skip("no repository of git")
    fault = MUTANTS[0]
    name = str(place_of(fault).file.relative_to(quick.TOP))
    named = {found_test(test).removeprefix(f"{quick.TOP}/") for test in fault.tests}
    assert named <= quick.fault_tests([name], "HEAD")
    assert quick.fault_tests(["README.md", "src/hessblocks/none.py"], "HEAD") == set()
