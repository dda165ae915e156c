"""Take pretrained models of known families apart into our blocks, and put them together again."""

from hessblocks.models.families.described import from_pretrained_blocks, to_family
