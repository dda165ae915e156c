"""Assemble the whole Hessian of one head from its Hessian in the product W = W_Q W_Kᵀ.

The scores depend on W_Q and W_K through W alone. The chain rule therefore gives their blocks from
the block of W. Its rows are entries (a, c) of W and its columns entries (b, d); a and b belong to
W_Q, c and d to W_K:

    query, query: contract c and d with W_K      key, key: contract a and b with W_Q
    query, key:   contract c with W_K, b with W_Q, and add (∂ℓ/∂W) ⊗ I_K

The block of W takes one large matrix product with symmetric factors. The three blocks of W_Q and
W_K, computed directly, take one each.

Letters: D width of the input, K query-key width and w its index, X parameters of any other group,
P all parameters.
"""

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from hessblocks.conventions import Part
from hessblocks.linalg import KroneckerTerm, TokenMatrices, slices
from hessblocks.theory.functional import product_gradient
from hessblocks.theory.heads import HeadTokens
from hessblocks.theory.layer import AttentionLayer
from hessblocks.theory.outer import TokenCurvature
from hessblocks.theory.piecewise import PiecewiseHessian


def pays_off(layer: AttentionLayer) -> bool:
    """Tell whether assembly through the product is cheaper: one head, and D ≤ 2 K."""
    if layer.key is None or layer.joined or not {"query", "key"} <= set(layer.parameters):
        return False
    heads, width, head_width = layer.query.shape
    return heads == 1 and width <= 2 * head_width


def in_product(layer: AttentionLayer) -> AttentionLayer:
    """Change variables to one matrix, W_Q W_Kᵀ: query_key in the place of query and key."""
    assert layer.key is not None
    others = [group for group in layer.parameters if group not in ("query", "key")]
    query = layer.query @ layer.key.mT
    return replace(layer, query=query, key=None, parameters=("query_key", *others))


def through_product(
    hessian: PiecewiseHessian,
    product: PiecewiseHessian,
    head: HeadTokens,
    curvature: TokenCurvature,
    part: Part,
) -> Float[Tensor, "P P"]:
    """Assemble the Hessian (P, P) of a layer with one head, in the order of `hessian.groups`.

    Args:
        hessian: Hessian of the layer in W_Q and W_K; gives the blocks of other groups.
        product: Hessian of the same layer in W, as `in_product` changes it.
        head: the layer's only head.
        curvature: curvature Λ of the loss in the attention output.
        part: outer, functional or full.

    Returns:
        The matrix, symmetric to rounding.

    Cost: N D² (D² / 4 + X) multiplications for the blocks of W, X the parameters of the other
        groups, then K D² (D² + X) for each contraction.
    """
    w_query, w_key = head.w_query, head.w_key
    assert w_key is not None
    others = [group for group in hessian.groups if group not in ("query", "key")]
    blocks = _score_blocks(product.block("query_key", "query_key", part).dense(), w_query, w_key)
    if part != "outer":
        _add_to_diagonals(blocks["query", "key"], product_gradient(head))
    for i, row in enumerate(others):
        mixed = _mixed_block(product, head, curvature, row, part)
        blocks[row, "query"] = _contract_keys(mixed, w_key)
        blocks[row, "key"] = _contract_queries(mixed, w_query)
        for column in others[i:]:
            blocks[row, column] = hessian.block(row, column, part).dense()
    return _symmetric_matrix(blocks, hessian.groups)


def _mixed_block(
    product: PiecewiseHessian, head: HeadTokens, curvature: TokenCurvature, row: str, part: Part
) -> Tensor:
    """Assemble the block between another group and W, (X, D·D).

    If all tokens share Λ, the block between W_V and W is W_O Λ W_Oᵀ W_Vᵀ times Σ_n (f x) ⊗ M_2. The
    matrices M_2 are symmetric, which saves half of the sum.

    Returns:
        The block; its rows belong to the other group, its columns to W.
    """
    if row != "value" or part == "functional" or not curvature.shared:
        return product.block(row, "query_key", part).dense()
    term = KroneckerTerm(
        row=head.features,
        column=head.x_query,
        matrices=TokenMatrices(right=head.second_moment, symmetric=True),
    )
    inner = curvature.between(head.w_projection, head.w_projection)[0] @ head.w_value.T
    width, value_width = head.w_value.shape
    outer = inner @ term.assembled().reshape(width, width, -1)
    outer = outer.view(width * value_width, -1)
    if part == "full":
        product.block(row, "query_key", "functional").add_dense(outer)
    return outer


def _score_blocks(
    product_block: Tensor, w_query: Tensor, w_key: Tensor
) -> dict[tuple[str, str], Tensor]:
    """Contract the block of W, (D·D, D·D), to those of W_Q and W_K, without the gradient term."""
    on_keys = _contract_keys(product_block, w_key)  # (a c), (b w)
    on_queries = _contract_queries(product_block, w_query)  # (a c), (d w)
    width, head_width = w_query.shape
    key_key = w_query.T @ on_queries.view(width, -1)  # v, (c d w): v is w of the rows
    key_key = key_key.view(head_width, width, -1).transpose(0, 1)
    return {
        ("query", "query"): (w_key.T @ on_keys.view(width, width, -1)).flatten(0, 1),
        ("query", "key"): (w_key.T @ on_queries.view(width, width, -1)).flatten(0, 1),
        ("key", "key"): key_key.flatten(0, 1),
    }


def _contract_keys(rows: Tensor, w_key: Tensor) -> Tensor:
    """Contract d of rows (X, b d) with W_K to rows (X, b w)."""
    width, head_width = w_key.shape
    return (rows.view(-1, width) @ w_key).view(len(rows), width * head_width)


def _contract_queries(rows: Tensor, w_query: Tensor) -> Tensor:
    """Contract b of rows (X, b d) with W_Q to rows (X, d w)."""
    width, head_width = w_query.shape
    transposed = rows.view(-1, width, width).mT.reshape(-1, width)
    return (transposed @ w_query).view(len(rows), width * head_width)


def _add_to_diagonals(query_key: Tensor, gradient: Tensor) -> None:
    """Add gradient ⊗ I_K to the (query, key) block in place."""
    width = len(gradient)
    grid = query_key.view(width, query_key.shape[0] // width, width, -1)
    grid.diagonal(dim1=1, dim2=3).add_(gradient[:, :, None])


def _symmetric_matrix(blocks: dict[tuple[str, str], Tensor], groups: tuple[str, ...]) -> Tensor:
    """Write each block, and its transpose on the other side, into one matrix."""
    lengths = [len(blocks[group, group]) for group in groups]
    ranges = dict(zip(groups, slices(lengths), strict=True))
    out = blocks[groups[0], groups[0]].new_empty(sum(lengths), sum(lengths))
    for (row, column), block in blocks.items():
        out[ranges[row], ranges[column]] = block
        if row != column:
            out[ranges[column], ranges[row]] = block.T.contiguous()
    return out
