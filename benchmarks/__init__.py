"""The figures that the documentation quotes, each measured with both sides in one run."""
