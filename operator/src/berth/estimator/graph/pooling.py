"""What does the graph give beside logits when embeddings are asked for?"""

from berth.estimator.graph.blocks import norm
from berth.estimator.graph.context import Context
from berth.estimator.graph.tensor import Node, cont, get_rows, like, mul_mat, transpose

POOLINGS = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}


def pool(c: Context, x: Node) -> None:
    """One embedding a sequence, or one score: a mean of rows, or one row and what a classifier makes of it."""
    if not c.settings.embeddings:
        return
    kind = POOLINGS.get(c.settings.pooling, c.number("pooling_type"))
    if kind == POOLINGS["mean"]:
        mean = c.input("mean", "F32", c.batch.rows, c.batch.sequences)
        x = mul_mat(cont(transpose(x)), mean)
    elif kind:
        x = get_rows(x, c.input("cls", "I32", c.batch.sequences))
    if kind == POOLINGS["rank"]:
        x = _scored(c, x)
    x.is_output = True
    c.expand(x)


def _scored(c: Context, x: Node) -> Node:
    head, out = c.weight("cls"), c.weight("cls.output")
    if head is not None:
        x = mul_mat(head, x)
        bias = c.weight("cls", -1, "bias")
        x = like("add", x, bias) if bias is not None else x
        x = (
            norm(like("unary", x), c.weight("cls.norm"), kind="norm")
            if c.weight("cls.norm")
            else like("unary", x)
        )
    if out is not None:
        x = mul_mat(out, x)
        bias = c.weight("cls.output", -1, "bias")
        x = like("add", x, bias) if bias is not None else x
    return x
