"""Faults of the command line, and of names as they are typed."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("words of the command are not quoted", "shlex.quote($word) => $word",
          "test_names_are_quoted_for_the_shell"),
    fault("wrong arguments end like failed runs", "$error.exit_status => 1",
          "test_bad_input.py::test_wrong_arguments", within="main"),
    fault("our own faults are swallowed", "if not isinstance($error, OSError): raise $error =>",
          "test_another_error_is_a_fault_of_ours"),
    fault("the shell is given no words", "os.environ.get(COMPLETE) => False",
          "test_words_are_completed"),
    fault("seeds are counted from 0", "range($seed, $seed + $seeds) => range($seeds)",
          "test_seeds_are_counted_from_the_one_that_is_given", within="compare"),
    fault("a report is written into a folder in use",
          "with held($folder): $$body => if True: $$body",
          "test_no_report_into_a_folder_that_another_command_writes_to", within="_run_page"),
    fault("verify is content with wrong blocks",
          "[$check for $check in $checks if not $check.passed] => []",
          "test_an_error_above_the_bound_ends_with_status_1"),
    fault("groups of other blocks are named",
          "if $ratio.zero_groups: $$named => if $ratio: $$named",
          "test_zero_groups_are_named_once_for_all_blocks_that_share_them",
          within="zero_group_lines"),
)
