"""Faults of `hessblocks price`: what it draws, keeps and says."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("price: the check sees the text of the forecasts", "drawn[count:] => drawn[:count]",
          "test_every_number_is_that_of_the_library", within="drawn_batches"),
    fault("price: samples of another run are taken", "metadata == {'of': _tag(run, tensors)} => True",
          "test_samples_of_another_run_are_refused", within="read_tensors"),
    fault("price: samples are not kept", "if needed <= tensors.keys(): $$body =>",
          "test_the_same_call_goes_on_and_draws_nothing", within="stored_bill"),
    fault("price: the allocation's budget is forgotten",
          "bill.allocate(bits=settings.allocate) => bill.allocate(bits=max(settings.round))",
          "test_every_number_is_that_of_the_library", within="_summary"),
    fault("price: the answer names the cheaper width",
          "abs(row['bits'] - bits) => -row['bits']",
          "test_the_allocation_stands_between_its_neighbours", within="price_headline"),
    fault("price: a check is announced of more changes than there are",
          "min(settings.check, len($changes)) => settings.check",
          "test_shares_close_together_are_priced_apart_and_a_check_costs_no_more_than_there_is"),
    fault("price: shapes of a merge are not compared", "if shapes[0] != shapes[1]: $$body =>",
          "test_what_cannot_be_priced_is_refused_in_a_sentence", within="_other"),
    fault("price: another model's merge goes on", "{'merged': fingerprint($m)} => {}",
          "test_a_merge_and_no_check", within="measure_price"),
    fault("price: a single bit is taken", "least <= $found <= largest => True",
          "test_what_cannot_be_priced_is_refused_in_a_sentence", within="_set_numbers"),
)
