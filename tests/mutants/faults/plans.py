"""Faults of what studies gather and judge alike."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a match is one with 0", "self.within($limit, $around) => self.within($limit)",
          "test_a_match_is_with_a_value_to_both_sides"),
    fault("a match forgets whether a mean has a sign",
          "self.text(**shown) => self.text()",
          "test_a_check_says_the_mean_in_its_unit", within="matches"),
    fault("a seed that one block has alone has a gap too",
          "{$seed: $one - $below[$seed] for $seed, $one in $above.items() if $seed in $below}"
          " => {$seed: $one - $below.get($seed, 0.0) for $seed, $one in $above.items()}",
          "test_gaps_are_of_common_seeds"),
    fault("a nested mapping holds another column than asked",
          "$inner[$last] = $row[$value] => $inner[$last] = $row['value']",
          "test_rows_become_mappings_in_mappings", within="nested"),
    fault("a panel names curves that have no place", "$each or $empty => True",
          "test_a_panel_leaves_out_what_has_no_place", within="panel"),
    fault("a panel is logarithmic in the other axis", "'x' in $log => 'y' in $log",
          "test_a_panel_is_logarithmic_where_it_says"),
)
