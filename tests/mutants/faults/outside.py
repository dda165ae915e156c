"""Faults of what comes from outside: JSON, names, sizes, environments; of manifests; of losses left out."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("deep JSON passes", "_depth($value) > DEEPEST => False",
          "test_what_is_within_the_bounds_is_read_as_ever"),
    fault("whole numbers of any length pass", "len($digits) > LONGEST_INTEGER => False",
          "test_what_would_break_a_reader_is_not_json"),
    fault("a block of a folder leads out of it", "'..' in $path.parts => False",
          "test_a_block_of_a_folder_is_no_path_out_of_it", within="stays_inside"),
    fault("an index names weights elsewhere", "stays_inside($name) and $rest => $rest",
          "test_an_index_names_weights_of_its_folder_alone", within="weight_files"),
    fault("layers inside lists are not counted", "yield from _counts($one, name) => pass",
          "test_more_layers_than_the_weights_have_are_refused_before_they_are_made"),
    fault("lines that a checkpoint knows of may be lost",
          "$found and _lacks_lines($found, $path) => False",
          "test_a_lost_line_is_reported_and_costs_no_digit", within="continued"),
    fault("a manifest of another run fits", "run not in (None, $found.get('of', run)) => False",
          "test_a_folder_that_is_not_what_was_written"),
    fault("a variable that asks for several processes is taken",
          "off is not None and ($$a) => False",
          "test_a_variable_that_means_several_processes_is_refused"),
    fault("an auxiliary loss is left out in silence",
          "_warn_of_auxiliary_losses($model, $outputs) =>",
          "test_a_loss_that_is_left_out_is_named_once", within="ForwardCall.__call__"),
    fault("the decoder begins with the last label", "shifted[..., 0] = start =>",
          "test_the_loss_of_an_encoder_decoder_of_speech_is_its_own"),
)
