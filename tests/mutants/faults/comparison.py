"""Faults of the comparison of a folder."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a comparison is computed again", "if isinstance(results, Comparison): return results =>",
          "test_comparison.py::test_a_comparison_of_a_comparison_is_itself",
          within="compare_results"),
    fault("a folder without a loss curve has limits all the same",
          "not losses => not comparison.curves",
          "test_without_losses_there_is_no_figure", within="loss_figure"),
    fault("the last cause stands for the first",
          "{$row.seed: $row.diverged for $row in reversed(metrics) if $row.diverged}"
          " => {$row.seed: $row.diverged for $row in metrics if $row.diverged}",
          "test_the_first_that_was_not_finite_is_the_cause"),
    fault("a norm of no seed is zero",
          "Average(value=math.nan, standard_error=None, seeds=0)"
          " => Average(value=0.0, standard_error=None, seeds=0)",
          "test_norms_are_means_over_seeds_and_null_where_none_is_finite"),
    fault("an observation named loss is read as one",
          "isinstance(lines[0], Metric) => about['quantity'] == 'loss'",
          "test_an_observation_of_another_name_changes_nothing"),
)
