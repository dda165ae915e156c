"""The arguments of `attention_hessian`, checked, and what they mean."""

from hessblocks.theory.arguments.attention_hessian import attention_hessian
