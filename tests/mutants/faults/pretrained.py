"""Faults of real models: GGUF files, and text in their tokens."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("layers without tensors are made", "if layers > len($tensors): $$body => if False: $$body",
          "test_gguf.py", within="check_gguf"),
    fault("a damaged header reaches transformers",
          "raise RunError(f'MODEL: {$path} is damaged or not a GGUF file ({_short($error)}); copy or download it again.') from $error"
          " => return",
          "test_gguf.py", within="check_gguf"),
    fault("a model from GGUF stays quantised", "$quantizer.remove_quantization_config($model) => None",
          "test_gguf.py"),
    fault("documents of a pretrained model have no end", "$ids += end => $ids",
          "test_text_batch.py"),
    fault("all of a long text is read", "if characters > MOST_CHARACTERS: $$body => if False: $$body",
          "test_text_batch.py"),
)
