"""How are the graphs built that follow no common pattern: MLA, gemma4, encoders?"""

from berth.estimator.graph import blocks as b
from berth.estimator.graph.context import Context, NoGraph
from berth.estimator.graph.decoder import Habit, finish, mixture_or_dense, rope_factors
from berth.estimator.graph.experts import experts
from berth.estimator.graph.pooling import pool
from berth.estimator.graph.tensor import (
    Node,
    concat,
    cont,
    get_rows,
    like,
    made,
    mul_mat,
    permute,
    reshape,
    view,
)
from berth.estimator.shape import Layer

MLA = Habit(keep_hidden=True)


def latent(c: Context) -> None:
    """deepseek2: keys and values from one low-rank row, cached as it is where the header allows it."""
    x = b.embed(c)
    last = c.shape.layers[-1].number
    habit = Habit(norm_weights=bool(c.facts.hparams.get("expert_weights_norm")))
    for layer in c.blocks():
        residual, number = x, layer.number
        cur = _latent_attention(c, layer, b.norm(x, c.weight("attn_norm", number)))
        if number == last:
            cur, residual = b.last_rows(c, cur, residual)
        middle = like("add", cur, residual)
        normed = b.norm(middle, c.weight("ffn_norm", number))
        x = like("add", mixture_or_dense(c, habit, number, normed), middle)
    finish(c, MLA, x)


def _latent_attention(c: Context, layer: Layer, normed: Node) -> Node:
    number, rows = layer.number, c.batch.rows
    rank = c.positive("attention.kv_lora_rank")
    turned = c.number("rope.dimension_count", layer.key)
    key = c.number("attention.key_length_mla", layer.key)
    q = _latent_queries(c, number, normed)
    q = reshape(q, key, layer.heads, rows)
    joined = b.linear(c, normed, "attn_kv_a_mqa", number)
    stride = joined.nb[1]
    low = view(joined, (rank, rows), (stride,))
    k_rope = view(joined, (turned, 1, rows), (stride, stride))
    if c.shape.mla:
        return _absorbed(c, layer, q, low, k_rope, key - turned)
    q = b.rope(c, q)
    k_rope = b.rope(c, k_rope)
    low = b.norm(low, c.weight("attn_kv_a_norm", number))
    both = b.linear(c, low, "attn_kv_b", number)
    plain, wide = key - turned, key - turned + layer.value
    head = (4 * wide, 4 * wide * layer.heads)
    k_plain = view(both, (plain, layer.heads, rows), head)
    v = cont(view(both, (layer.value, layer.heads, rows), head))
    k = concat(k_plain, made("repeat", (turned, layer.heads, rows), k_rope), 0)
    return b.attend(c, layer, q, k, v)


def _latent_queries(c: Context, number: int, normed: Node) -> Node:
    if c.weight("attn_q", number) is not None:
        return b.linear(c, normed, "attn_q", number)
    q = b.linear(c, normed, "attn_q_a", number)
    q = b.norm(q, c.weight("attn_q_a_norm", number))
    return b.linear(c, q, "attn_q_b", number)


def _absorbed(c: Context, layer: Layer, q: Node, low: Node, k_rope: Node, plain: int) -> Node:
    number, rows = layer.number, c.batch.rows
    q_plain = view(q, (plain, layer.heads, rows), q.nb[1:3])
    q_rope = view(q, (q.ne[0] - plain, layer.heads, rows), q.nb[1:3])
    q_rope, k_rope = b.rope(c, q_rope), b.rope(c, k_rope)
    low = b.norm(low, c.weight("attn_kv_a_norm", number))
    weight = c.weight("attn_k_b", number)
    if weight is None:
        raise NoGraph("attn_k_b")
    absorbed = permute(mul_mat(weight, permute(q_plain, 0, 2, 1, 3)), 0, 2, 1, 3)
    q = concat(absorbed, q_rope, 0)
    low = reshape(low, low.ne[0], 1, rows)
    k = concat(low, k_rope, 0)
    c.expand_all((q, low, k))
    c.expand(b.store_keys(c, layer, k))
    keys = c.cache(layer, "k")
    row = keys.nb[1]
    cells, streams = keys.ne[1], keys.ne[2]
    k_view = view(keys, (keys.ne[0], 1, cells, streams), (row, row, row * cells))
    v_view = view(k_view, (low.ne[0], 1, cells, streams), k_view.nb[1:])
    x = b.mha(
        c, layer, q, k_view, v_view, b.mask(c, window=False), v_mla=c.weight("attn_v_b", number)
    )
    return b.linear(c, x, "attn_output", number)


