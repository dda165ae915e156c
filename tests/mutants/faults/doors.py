"""Faults at the door that tests once let pass: texts, seeds, files, and what is chosen by which part."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("door: the final figure is of the text that removals were chosen on",
          "{'the last tenth of the text': test} => {'the last tenth of the text': validation}",
          "test_the_final_figure_is_measured_on_the_last_tenth", within="simplify_model"),
    fault("door: the test begins where the validation does", "ids[ends[1]:] => ids[ends[0]:]",
          "test_validation_and_test_share_no_token_with_another_part", within="text_parts"),
    fault("door: a model is healed on the text that removals were chosen on",
<<<<<<< HEAD
          "heal($made, $original, healing, $$a) => heal($made, $original, validation, $$a)",
=======
          "heal($made, $a, healing, $$b) => heal($made, $a, validation, $$b)",
>>>>>>> w/names
          "test_the_final_figure_is_measured_on_the_last_tenth", within="simplify_model"),
    fault("door: windows do not depend on the seed",
          "windows.drawn($count, settings.seed, '--sequences') => windows.drawn($count, 0, '--sequences')",
          "test_another_seed_gives_other_windows_and_other_draws", within="drawn_batches"),
    fault("door: samples do not depend on the seed",
          "price($p, $c, settings.samples, settings.seed, form=$f) => price($p, $c, settings.samples, 0, form=$f)",
          "test_another_seed_gives_other_windows_and_other_draws", within="stored_bill"),
    fault("door: a cache counts all heads", "2 * attention.key_value_heads * $w => 2 * attention.heads * $w",
          "test_the_cache_counts_heads_of_keys_not_of_queries", within="hessblocks.simplify.place"),
    fault("door: nats for a percent are nats for all", "$kl / (100 * share) => $kl / share",
          "test_nats_for_a_percent_are_the_kl_over_the_percents_saved", within="_row"),
    fault("door: weight decay grows with the width's factor", "decay / factor => decay * factor",
          "test_rate_times_decay_is_the_same_in_all_groups_that_decay"),
    fault("door: a document ends after each of its pieces",
          "tokenizer(piece, $$a)['input_ids'] => [*tokenizer(piece, $$a)['input_ids'], *end]",
          "test_a_long_document_ends_once", within="encoded"),
    fault("door: all batches of samples draw the same signs",
          "passed.sample(before + sample, $$a) => passed.sample(sample, $$a)",
          "test_each_batch_of_samples_draws_signs_of_its_own", within="hessblocks.curvature.sampled.grams"),
    fault("door: sums over passes are in the dtype of the vectors",
          "working_dtype(vectors.dtype) => vectors.dtype",
          "test_small_shares_of_many_passes_are_not_lost_in_bfloat16", within="_add_up"),
    fault("door: blocks forget which token ends a text",
          "('bos_token_id', 'eos_token_id', $$more) => ('bos_token_id', $$more)",
          "test_special_tokens_stay_when_a_model_becomes_blocks", within="hessblocks.models.conversion"),
    fault("door: pruning rounds its count down", "round(share * len(found)) => int(share * len(found))",
          "test_pruning_rounds_its_count_to_the_nearest"),
)
