"""How is the graph of a plain transformer built, whatever its family's habits?

Most architectures differ in a few habits only: where the norms are, what is scaled, which operand of a sum
comes first. A `Habit` says them; what a block has is read from its tensors.
"""

from dataclasses import dataclass

from berth.estimator.graph import blocks as b
from berth.estimator.graph.context import Context, NoGraph
from berth.estimator.graph.experts import experts
from berth.estimator.graph.pooling import pool
from berth.estimator.graph.tensor import Node, like, mul_mat, reshape, view
from berth.estimator.shape import Layer


@dataclass(frozen=True, slots=True)
class Habit:
    """How one family builds a block; the defaults are llama's."""

    norm: str = "rms_norm"
    embed_scale: str = ""
    """``rows``: by an input, as gemma3; ``all``: by a constant, as gemma2."""
    rope: bool = True
    scale_queries: bool = False
    qk_norm: str = "before"
    """Where queries and keys are normed, if they are: ``before`` or ``after`` the rotation."""
    post_norms: bool = False
    """Norms of what attention and feed-forward give, before they are added."""
    post_is_ffn_norm: bool = False
    """The tensor ``post_attention_norm`` is the feed-forward's own norm."""
    pre_norms: bool = True
    """Norms of what attention and feed-forward read."""
    parallel: str = ""
    """Attention and feed-forward read the same norm: ``input`` adds the input first, ``attention`` adds it last."""
    act: str = "gated"
    residual_first: bool = False
    """The sum after attention names the residual first."""
    ffn_residual_first: bool = False
    norm_weights: bool = True
    gating: str = "soft_max"
    last_inside: bool = True
    """Rows without wanted logits are dropped in the last block, not behind it."""
    last_before_norm: bool = False
    """Behind the last block: rows are dropped before the last norm, not behind it."""
    cap_logits: bool = False
    scale_logits: bool = False
    sinks: bool = False
    expert_scale: bool = True
    weightless_kq_norm: bool = False
    gate_shared: bool = False
    """Shared experts are weighed by a gate of their own."""
    keep_hidden: bool = False
    """The last block's result is an output too."""
    rope_when_sliding: bool = False
    """Only sliding blocks rotate, in models that have any."""
    rope_step: int = 0
    """Every so many blocks one does not rotate; its queries are scaled by an input instead."""
    norm_weights_key: bool = False
    """Whether the experts' weights are normed is said by the header."""


HABITS: dict[str, Habit] = {
    "llama": Habit(),
    "deci": Habit(),
    "mistral3": Habit(),
    "qwen2": Habit(),
    "qwen2vl": Habit(),
    "qwen3": Habit(),
    "qwen3vl": Habit(),
    "qwen3moe": Habit(),
    "qwen3vlmoe": Habit(),
    "qwen2moe": Habit(norm_weights=False, gate_shared=True),
    "olmoe": Habit(norm_weights=False),
    "internlm2": Habit(),
    "orion": Habit(norm="norm"),
    "starcoder2": Habit(norm="norm", act="plain"),
    "stablelm": Habit(norm="norm"),
    "granite": Habit(scale_logits=True),
    "granitemoe": Habit(scale_logits=True),
    "minicpm": Habit(scale_logits=True),
    "arcee": Habit(act="relu_sqr"),
    "smollm3": Habit(),
    "ernie4_5": Habit(),
    "hunyuan-dense": Habit(qk_norm="after"),
    "hunyuan-moe": Habit(qk_norm="after"),
    "seed_oss": Habit(post_is_ffn_norm=True),
    "gemma": Habit(embed_scale="all", scale_queries=True, ffn_residual_first=False),
    "gemma2": Habit(embed_scale="all", scale_queries=True, post_norms=True, cap_logits=True),
    "gemma3": Habit(embed_scale="rows", scale_queries=True, post_norms=True),
    "phi3": Habit(scale_queries=True, act="halves", ffn_residual_first=True),
    "phimoe": Habit(norm="norm", scale_queries=True, act="halves", ffn_residual_first=True),
    "olmo2": Habit(pre_norms=False, post_norms=True),
    "exaone4": Habit(pre_norms=False, post_norms=True, rope_when_sliding=True),
    "glm4moe": Habit(post_is_ffn_norm=True, keep_hidden=True, norm_weights_key=True),
    "llama4": Habit(norm_weights=False, gating="sigmoid", rope_step=4),
    "cohere2": Habit(norm="norm", parallel="input", rope_when_sliding=True, scale_logits=True),
    "command-r": Habit(norm="norm", parallel="input", scale_logits=True),
    "phi2": Habit(norm="norm", parallel="attention", scale_queries=True, act="plain"),
    "gpt-oss": Habit(
        post_is_ffn_norm=True, norm_weights=False, gating="weights", last_inside=False, last_before_norm=True,
        sinks=True, keep_hidden=True,
    ),
}  # fmt: skip