LOOKED_UP_FIRST = 11669
"""From this build on, at the latest, gemma4 looks up each layer's embeddings before the tokens' own."""


def gemma4(c: Context) -> None:
    """gemma4: sliding layers of another width, late layers without a cache, embeddings for each layer."""
    width = c.number("embedding_length_per_layer_input")
    if not width or c.weight("per_layer_token_embd") is None:
        x, extra = b.embed(c, scaled=True), None
    elif c.settings.build >= LOOKED_UP_FIRST:
        given = looked_up(c, width)
        c.expand(given)
        x = b.embed(c, scaled=True)
        extra = projected(c, x, like("scale", given), width)
    else:
        x = b.embed(c, scaled=True)
        extra = per_layer(c, x, width)
    for layer in c.blocks():
        x = _gemma4_block(c, layer, x, extra, width)
    finish(c, Habit(last_inside=False, keep_hidden=True), x)


def per_layer(c: Context, x: Node, width: int) -> Node:
    """The embeddings of every block, one after another."""
    given = like("scale", looked_up(c, width))
    c.expand(given)
    return projected(c, x, given, width)


def looked_up(c: Context, width: int) -> Node:
    """The tokens' rows of every block's embeddings."""
    table = c.weight("per_layer_token_embd")
    if table is None:
        raise NoGraph("per_layer_token_embd")
    rows = c.batch.rows
    return reshape(
        get_rows(table, c.input("per layer tokens", "I32", rows)), width, c.shape.trunk, rows
    )


def projected(c: Context, x: Node, given: Node, width: int) -> Node:
    """What was looked up with what the tokens' own embeddings give for every block."""
    rows, count = c.batch.rows, c.shape.trunk
    project = c.weight("per_layer_model_proj")
    if project is None:
        raise NoGraph("per_layer_model_proj")
    made_of = reshape(like("scale", mul_mat(project, x)), width, count, rows)
    made_of = b.norm(made_of, c.weight("per_layer_proj_norm"))
    both = like("scale", like("add", made_of, given))
    return cont(permute(both, 0, 2, 1, 3))


def _gemma4_block(c: Context, layer: Layer, x: Node, extra: Node | None, width: int) -> Node:
    number, rows = layer.number, c.batch.rows
    normed = b.norm(x, c.weight("attn_norm", number))
    factors = None if layer.window else rope_factors(c, number)
    q = reshape(b.linear(c, normed, "attn_q", number), layer.key, layer.heads, rows)
    q = b.rope(c, b.norm(q, c.weight("attn_q_norm", number)), factors)
    k = v = None
    if layer.keeps:
        raw = b.linear(c, normed, "attn_k", number)
        values = (
            b.linear(c, normed, "attn_v", number) if c.weight("attn_v", number) is not None else raw
        )
        k = reshape(raw, layer.key, layer.kv_heads, rows)
        v = reshape(values, layer.key, layer.kv_heads, rows)
        k = b.norm(k, c.weight("attn_k_norm", number))
        v = b.rms(v)
        k = b.rope(c, k, factors)
    cur = b.attend(c, layer, q, k, v)
    cur = b.norm(cur, c.weight("post_attention_norm", number))
    middle = like("add", cur, x)
    cur = _gemma4_feed(c, number, middle)
    cur = b.norm(cur, c.weight("post_ffw_norm", number))
    cur = like("add", cur, middle)
    if extra is not None:
        cur = _gemma4_extra(c, number, cur, extra, width)
    scale = c.weight("layer_output_scale", number)
    return like("mul", cur, scale) if scale is not None else cur


