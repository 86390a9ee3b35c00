"""How are the graphs of Qwen3-Next and Qwen3.5 built: gated delta nets, and attention with a gate?"""

from collections.abc import Callable

from berth.estimator.graph import blocks as b
from berth.estimator.graph.context import Context, NoGraph
from berth.estimator.graph.decoder import Habit, finish, mixture_or_dense
from berth.estimator.graph.recurrent import states
from berth.estimator.graph.tensor import (
    Node,
    concat,
    cont,
    copy_into,
    like,
    made,
    reshape,
    transpose,
    view,
)
from berth.estimator.shape import Layer

SCAN = Callable[[Node, Node], Node]


def qwen3next(c: Context) -> None:
    """Qwen3-Next: gated delta nets, every fourth block attends with a gate."""
    habit = Habit(post_is_ffn_norm=True, last_inside=False, keep_hidden=True)
    x = b.embed(c)
    for layer in c.blocks():
        number, residual = layer.number, x
        cur = b.norm(x, c.weight("attn_norm", number))
        c.expand(cur)
        cur = _delta(c, layer, cur) if layer.recurrent else _gated_attention(c, layer, cur)
        x = _next_feed(c, habit, number, like("add", cur, residual))
    finish(c, habit, x)


def _next_feed(c: Context, habit: Habit, number: int, middle: Node) -> Node:
    normed = b.norm(middle, c.weight("post_attention_norm", number))
    return like("add", mixture_or_dense(c, habit, number, normed), middle)


def _gated_attention(c: Context, layer: Layer, x: Node) -> Node:
    number, rows = layer.number, c.batch.rows
    raw = [b.linear(c, x, f"attn_{name}", number) for name in "qkv"]
    full = reshape(raw[0], 2 * layer.key, layer.heads, rows)
    q = view(full, (layer.key, layer.heads, rows), full.nb[1:4])
    gate = view(full, (layer.key, layer.heads, rows), full.nb[1:4])
    k = reshape(raw[1], layer.key, layer.kv_heads, rows)
    v = reshape(raw[2], layer.key, layer.kv_heads, rows)
    q = b.norm(q, c.weight("attn_q_norm", number))
    k = b.norm(k, c.weight("attn_k_norm", number))
    cur = b.attend(c, layer, b.rope(c, q), b.rope(c, k), v, wo="")
    gate = like("unary", cont(gate, layer.key * layer.heads, rows))
    return b.linear(c, like("mul", cur, gate), "attn_output", number)


def _delta(c: Context, layer: Layer, x: Node) -> Node:
    number, sequences = layer.number, c.batch.sequences
    tokens = c.batch.rows // sequences
    inner, key, key_heads = (
        c.positive("ssm.inner_size"),
        c.positive("ssm.state_size"),
        c.positive("ssm.group_count"),
    )
    heads = c.positive("ssm.time_step_rank")
    value = inner // heads
    mixed, z = _mixed(c, number, x, tokens, sequences)
    beta, gate = _beta_gate(c, number, x, heads, key_heads, tokens, sequences)
    kernel = c.weight("ssm_conv1d", number)
    if kernel is None:
        raise NoGraph("ssm_conv1d")
    channels, size = inner + 2 * key_heads * key, kernel.ne[0]
    shifted, carried = c.state(layer, "r"), c.state(layer, "s")
    window = _window(c, shifted, mixed, size, channels, sequences)
    state = reshape(states(c, carried), value, value, heads, sequences)
    conv = like("unary", made("ssm_conv", (channels, tokens, sequences), window, kernel))
    stride = 4 * (2 * key * key_heads + value * heads)
    q = view(conv, (key, key_heads, tokens, sequences), (4 * key, stride, stride * tokens))
    k = view(conv, (key, key_heads, tokens, sequences), (4 * key, stride, stride * tokens))
    v = view(conv, (value, heads, tokens, sequences), (4 * value, stride, stride * tokens))
    q, k = like("scale", b.rms(q)), like("scale", b.rms(k))
    if key_heads != heads and c.shape.architecture == "qwen3next":
        q, k = (
            _repeated(q, key, key_heads, heads, tokens, sequences),
            _repeated(k, key, key_heads, heads, tokens, sequences),
        )
    out = _delta_net(c, q, k, v, gate, beta, state, carried)
    z = reshape(z, value, heads, tokens, sequences)
    normed = like("mul", b.norm(out, c.weight("ssm_norm", number)), like("unary", z))
    y = b.linear(c, reshape(normed, value * heads, tokens, sequences), "ssm_out", number)
    return reshape(y, c.shape.embedding, tokens * sequences)


