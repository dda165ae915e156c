"""Faults that the tests once let live."""

from tests.mutants.mutant import Mutant

SURVIVING = (
    Mutant(
        "a verdict over seeds at 90 instead of 95 percent",
        file="studies/shared/differences.py",
        find="own = student_quantile(0.975,",
        replace="own = student_quantile(0.95,",
        tests=("studies/test_differences.py",),
    ),
    Mutant(
        "the pooled variance divided by all values",
        file="studies/growth/fits.py",
        find="** 2).sum()) / freedom",
        replace="** 2).sum()) / len(x)",
        tests=("studies/test_fits.py",),
    ),
    Mutant(
        "the pooled variance counts the measurements' own errors twice",
        file="studies/growth/fits.py",
        find="max(pooled - float(own.mean()), 0.0)",
        replace="pooled",
        tests=("studies/test_fits.py",),
    ),
    Mutant(
        "one good look ends a run with a tolerance",
        file="linalg/estimators/stopping.py",
        find="LOOKS_IN_A_ROW = 2",
        replace="LOOKS_IN_A_ROW = 1",
        tests=("linalg/test_probes.py",),
    ),
    Mutant(
        "good looks need not follow each other",
        file="linalg/estimators/stopping.py",
        find="<= self.tolerance else 0",
        replace="<= self.tolerance else good_looks",
        tests=("linalg/test_probes.py",),
    ),
    Mutant(
        "the first look does not count",
        file="linalg/estimators/stopping.py",
        find="self.block, int(estimate.relative_error <= self.tolerance)",
        replace="self.block, 0",
        tests=("linalg/test_probes.py",),
    ),
    Mutant(
        "a run ends one block before max_probes",
        file="linalg/estimators/stopping.py",
        find="drawn + self.block > self.max_probes",
        replace="drawn + self.block >= self.max_probes",
        tests=("linalg/test_probes.py",),
    ),
    Mutant(
        "max_probes of two blocks is refused",
        file="linalg/estimators/stopping.py",
        find="self.max_probes < LOOKS",
        replace="self.max_probes <= LOOKS",
        tests=("linalg/test_probes.py",),
    ),
    Mutant(
        "half the usual broadening",
        file="linalg/spectra/spectrum.py",
        find="DEFAULT_SHARE = 0.02",
        replace="DEFAULT_SHARE = 0.01",
        tests=("linalg/test_spectrum.py",),
    ),
    Mutant(
        "of two records of a point the last counts",
        file="studies/engine/store.py",
        find="records.setdefault(record.key, record)",
        replace="records[record.key] = record",
        tests=("studies/test_store.py",),
    ),
    Mutant(
        "a point is not sent to the disk",
        file="studies/engine/store.py",
        find="os.fsync(file.fileno())",
        replace="pass",
        tests=("studies/test_store.py",),
    ),
    Mutant(
        "a file is not sent to the disk",
        file="storage/files.py",
        find="os.fsync(descriptor)",
        replace="pass",
        tests=("test_files.py",),
    ),
    Mutant(
        "a file with other contents is the same",
        file="data/sources.py",
        find="{sha256(root / relative)}",
        replace="{(root / relative).stat().st_size}",
        tests=("data/test_corpus.py::test_a_file_written_anew_with_the_same_size_is_another",),
    ),
)
