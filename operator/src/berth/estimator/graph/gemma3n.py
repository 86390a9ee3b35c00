"""How is gemma3n's graph built: four streams predicted and corrected in every block?"""

from berth.estimator.graph import blocks as b
from berth.estimator.graph.context import Context, NoGraph
from berth.estimator.graph.decoder import Habit, finish
from berth.estimator.graph.special import per_layer
from berth.estimator.graph.tensor import (
    Node,
    concat,
    cont,
    like,
    made,
    mul_mat,
    permute,
    reshape,
    sum_rows,
    transpose,
    view,
)
from berth.estimator.shape import Layer

STREAMS, PER_LAYER, SPARSE_BLOCKS = 4, 256, 10
"""Constants of the engine's code."""


def build(c: Context) -> None:
    """The whole graph."""
    x = b.embed(c, scaled=True)
    extra = per_layer(c, x, PER_LAYER)
    x = _widened(c, x)
    for layer in c.blocks():
        x = _block(c, layer, x, extra)
    finish(c, Habit(last_inside=False, last_before_norm=True, cap_logits=True), _narrowed(c, x))


def _weight(c: Context, stem: str, number: int = -1) -> Node:
    found = c.weight(stem, number)
    if found is None:
        raise NoGraph(stem)
    return found


def _magnitude(x: Node) -> Node:
    return like("sqrt", sum_rows(like("sqr", x)))


def _slice(x: Node) -> Node:
    return view(x, (x.ne[0], x.ne[1]), (x.nb[1],))


def _rest(x: Node) -> Node:
    return view(x, (x.ne[0], x.ne[1], x.ne[2] - 1), (x.nb[1], x.nb[2]))


def _widened(c: Context, x: Node) -> Node:
    target = _magnitude(x)
    repeated = made("repeat", (x.ne[0], x.ne[1], STREAMS - 1), x)
    added = mul_mat(_weight(c, "altup_proj"), repeated)
    added = like("div", like("mul", added, target), _magnitude(added))
    return concat(x, added, 2)


def _narrowed(c: Context, x: Node) -> Node:
    target = _magnitude(_slice(x))
    back = mul_mat(_weight(c, "altup_unembd_proj"), _rest(x))
    back = like("div", like("mul", back, target), _magnitude(back))
    cur = _slice(x)
    for _ in range(STREAMS - 1):
        cur = like("add", cur, _slice(back))
    return like("scale", cur)


def _block(c: Context, layer: Layer, x: Node, extra: Node) -> Node:
    number = layer.number
    predicted = _predict(c, number, x)
    active = _slice(predicted)
    normed = b.norm(active, c.weight("attn_norm", number))
    shortcut = _laurel(c, number, normed)
    cur = b.norm(_attention(c, layer, normed), c.weight("post_attention_norm", number))
    cur = like("add", cur, active)
    middle = like("scale", like("add", cur, shortcut))
    cur = _feed(c, number, b.norm(middle, c.weight("ffn_norm", number)))
    cur = b.norm(cur, c.weight("post_ffw_norm", number))
    corrected = _correct(c, number, predicted, like("add", cur, middle))
    first = like("mul", _slice(corrected), _weight(c, "altup_correct_scale", number))
    first = like("unary", b.linear(c, first, "inp_gate", number))
    first = like("mul", first, _slice(extra))
    first = b.norm(b.linear(c, first, "proj", number), c.weight("post_norm", number))
    return concat(_slice(corrected), like("add", _rest(corrected), first), 2)


def _laurel(c: Context, number: int, x: Node) -> Node:
    low = b.linear(c, b.linear(c, x, "laurel_l", number), "laurel_r", number)
    return like("add", b.norm(low, c.weight("laurel_post_norm", number)), x)


def _attention(c: Context, layer: Layer, normed: Node) -> Node:
    number, rows = layer.number, c.batch.rows
    if not layer.keeps:
        q = reshape(b.linear(c, normed, "attn_q", number), layer.key, layer.heads, rows)
        q = b.rope(c, b.norm(q, c.weight("attn_q_norm", number)))
        return b.attend(c, layer, q, None, None)
    q, k, v = b.heads(c, normed, layer)
    q, k = b.norm(q, c.weight("attn_q_norm", number)), b.norm(k, c.weight("attn_k_norm", number))
    v = b.rms(v)
    return b.attend(c, layer, b.rope(c, q), b.rope(c, k), v)


def _feed(c: Context, number: int, x: Node) -> Node:
    up = b.linear(c, x, "ffn_up", number)
    gate = b.linear(c, x, "ffn_gate", number)
    if number < SPARSE_BLOCKS:
        gate = _sparse(gate)
    return b.linear(c, like("mul", up, like("unary", gate)), "ffn_down", number)


def _sparse(x: Node) -> Node:
    mean = made("mean", (1, *x.ne[1:]), x)
    spread = like("sqrt", like("scale", sum_rows(like("sqr", like("sub", x, mean)))))
    return like("unary", like("sub", x, like("add", mean, like("scale", spread))))


def _route(c: Context, number: int, x: Node) -> Node:
    x = like("scale", b.norm(x, c.weight("altup_router_norm", number)))
    return like("unary", mul_mat(_weight(c, "altup_router", number), x))


def _predict(c: Context, number: int, x: Node) -> Node:
    weights = b.linear(c, _route(c, number, _slice(x)), "altup_predict_coef", number)
    weights = reshape(weights, STREAMS, STREAMS, x.ne[1])
    turned = cont(permute(x, 1, 2, 0, 3))
    found = cont(permute(mul_mat(turned, weights), 0, 2, 1, 3))
    return like("add", found, x)


def _correct(c: Context, number: int, predicted: Node, active: Node) -> Node:
    routed = _route(c, number, active)
    new = like("sub", active, _slice(predicted))
    weights = like("scale", b.linear(c, routed, "altup_correct_coef", number))
    weights = cont(transpose(weights), 1, active.ne[1], STREAMS)
    new = made("repeat", (active.ne[0], active.ne[1], STREAMS), new)
    return like("add", like("mul", new, weights), predicted)
