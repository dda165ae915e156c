# %% [markdown]
# # A simplified block as an ordinary Hugging Face model
#
# For practitioners: SAS-P trains in `Trainer`, is saved as safetensors, comes back through
# `AutoModelForCausalLM` and generates with a cache. The data are the bytes of a module of the
# standard library: small enough for a minute's try, of no other use.

# %%
import inspect
import random
import tempfile

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import hessblocks as hb

CONTEXT = 64
text = torch.tensor(list(inspect.getsource(random).encode()))
rows = text[: len(text) // CONTEXT * CONTEXT].view(-1, CONTEXT)
examples = [{"input_ids": row, "labels": row} for row in rows]

# %% [markdown]
# `import hessblocks` registers the model with the Auto classes; nothing else is needed to load it
# again.

# %%
torch.manual_seed(0)
model = hb.build("sas-p", depth=2, width=64, heads=4, vocab_size=256, context=CONTEXT)
folder = tempfile.mkdtemp()
arguments = TrainingArguments(
    folder,
    max_steps=60,
    per_device_train_batch_size=8,
    learning_rate=3e-3,
    logging_steps=20,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=examples)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print("loss every 20 steps:", *(f"{float(loss):.2f}" for loss in losses))

# %%
model.save_pretrained(folder)
loaded = AutoModelForCausalLM.from_pretrained(folder)
prompt = torch.tensor([list(b"def ")])
written = loaded.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
without = loaded.generate(
    prompt, max_new_tokens=24, do_sample=False, pad_token_id=0, use_cache=False
)
print("with a cache as without:", bool((written == without).all()))
print(bytes(written[0].tolist()))
