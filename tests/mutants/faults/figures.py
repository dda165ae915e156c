"""Faults of figures and how they are drawn."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("the lower edge of a band is the upper one", "[y - below for $z in $w] => [y + below for $z in $w]",
          "test_drawn.py"),
    fault("an axis with a zero begins at its first decade", "-$low / 3 => $low",
          "test_a_log_axis_spans_whole_decades_and_has_a_place_for_zero"),
    fault("names are not escaped on the page",
          "escape($piece.replace('\\\\$', '$')) => $piece.replace('\\\\$', '$')",
          "test_mathematics_is_the_same_on_the_page"),
    fault("figures have no error bars", "{'yerr': $bars, 'xerr': $across} => {'yerr': None, 'xerr': $across}", "test_drawn.py",
          within="_draw_series"),
)
