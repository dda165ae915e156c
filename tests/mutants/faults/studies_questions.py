"""Faults of our own questions."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a model that learnt too little decides about forecasts",
          "$loss <= $table - shared.MARGIN => True",
          "test_a_model_that_learnt_too_little_decides_nothing", within="_judged"),
    fault("a best rate counts without a worse one on each side",
          "[$q for $q in (middle, middle - 1, middle + 1) if $q not in losses]"
          " => [$q for $q in (middle,) if $q not in losses]",
          "test_a_tuning_walks_until_a_worse_rate_is_on_both_sides", within="wanted"),
    fault("a block may be tuned over other gains or rates than the base",
          "tried(grids, block, rung) != tried(grids, BASE, rung) => False",
          "test_a_planted_unfairness_turns_its_rungs_void", within="off_the_rule"),
    fault("runs at another rate than the best count",
          "set($runs_at.get($block, $best)) != $best => False",
          "test_a_run_at_another_rate_than_the_best_turns_its_rung_void", within="off_the_rule"),
    fault("a lag is taken between rungs on two devices",
          "$lag.unlike or $unlike => $lag.unlike",
          "test_a_rung_on_another_device_as_a_whole_voids_the_lag", within="Ladder.lag"),
    fault("a width counts although a control of it fails",
          "all($check.holds for $rung in $rungs for $check, $_ in self.controls.get($rung, ())) => True",
          "test_a_run_at_another_rate_than_the_best_turns_its_rung_void", within="Ladder.counts"),
    fault("a run of changed layers grows over its limit",
          "$step[2].value > LIMIT => False",
          "test_a_run_grows_by_its_cheaper_neighbour_up_to_the_limit", within="grown"),
)
