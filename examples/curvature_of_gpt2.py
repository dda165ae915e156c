# %% [markdown]
# # The curvature of any Hugging Face model, group by group
#
# For optimisation researchers: H and its Gauss-Newton split H = H_o + H_f for the query, key, value
# and other groups of a model that is not ours, with error bars, without assembling a matrix. A
# random GPT-2 keeps this small; `GPT2LMHeadModel.from_pretrained(FOLDER)` goes in its place.

# %%
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import hessblocks as hb

torch.manual_seed(0)
sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 128, "n_positions": 24}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
model.set_attn_implementation(
    "eager"
)  # else it is replaced while derivatives are taken, with a warning
batches = [{"input_ids": torch.randint(0, 128, (4, 24))} for _ in range(2)]

# %% [markdown]
# GPT-2 keeps query, key and value in one matrix; groups are views of it. `level="head"` splits
# further.

# %%
problem = hb.Problem(model, batches, loss="causal-lm")
groups = hb.parameter_groups(model)
print(len(groups), "groups,", len(hb.parameter_groups(model, level="head")), "with a group a head")

# %%
print(f"{'group':32}{'H_o':>22}{'H_f':>22}")
for name in ("query", "key", "value", "projection"):
    group = groups[f"layers.1.attention.{name}"]
    outer = hb.frobenius_norm(hb.OuterProduct(problem, group), probes=16)
    functional = hb.frobenius_norm(hb.Functional(problem, group), probes=16)
    cells = (f"{e.value:.2e} ± {e.standard_error:.0e}" for e in (outer, functional))
    print(f"layers.1.attention.{name:15}" + "".join(f"{cell:>22}" for cell in cells))

# %% [markdown]
# An operator is all that other libraries need: products, a shape, and `to_scipy()`. Here the ends
# of the spectrum of a value block, and its density.

# %%
value = hb.Hessian(problem, groups["layers.1.attention.value"])
ends = hb.extreme_eigenvalues(value).values
print(f"eigenvalues of the value block from {float(ends.min()):.3f} to {float(ends.max()):.3f}")
print(hb.spectral_density(value))

# %% [markdown]
# How groups interact: a table of the norms of every block of H. On the command line:
# `hessblocks curvature FOLDER_OR_NAME --out DIR` does all this and draws it.

# %%
chosen = {name: group for name, group in groups.items() if name.startswith("layers.1.attention")}
table = hb.curvature_map(problem, chosen, part="full", probes=8)
for row in table.to_rows()[:3]:
    print(row)
