"""Faults of reports."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("errors of groups add up", "math.hypot(*$errors) / len($own[0]) => math.hypot(*$errors)",
          "test_along.py"),
    fault("one standard error is a difference", "SURE = 2.0 => SURE = 0.1",
          "test_the_headline_counts_only_differences_of_two_standard_errors", within="page"),
    fault("a curve goes on where a seed diverged",
          "min(($row.step for $row in not_finite), $$a) => max(($row.step for $row in not_finite), $$a)",
          "test_loss_curves.py", within="_row"),
    fault("a loss of infinity has not diverged",
          "[$row for $row in metrics if not math.isfinite($row.loss)]"
          " => [$row for $row in metrics if math.isnan($row.loss)]",
          "test_table.py", "test_a_diverged_run_is_named", within="_row"),
    fault("templates escape nothing", "autoescape = True => autoescape = False",
          "test_markup_in_names_and_settings_is_shown_not_obeyed"),
    fault("a bar that reaches zero takes the axis", "$axis.get_ylim()[0] < lowest / 10 => False",
          "test_a_bar_that_all_but_reaches_zero_does_not_take_the_axis", within="_draw_panel"),
    fault("names that differ at their end are cut to the same",
          "len(set($short)) == len(set(names)) => True",
          "test_names_that_differ_at_their_end_are_cut_inside", within="_cut"),
    fault("an axis of several panels is cut for one", "alone = $a => alone = True",
          "test_a_bar_that_all_but_reaches_zero_does_not_take_the_axis", within="_draw_panel"),
)
