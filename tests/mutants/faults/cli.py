"""Faults of the command line, and of names as they are typed."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("words of the command are not quoted", "shlex.quote($word) => $word",
          "test_a_name_is_shown_on_one_line_and_typed_again_as_it_is"),
    fault("wrong arguments end like failed runs", "$error.exit_status => 1",
          "test_bad_input.py::test_wrong_arguments", within="main"),
    fault("our own faults are swallowed", "if not isinstance($error, OSError): raise $error =>",
          "test_another_error_is_a_fault_of_ours"),
    fault("names after a comma are not completed", "$text.rpartition(',') => ('', '', $text)",
          "test_names_are_completed", within="__call__"),
    fault("a lone preset has no completion", "options.completer('preset') => None",
          "test_names_are_completed"),
    fault("a part of a layer is cut off", "int($token.value) => int(float($token.value))",
          "test_bad_input.py::test_wrong_arguments", within="whole"),
    fault("a range is not checked without a field", "if $refusal := $mark.refusal(value): $$body =>",
          "test_bad_input.py::test_wrong_arguments", within="check"),
    fault("of repeated lists the first counts", "$tokens[-1].value => $tokens[0].value",
          "test_several_seeds_have_an_error_bar", within="listed"),
    fault("a text is looked for after the model", "$path == '' or not $place.is_file() => False",
          "test_slips.py::test_a_slip_is_answered_at_once", within="text"),
    fault("a block passes for a model", "$text in (*PRESETS, *PLAIN) and not $there => False",
          "test_slips.py::test_a_slip_is_answered_at_once", within="_model"),
    fault("bits above all of --round are taken", "min($bits) <= $mean <= max($bits) => min($bits) <= $mean",
          "test_slips.py::test_a_slip_is_answered_at_once", within="__post_init__"),
    fault("seeds are counted from 0", "range($seed, $seed + $seeds) => range($seeds)",
          "test_seeds_are_counted_from_the_one_that_is_given", within="compare"),
    fault("a report is written into a folder in use",
          "with held($folder): $$body => if True: $$body",
          "test_no_report_into_a_folder_that_another_command_writes_to", within="_run_page"),
    fault("settings are none of their stand-ins' instances", "isinstance(instance, $c.__mro__[1])"
          " => type.__instancecheck__($c, instance)",
          "test_settings_are_read_where_pydantic_was_imported", within="__instancecheck__"),
)
