"""Convert pretrained models of known architectures to our blocks, and back."""

from hessblocks.models.families.described import from_pretrained_blocks, to_family
