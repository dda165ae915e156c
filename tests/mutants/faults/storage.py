"""Faults of storage: files, locks, lines."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("infinite numbers are no JSON", "not math.isfinite($value) => False",
          "test_reading.py", within="_plain"),
    fault("tensors of one storage are written as such", "$one.clone().contiguous() => $one",
          "test_half_precision_and_shared_memory_are_kept"),
    fault("a tensor of a file may have any length",
          "$lengths.setdefault(name, length) == length => True",
          "test_tensors_that_do_not_fit_together_are_refused"),
    fault("a field of a file may be of any type", "type(value) is not kind => False",
          "test_another_type_is_named_by_its_line", within="_exactly"),
    fault("a number is nothing in a cell", "kind is not NoneType => True",
          "test_another_type_is_named_by_its_line", within="_cell"),
    fault("a file is not sent to the disk", "os.fsync($descriptor) =>", "test_files.py",
          within="sync"),
    fault("partial files of others are removed", "glob.escape($name) => glob.escape($name) + '*'",
          "test_partials_of_one_name_are_removed_and_no_others", within="remove_partials"),
    fault("rows that were gathered count twice", "($row.preset, $row.seed) not in $known => True",
          "test_runs_that_the_comparison_has_not_collected_are_read_in_place"),
    fault("an infinite loss is written as it is",
          "json.dumps(files.finite($line)) => json.dumps($line)", "test_lines.py",
          within="append_line"),
    fault("a damaged line in the middle ends the file", "$line.isascii() and $more => True",
          "test_a_damaged_line_is_named_by_file_and_number", within="read_typed"),
    fault("bytes that are no text count as half a line", "$line.isascii() and $more => $more",
          "test_a_damaged_file_is_named", within="read_typed"),
    fault("a folder is not locked", "$lock.acquire() =>",
          "test_another_process_is_named_and_its_lock_goes_with_it", within="_take"),
    fault("a missing number is 0", "math.nan => 0.0", "test_records.py", within="hessblocks.typed"),
    fault("an edited card spoils the model", "{MANIFEST, CARD} => {MANIFEST}",
          "storage/test_manifest.py"),
)
