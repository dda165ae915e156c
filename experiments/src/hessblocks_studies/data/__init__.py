"""Load the tasks of the studies: sums, docstrings, substitutes for GLUE, texts of the hub."""

from hessblocks_studies.data.addition import SYMBOLS, addition_batch
from hessblocks_studies.data.docstrings import load_docstring_corpus, load_docstrings
from hessblocks_studies.data.hub import load_glue, load_hub_corpus
from hessblocks_studies.data.packaged import SMOLLM2, load_packaged
from hessblocks_studies.data.run_size import RunSize, run_of_size
from hessblocks_studies.data.tasks import TASKS, LabelledText, Task, make_task
from hessblocks_studies.data.texts import NO_TABLES, PACKAGE, TextSize, text_of, widened