def build(c: Context, habit: Habit) -> None:
    """The whole graph."""
    x = b.embed(c, scaled=habit.embed_scale == "rows")
    if habit.embed_scale == "all":
        x = like("scale", x)
    last = c.shape.layers[-1].number
    for layer in c.blocks():
        x = _block(c, habit, layer, x, last=layer.number == last)
        if layer.number < c.number("n_deepstack_layers"):
            x = _deepened(c, x)
    finish(c, habit, x)


def _deepened(c: Context, x: Node) -> Node:
    """An image's further embeddings, which the first blocks of some models add."""
    stacked = c.held.get(("stacked", -1))
    if stacked is None:
        return x
    return like("add", x, view(stacked, (c.shape.embedding, x.ne[1]), (stacked.nb[1],)))


def finish(c: Context, habit: Habit, x: Node) -> None:
    """The last norm, the rows wanted and the logits."""
    if habit.keep_hidden and habit.last_before_norm:
        x.is_output = True
    if not habit.last_inside and habit.last_before_norm:
        (x,) = b.last_rows(c, x)
    x = b.norm(x, c.output_norm(), c.weight("output_norm", -1, "bias"), kind=habit.norm)
    if habit.keep_hidden and not habit.last_before_norm:
        x.is_output = True
    if not habit.last_inside and not habit.last_before_norm:
        (x,) = b.last_rows(c, x)
    x.is_output = True
    cap = habit.cap_logits or bool(c.real("final_logit_softcapping"))
    b.logits(c, x, cap=cap, scale=habit.scale_logits and bool(c.real("logit_scale")))
    pool(c, x)


def _block(c: Context, habit: Habit, layer: Layer, x: Node, *, last: bool) -> Node:
    number, residual = layer.number, x
    if not layer.attends:
        raise NoGraph(f"block {number} does not attend")
    normed = x
    if habit.pre_norms:
        weight, bias = c.weight("attn_norm", number), c.weight("attn_norm", number, "bias")
        normed = b.norm(x, weight, bias, kind=habit.norm)
    cur = attention(c, habit, layer, normed)
    if habit.parallel:
        return _parallel(c, habit, number, cur, x, normed, last=last)
    if last and habit.last_inside:
        cur, residual = b.last_rows(c, cur, residual)
    if habit.post_norms:
        cur = b.norm(cur, c.weight("post_attention_norm", number), kind=habit.norm)
    cur = _scaled_residual(c, cur)
    middle = like("add", residual, cur) if habit.residual_first else like("add", cur, residual)
    return feed(c, habit, number, middle)


def _parallel(
    c: Context, habit: Habit, number: int, attended: Node, x: Node, normed: Node, *, last: bool
) -> Node:
    if last:
        attended, x, normed = b.last_rows(c, attended, x, normed)
    fed = b.feed_forward(c, normed, number, act=habit.act)
    if habit.parallel == "input":
        return like("add", like("add", fed, x), attended)
    return like("add", like("add", attended, fed), x)


