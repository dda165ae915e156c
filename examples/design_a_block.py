# %% [markdown]
# # A block of your own: does signal pass, and what does it cost?
#
# For block designers. A block is a choice of parts; before any training one can see whether tokens
# stay apart through the layers, how well each layer's Jacobian is conditioned, and how many
# parameters it has. Run it as a script (`python examples/design_a_block.py`) or cell by cell.

# %%
import torch

import hessblocks as hb
from hessblocks.blocks import Branch

torch.manual_seed(0)
SIZES = {"width": 64, "heads": 4}
batch = {"input_ids": torch.randint(0, 256, (4, 32))}

# %% [markdown]
# Three known blocks and one that is in no paper: Pre-LN whose attention skip is gone, nothing put
# in its place. `replace` returns a new block; a combination that cannot work is refused with the
# reason.

# %%
blocks = {name: hb.preset(name, **SIZES) for name in ("pre-ln", "sas", "sas-p")}
blocks["no skip"] = blocks["pre-ln"].replace(attention_branch=Branch(skip=0.0))

# %% [markdown]
# Similarity is the mean cosine between the tokens of a sequence: at 1 all tokens are the same and
# nothing can be learnt from them (rank collapse). It should grow slowly with depth.

# %%
print(f"{'block':10}{'parameters':>12}{'similarity of tokens after layer 1, 4, 8':>44}")
for name, block in blocks.items():
    model = hb.build(block, depth=8, vocab_size=256, context=32)
    signal = hb.signal(model, batch, jacobian_steps=0)
    similar = [signal.layers[layer].tokens.token_similarity for layer in (0, 3, 7)]
    print(f"{name:10}{model.num_parameters():>12,}{'':20}" + "".join(f"{s:8.2f}" for s in similar))

# %% [markdown]
# Shaped attention, αI + βA − γC, is what keeps the tokens of sas apart, which has no attention skip
# either; without the shaping they collapse. Next: `hessblocks compare --presets pre-ln,sas-p`
# trains blocks beside each other at your sizes.

# %%
sas = blocks["sas"]
shapeless = sas.replace(attention=sas.attention.replace(shaping=None))
model = hb.build(shapeless, depth=8, vocab_size=256, context=32)
last = hb.signal(model, batch, jacobian_steps=0).layers[-1]
print(f"sas without shaping: similarity {last.tokens.token_similarity:.2f} after layer 8")