def _gemma4_feed(c: Context, number: int, middle: Node) -> Node:
    if c.weight("ffn_gate_inp", number) is None:
        return b.feed_forward(c, b.norm(middle, c.weight("ffn_norm", number)), number)
    dense = b.feed_forward(c, b.norm(middle, c.weight("ffn_norm", number)), number)
    dense = b.norm(dense, c.weight("post_ffw_norm_1", number))
    mixed = b.norm(middle, c.weight("pre_ffw_norm_2", number))
    router = like("scale", b.rms(middle))
    gate = c.weight("ffn_gate_inp", number, "scale")
    router = like("mul", router, gate) if gate is not None else router
    weight = c.weight("ffn_gate_inp", number)
    assert weight is not None
    mixed = experts(c, mixed, number, logits=mul_mat(weight, router))
    return like("add", dense, b.norm(mixed, c.weight("post_ffw_norm_2", number)))


def _gemma4_extra(c: Context, number: int, cur: Node, extra: Node, width: int) -> Node:
    before = cur
    cur = like("unary", b.linear(c, cur, "inp_gate", number))
    cur = like("mul", cur, view(extra, (width, extra.ne[1]), (extra.nb[1],)))
    cur = b.norm(b.linear(c, cur, "proj", number), c.weight("post_norm", number))
    return like("add", before, cur)


PLAIN_ENCODERS = frozenset({"bert", "nomic-bert-moe", "jina-bert-v3"})
ROPED_ENCODERS = frozenset({"nomic-bert", "nomic-bert-moe", "jina-bert-v3"})


def encoder(c: Context) -> None:
    """bert and its kin: no cache, norms behind the sums."""
    name = c.shape.architecture
    x = b.embed(c)
    types = c.weight("token_types")
    if types is not None:
        x = like("add", x, view(types, (c.shape.embedding,)))
    if name == "bert":
        table = c.weight("position_embd")
        if table is None:
            raise NoGraph("position_embd")
        x = like("add", get_rows(table, b.positions(c)), x)
    x = b.norm(x, c.weight("token_embd_norm"), c.weight("token_embd_norm", -1, "bias"), kind="norm")
    last = c.shape.layers[-1].number
    for layer in c.blocks():
        x = _encoder_block(c, layer, x, last=layer.number == last)
    x.is_output = True
    c.expand(x)
    pool(c, x)


def _encoder_block(c: Context, layer: Layer, x: Node, *, last: bool) -> Node:
    number, residual = layer.number, x
    q, k, v = b.heads(c, x, layer)
    if c.shape.architecture in ROPED_ENCODERS:
        q, k = b.rope(c, q), b.rope(c, k)
    cur = b.attend(c, layer, q, k, v)
    if last:
        cur, residual = b.last_rows(c, cur, residual)
    cur = like("add", cur, residual)
    cur = b.norm(
        cur,
        c.weight("attn_output_norm", number),
        c.weight("attn_output_norm", number, "bias"),
        kind="norm",
    )
    middle = cur
    if c.weight("ffn_gate_inp", number) is not None:
        cur = experts(c, cur, number, norm_weights=False, act="plain")
    else:
        cur = b.feed_forward(
            c, cur, number, act="plain" if c.shape.architecture in PLAIN_ENCODERS else "gated"
        )
    cur = like("add", cur, middle)
    return b.norm(
        cur,
        c.weight("layer_output_norm", number),
        c.weight("layer_output_norm", number, "bias"),
        kind="norm",
    )
