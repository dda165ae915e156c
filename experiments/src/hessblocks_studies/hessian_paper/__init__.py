"""Studies of the figures of "What Does It Mean to Be a Transformer?"."""

STUDIES = {
    "heatmap": "heatmap",
    "fig3a": "fig3a",
    "fig3b": "fig3b",
    "histograms": "histograms",
    "deep-softmax": "deep_softmax",
    "deep-linear": "deep_linear",
    "mlp": "linear_mlp",
    "sigma-linear": "sigma_linear",
    "one-matrix": "one_matrix",
    "cross-blocks": "cross_blocks",
    "indefiniteness": "indefiniteness",
}
"""Name of a study → module of this package with the study as `STUDY`, in the paper's order."""