def feed(c: Context, habit: Habit, number: int, middle: Node) -> Node:
    """The feed-forward half of a block, with its residual."""
    name = "post_attention_norm" if habit.post_is_ffn_norm else "ffn_norm"
    normed = b.norm(middle, c.weight(name, number), c.weight(name, number, "bias"), kind=habit.norm)
    cur = mixture_or_dense(c, habit, number, normed)
    if habit.post_norms:
        cur = b.norm(cur, c.weight("post_ffw_norm", number), kind=habit.norm)
    cur = _scaled_residual(c, cur)
    return like("add", middle, cur) if habit.ffn_residual_first else like("add", cur, middle)


def _scaled_residual(c: Context, cur: Node) -> Node:
    return like("scale", cur) if c.real("residual_scale") else cur


def mixture_or_dense(c: Context, habit: Habit, number: int, normed: Node) -> Node:
    """Experts (and shared ones beside them) where the block has a router, else one feed-forward."""
    if c.weight("ffn_gate_inp", number) is None:
        return b.feed_forward(c, normed, number, act=habit.act)
    gating = {2: "sigmoid"}.get(c.number("expert_gating_func"), habit.gating)
    scale = c.real("expert_weights_scale") if habit.expert_scale else 0.0
    cur = experts(c, normed, number, norm_weights=habit.norm_weights, scale=scale, gating=gating)
    if c.weight("ffn_up_shexp", number) is None:
        return cur
    shared = b.feed_forward(
        c, normed, number, up="ffn_up_shexp", gate="ffn_gate_shexp", down="ffn_down_shexp"
    )
    gate = c.weight("ffn_gate_inp_shexp", number)
    if gate is not None:
        shared = like("mul", shared, like("unary", mul_mat(gate, normed)))
    return like("add", cur, shared)


def attention(c: Context, habit: Habit, layer: Layer, normed: Node) -> Node:
    """Attention of one block, from its norm to the output product."""
    number = layer.number
    q, k, v = b.heads(c, normed, layer)
    factors = rope_factors(c, number)
    if habit.qk_norm == "before":
        q, k = _qk_norm(c, number, q, k, habit)
    if _rotates(c, habit, layer):
        q, k = b.rope(c, q, factors), b.rope(c, k, factors)
    elif habit.rope_step:
        q = like("mul", q, c.input("attention scale", "F32", 1, 1, c.batch.rows))
    if habit.qk_norm == "after":
        q, k = _qk_norm(c, number, q, k, habit)
    if habit.scale_queries:
        q = like("scale", q)
    sinks = c.weight("attn_sinks", number) if habit.sinks else None
    return b.attend(c, layer, q, k, v, sinks=sinks)


def _rotates(c: Context, habit: Habit, layer: Layer) -> bool:
    if habit.rope_step and c.shape.slides:
        return (layer.number + 1) % habit.rope_step != 0
    if habit.rope_when_sliding and c.shape.slides:
        return layer.window
    return habit.rope


ROPE_TABLES = ("rope_freqs", "rope_factors_long", "rope_factors_short")


def rope_factors(c: Context, number: int) -> Node | None:
    """The rotation table that a block uses: one for each device, shared by all of its blocks."""
    stem = next((name for name in ROPE_TABLES if c.weight(name) is not None), None)
    if stem is None:
        return None
    owner = c.placing.blocks[number]
    key = (f"{stem} on {owner}", -1)
    if key not in c.held:
        found = c.weight(stem)
        assert found is not None
        c.held[key] = c.stored(found.kind, found.ne, owner, weight=True)
    return c.held[key]


def _qk_norm(c: Context, number: int, q: Node, k: Node, habit: Habit) -> tuple[Node, Node]:
    found = []
    for name, one in (("attn_q_norm", q), ("attn_k_norm", k)):
        weight = c.weight(name, number)
        if weight is None:
            found.append(one)
        elif weight.ne[0] == one.ne[0] * one.ne[1] and one.ne[1] > 1:
            flat = b.norm(reshape(one, one.ne[0] * one.ne[1], one.ne[2]), weight, kind=habit.norm)
            found.append(reshape(flat, *one.ne))
        else:
            found.append(b.norm(one, weight, kind=habit.norm))
    return found[0], found[1]
