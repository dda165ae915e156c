"""Faults of our own questions."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a model that learnt too little decides about forecasts",
          "$loss <= $table - shared.MARGIN => True",
          "test_a_model_that_learnt_too_little_decides_nothing", within="_judged"),
    fault("every seed takes the same layers", "random.Random(seed) => random.Random(0)",
          "test_a_seed_draws_the_same_and_another_seed_draws_others", within="at_random"),
    fault("a rung counts although a next rate is better",
          "all(control.holds for control, _ in controls) => True",
          "test_a_rung_whose_next_rates_are_better_or_unknown_does_not_count", within="_hold"),
    fault("a next rate may be better by any amount", "gain > shared.SLACK => gain > 9",
          "test_a_rung_whose_next_rates_are_better_or_unknown_does_not_count",
          within="_next_rates_check"),
    fault("a rate counts that was not tried at every width",
          "len(each) == widths => each",
          "test_a_tuning_is_settled_by_all_its_widths", within="over_widths"),
)
