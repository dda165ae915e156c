"""Faults of means and heterogeneity."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a norm of zero is the smallest", "0 < $norm[0] < math.inf => 0 <= $norm[0] < math.inf", "test_ends.py",
          within="ends"),
    fault("the sample variance divides by n", "len($values) - 1 => len($values)", "test_means.py",
          within="variance"),
    fault("the error of a mean is the spread",
          "variance($values, $total) / len($values) => variance($values, $total)",
          "test_means.py"),
    fault("one seed loses the error of its measurement",
          "standard_error = own_error => standard_error = None", "test_means.py"),
)