def _mixed(c: Context, number: int, x: Node, tokens: int, sequences: int) -> tuple[Node, Node]:
    mixed = b.linear(c, x, "attn_qkv", number)
    return reshape(mixed, mixed.ne[0], tokens, sequences), b.linear(c, x, "attn_gate", number)


def _beta_gate(
    c: Context, number: int, x: Node, heads: int, key_heads: int, tokens: int, sequences: int
) -> tuple[Node, Node]:
    if c.weight("ssm_ba", number) is None:
        return _plain_beta_gate(c, number, x, heads, tokens, sequences)
    both = b.linear(c, x, "ssm_ba", number)
    per = heads // key_heads
    split = reshape(both, 2 * per, key_heads, tokens, sequences)
    beta = like("unary", cont(view(split, (per, key_heads, tokens, sequences), split.nb[1:4])))
    alpha = cont(
        view(split, (per, key_heads, tokens, sequences), split.nb[1:4]), heads, tokens, sequences
    )
    bias, decay = c.weight("ssm_dt", number, "bias"), c.weight("ssm_a", number, "")
    if bias is None or decay is None:
        raise NoGraph("ssm_dt")
    gate = like("mul", like("unary", like("add", alpha, bias)), decay)
    return reshape(beta, 1, heads, tokens, sequences), reshape(gate, 1, heads, tokens, sequences)


def _plain_beta_gate(
    c: Context, number: int, x: Node, heads: int, tokens: int, sequences: int
) -> tuple[Node, Node]:
    beta = reshape(b.linear(c, x, "ssm_beta", number), 1, heads, tokens, sequences)
    beta = like("unary", beta)
    alpha = reshape(b.linear(c, x, "ssm_alpha", number), heads, tokens, sequences)
    bias, decay = c.weight("ssm_dt", number, "bias"), c.weight("ssm_a", number, "")
    if bias is None or decay is None:
        raise NoGraph("ssm_dt")
    gate = like("mul", like("unary", like("add", alpha, bias)), decay)
    return beta, reshape(gate, 1, heads, tokens, sequences)


def _window(
    c: Context, shifted: Node, mixed: Node, size: int, channels: int, sequences: int
) -> Node:
    conv = reshape(states(c, shifted), size - 1, channels, sequences)
    window = concat(conv, transpose(mixed), 0)
    last = view(window, (size - 1, channels, sequences), window.nb[1:3])
    c.expand(copy_into(last, view(shifted, ((size - 1) * channels, sequences), (shifted.nb[1],))))
    return window


def _repeated(x: Node, key: int, key_heads: int, heads: int, tokens: int, sequences: int) -> Node:
    times = heads // key_heads
    flat = reshape(x, key, 1, key_heads, tokens * sequences)
    return reshape(
        made("repeat", (key, times, key_heads, tokens * sequences), flat),
        key,
        heads,
        tokens,
        sequences,
    )


def _delta_net(
    c: Context, q: Node, k: Node, v: Node, gate: Node, beta: Node, state: Node, carried: Node
) -> Node:
    value, heads, tokens, sequences = v.ne
    rows = tokens * sequences + value * sequences
    found = made("gated_delta_net", (value * heads, rows), q, k, v, gate, beta, state)
    row = 4 * value * heads
    out = view(found, (value, heads, tokens, sequences), (4 * value, row, row * tokens))
    new = view(
        found,
        (value, value, heads, sequences),
        (4 * value, 4 * value * value, 4 * value * value * heads),
    )
    c.expand(copy_into(new, view(carried, (carried.ne[0], sequences), (carried.nb[1],))))
    return out
