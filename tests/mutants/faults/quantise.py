"""Faults of storage formats, of the diagonal as a tensor, and of files that are written."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("quantise: scales cost no bytes", "math.prod(shape) // GROUP * 4 => 0",
          "test_formats.py", within="mlx"),
    fault("quantise: any row fits a block", "shape[-1] % GROUP == 0 => True",
          "test_a_shape_that_does_not_fit_is_refused", within="grouped"),
    fault("quantise: importance is not passed on",
          "own.rounded(old, (importance or {}).get(name)) => own.rounded(old)",
          "test_formats_are_priced_by_it_and_find_the_importance_of_inputs", within="in_format"),
    fault("quantise: samples of a piece count in full", "value=share => value=1.0",
          "test_the_diagonal_is_that_of_the_products_with_every_sample", within="Diagonal.add"),
    fault("quantise: fused weights are apart", "next($x, ()) => ()",
          "test_siblings_get_one_format_and_others_their_own", within="_fitting"),
    fault("quantise: what is not rounded costs no bytes", "4 * p.numel() => 0",
          "test_bytes_are_spent_on_all_tensors", within="Bill.untouched"),
    fault("quantise: rows of queries stay in transformers' order", "order is not None => False",
          "test_what_is_read_back_is_what_was_rounded_bit_by_bit", within="stored_tensors"),
    fault("quantise: the header has no size", "bytes=limit - self.header => bytes=limit",
          "test_again_costs_nothing_and_another_size_no_samples", within="_Target.allocate"),
    fault("quantise: what was written is not compared", "not torch.equal(stored[name], expected) => False",
          "test_a_file_that_differs_from_what_was_priced_is_reported", within="_read_back"),
    fault("quantise: a finer format is trusted where a coarser one fails", "reason or choosing => False",
          "test_of_formats_the_coarsest_is_looked_at_and_finer_ones_where_it_fails", within="secants"),
    fault("quantise: tokens count alike", "weights * rows => rows",
          "test_second_moments_weigh_tokens_by_what_they_cost", within="Inputs._note"),
)
