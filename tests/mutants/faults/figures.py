"""Faults of figures and how they are drawn."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a figure file forgets the limits of a panel",
          "('note', 'below', 'log', $$a) => ('note', 'below', 'log', 'limits', $$a)",
          "test_a_rate_that_ruins_a_run_does_not_flatten_the_panel"),
    fault("the lower edge of a band is the upper one", "place - length => place + length",
          "test_drawn.py"),
    fault("an error bar goes below the axis", "min($error, $value - self.limits[0]) => $error",
          "test_an_error_bar_ends_at_the_axis_not_below_zero"),
    fault("names are not escaped on the page",
          "escape($piece.replace('\\\\$', '$')) => $piece.replace('\\\\$', '$')",
          "test_mathematics_is_the_same_on_the_page"),
    fault("figures have no error bars", "yerr = $bars => yerr = None", "test_drawn.py",
          within="_draw_series"),
)
