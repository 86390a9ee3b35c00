"""How is T5's graph built? (The engine reserves the decoder's, with an encoder as long as it was trained for.)"""

from berth.estimator.graph import blocks as b
from berth.estimator.graph.context import Context, NoGraph
from berth.estimator.graph.decoder import Habit, finish
from berth.estimator.graph.tensor import Node, cont, get_rows, glu, like, mul_mat, permute, reshape
from berth.estimator.shape import Layer


def decoder(c: Context) -> None:
    """The decoder: attention to itself under a bias by distance, then to the encoder's rows."""
    x = b.embed(c)
    encoded = c.input("encoded", "F32", c.shape.embedding, c.shape.trained)
    cells, rows = c.sizes.cells, c.batch.rows
    distances = c.input("distances", "I32", cells, rows)
    table = c.named("dec.blk.{}.attn_rel_b.weight", 0)
    if table is None:
        raise NoGraph("attn_rel_b")
    last = c.shape.layers[-1].number
    for layer in c.blocks():
        number = layer.number
        cur = _self(c, layer, _norm(c, x, "attn_norm", number), table, distances)
        middle = like("add", cur, x)
        cur = _cross(c, layer, _norm(c, middle, "cross_attn_norm", number), encoded)
        if number == last:
            cur, middle = b.last_rows(c, cur, middle)
        fed = like("add", cur, middle)
        x = like("add", _feed(c, number, _norm(c, fed, "ffn_norm", number)), fed)
    c.groups["output_norm.weight"] = c.groups.get("dec.output_norm.weight", [])
    finish(c, Habit(), x)


def _weight(c: Context, stem: str, number: int) -> Node:
    found = c.named(f"dec.blk.{{}}.{stem}.weight", number)
    if found is None:
        raise NoGraph(stem)
    return found


def _norm(c: Context, x: Node, stem: str, number: int) -> Node:
    return b.norm(x, _weight(c, stem, number))


def _self(c: Context, layer: Layer, x: Node, table: Node, distances: Node) -> Node:
    number, rows = layer.number, c.batch.rows
    q, k, v = (mul_mat(_weight(c, f"attn_{name}", number), x) for name in "qkv")
    q = reshape(q, layer.key, layer.heads, rows)
    k = reshape(k, layer.key, layer.kv_heads, rows)
    v = reshape(v, layer.value, layer.kv_heads, rows)
    flat = reshape(distances, distances.ne[0] * distances.ne[1])
    bias = reshape(get_rows(table, flat), table.ne[0], distances.ne[0], distances.ne[1])
    bias = cont(permute(bias, 2, 0, 1, 3))
    x = b.attend(c, layer, q, k, v, bias=bias, wo="")
    return mul_mat(_weight(c, "attn_o", number), x)


def _cross(c: Context, layer: Layer, x: Node, encoded: Node) -> Node:
    number, rows, length = layer.number, c.batch.rows, encoded.ne[1]
    q = reshape(mul_mat(_weight(c, "cross_attn_q", number), x), layer.key, layer.heads, rows)
    k = reshape(
        mul_mat(_weight(c, "cross_attn_k", number), encoded), layer.key, layer.kv_heads, length
    )
    v = reshape(
        mul_mat(_weight(c, "cross_attn_v", number), encoded), layer.value, layer.kv_heads, length
    )
    c.expand_all((q, k, v))
    mask = c.input("mask cross", "F16" if c.flash else "F32", length, rows)
    return mul_mat(_weight(c, "cross_attn_o", number), b.mha(c, layer, q, k, v, mask))


def _feed(c: Context, number: int, x: Node) -> Node:
    up = mul_mat(_weight(c, "ffn_up", number), x)
    gate = c.named("dec.blk.{}.ffn_gate.weight", number)
    if gate is None:
        return mul_mat(_weight(c, "ffn_down", number), like("unary", up))
    return mul_mat(_weight(c, "ffn_down", number), glu(mul_mat(gate, x), up))
