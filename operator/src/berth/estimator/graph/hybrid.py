"""How are the graphs built of Mamba models and of hybrids: Jamba, Granite, LFM2, Falcon-H1, Nemotron-H?"""

from collections.abc import Callable

from berth.estimator.graph import blocks as b
from berth.estimator.graph.context import Context, NoGraph
from berth.estimator.graph.decoder import Habit, attention, feed, finish, mixture_or_dense
from berth.estimator.graph.recurrent import mamba1, mamba2, states
from berth.estimator.graph.tensor import (
    Node,
    concat,
    copy_into,
    like,
    made,
    reshape,
    transpose,
    view,
)
from berth.estimator.shape import Layer

SCAN = Callable[[Node, Node], Node]


def mamba(c: Context) -> None:
    """Mamba and Mamba-2: nothing but such blocks."""
    block = mamba2 if c.shape.architecture == "mamba2" else mamba1
    x = b.embed(c)
    last = c.shape.layers[-1].number
    for layer in c.blocks():
        cur = block(c, layer, b.norm(x, c.weight("attn_norm", layer.number)))
        if layer.number == last:
            cur, x = b.last_rows(c, cur, x)
        x = like("add", cur, x)
    finish(c, Habit(), x)


def jamba(c: Context) -> None:
    """Jamba: Mamba blocks, a few that attend (without rotation), experts in every other one."""
    habit = Habit(rope=False, residual_first=True, ffn_residual_first=True, norm_weights=False)
    _hybrid(c, habit, mamba1, residual_first=True)


def granite_hybrid(c: Context) -> None:
    """Granite hybrid: Mamba-2 blocks and a few that attend."""
    rope = c.facts.hparams.get("rope.scaling.finetuned", True) is not False
    _hybrid(c, Habit(rope=rope, scale_logits=True), mamba2, residual_first=False)


def _hybrid(
    c: Context, habit: Habit, block: Callable[[Context, Layer, Node], Node], *, residual_first: bool
) -> None:
    x = b.embed(c)
    last = c.shape.layers[-1].number
    for layer in c.blocks():
        number, residual = layer.number, x
        normed = b.norm(x, c.weight("attn_norm", number))
        cur = block(c, layer, normed) if layer.recurrent else attention(c, habit, layer, normed)
        if number == last:
            cur, residual = b.last_rows(c, cur, residual)
        cur = like("scale", cur) if c.real("residual_scale") else cur
        middle = like("add", residual, cur) if residual_first else like("add", cur, residual)
        x = feed(c, habit, number, middle)
    finish(c, habit, x)


def lfm2(c: Context) -> None:
    """LFM2: short convolutions and a few blocks that attend."""
    habit = Habit(ffn_residual_first=True, residual_first=True)
    x = b.embed(c)
    last = c.shape.layers[-1].number
    for layer in c.blocks():
        number, residual = layer.number, x
        normed = b.norm(x, c.weight("attn_norm", number))
        cur = (
            _short_conv(c, layer, normed) if layer.recurrent else attention(c, habit, layer, normed)
        )
        if number == last:
            cur, residual = b.last_rows(c, cur, residual)
        middle = like("add", residual, cur)
        x = feed(c, habit, number, middle)
    finish(c, habit, x)


def _short_conv(c: Context, layer: Layer, x: Node) -> Node:
    number, sequences, width = layer.number, c.batch.sequences, c.shape.embedding
    tokens, kernel = c.batch.rows // sequences, c.positive("shortconv.l_cache") - 1
    x = reshape(x, x.ne[0], tokens, sequences)
    both = b.linear(c, x, "shortconv.in_proj", number)
    part = both.ne[0] // 3
    gate, out_gate, value = (
        view(both, (part, both.ne[1], both.ne[2]), both.nb[1:3]) for _ in range(3)
    )
    gated = transpose(like("mul", gate, value))
    stored = c.state(layer, "r")
    conv = reshape(states(c, stored), kernel, width, sequences)
    window = concat(conv, gated, 0)
    last = view(window, (kernel, window.ne[1], window.ne[2]), window.nb[1:3])
    c.expand(copy_into(last, view(stored, (kernel * width, sequences), (stored.nb[1],))))
    weight = c.weight("shortconv.conv", number)
    if weight is None:
        raise NoGraph("shortconv.conv")
    y = like("mul", out_gate, made("ssm_conv", (width, tokens, sequences), window, weight))
    y = b.linear(c, y, "shortconv.out_proj", number)
    return reshape(y, y.ne[0], tokens * sequences)


def falcon_h1(c: Context) -> None:
    """Falcon-H1: every block attends and has a Mamba-2 part, side by side."""
    x = b.embed(c)
    last = c.shape.layers[-1].number
    for layer in c.blocks():
        number = layer.number
        attended = attention(c, Habit(), layer, b.norm(x, c.weight("attn_norm", number)))
        carried = mamba2(c, layer, b.norm(x, c.weight("attn_norm", number)))
        both = like("add", attended, carried)
        middle = like("add", both, x)
        if number == last:
            _, middle = b.last_rows(c, both, middle)
        x = feed(c, Habit(), number, middle)
    finish(c, Habit(), x)


def nemotron_h(c: Context) -> None:
    """Nemotron-H: blocks that are one of Mamba-2, attention without rotation, or feed-forward."""
    habit = Habit(
        rope=False,
        last_inside=False,
        keep_hidden=True,
        act="relu_sqr",
        gating="sigmoid",
        norm_weights_key=True,
    )
    x = b.embed(c)
    for layer in c.blocks():
        number = layer.number
        normed = b.norm(x, c.weight("attn_norm", number))
        if layer.recurrent:
            cur = mamba2(c, layer, normed)
        elif layer.attends:
            cur = attention(c, habit, layer, normed)
        else:
            cur = mixture_or_dense(c, habit, number, normed)
        x = like("add", cur, x)
    finish(c, habit, x)


BUILDERS: dict[str, Callable[[Context], None]] = {
    "mamba": mamba,
    "mamba2": mamba,
    "jamba": jamba,
    "granitehybrid": granite_hybrid,
    "lfm2": lfm2,
    "lfm2moe": lfm2,
    "falcon-h1": falcon_h1,
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": nemotron_h,
}
