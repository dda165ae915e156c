"""Write quantised models: GGUF files, and folders of transformers with quantised weights."""

from hessblocks.export.folders import FOLDERS, check_linear, write_folder
from hessblocks.export.gguf_file import (
    GgufHeader,
    gguf_tensors,
    header_of,
    other_tensors,
    read_gguf,
    stored_tensors,
    to_gguf,
    write_gguf,
)

__all__ = ["GgufHeader", "to_gguf", "write_folder", "write_gguf"]
