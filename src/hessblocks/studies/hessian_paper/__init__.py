"""The figures of "What Does It Mean to Be a Transformer?"."""
