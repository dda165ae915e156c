"""Faults of texts, tasks and tokens."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("the question of a sum has labels", "torch.full_like($question, IGNORED) => $question",
          "test_only_the_answer_has_labels"),
    fault("a changed byte of the cache passes", "$a or storage.sha256($path) != $file['sha256'] => $a",
          "test_a_damaged_entry_is_rebuilt_and_said"),
    fault("the cache takes no lock",
          "with FileLock($root / f'.{$name}.lock'): $$body => if True: $$body",
          "test_two_processes_at_once_build_once"),
    fault("windows overlap", "range(len(self))[$index] * self.context => range(len(self))[$index]",
          "test_windows_tile_the_split_without_overlap"),
    fault("curvature is measured on training text",
          "self.windows('validation', $tokens) => self.windows('train', $tokens)",
          "test_the_curvature_batch_is_held_out_and_fixed_by_its_seed"),
    fault("a held-out docstring is trained on", "$text not in $held => $text",
          "test_a_docstring_that_a_held_out_file_has_too_is_not_trained_on", within="_encode"),
    fault("a file with other contents is the same",
          "f'{$relative}\\x00{sha256($root / $relative)}\\n'"
          " => f'{$relative}\\x00{($root / $relative).stat().st_size}\\n'",
          "test_a_file_written_anew_with_the_same_size_is_another"),
    fault("a text stands in training and in test", "$e.origin not in $seen => True",
          "test_a_text_that_two_files_share_is_left_out_of_training",
          "test_no_file_and_no_text_is_in_two_splits"),
    fault("a vocabulary of 65,536 takes four bytes a token",
          "$vocabulary <= 1 << 16 => $vocabulary < 1 << 16",
          "test_the_token_type_holds_every_token", within="token_type"),
)
