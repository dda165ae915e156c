"""Arguments of `attention_hessian`: checks and meaning."""

from hessblocks.theory.arguments.attention_hessian import attention_hessian
