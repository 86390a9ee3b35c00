"""How is a mixture of experts built: the router, the chosen experts' products and their sum?"""

from berth.estimator.graph.blocks import linear
from berth.estimator.graph.context import Context, NoGraph
from berth.estimator.graph.tensor import (
    Node,
    cont,
    get_rows,
    glu,
    like,
    made,
    mul_mat_id,
    reshape,
    set_rows,
    sum_rows,
    top_k,
    view,
)


def experts(
    c: Context, x: Node, block: int, *, norm_weights: bool = True, scale: float = 0.0, gating: str = "soft_max",
    logits: Node | None = None, act: str = "gated", probs_bias: bool = True,
) -> Node:  # fmt: skip
    """A mixture of experts. ``gating``: ``soft_max``, ``sigmoid``, ``weights`` (a soft max of the chosen)."""
    rows, width, used = x.ne[1], x.ne[0], c.shape.experts_used
    if logits is None:
        logits = linear(c, x, "ffn_gate_inp", block)
    count = logits.ne[0]
    probs = {
        "soft_max": lambda: like("soft_max", logits),
        "sigmoid": lambda: like("unary", logits),
    }.get(gating, lambda: logits)()
    chosen = _choose(c, probs, logits, block, count, rows, used, probs_bias=probs_bias)
    weights = get_rows(reshape(probs, 1, count, rows), chosen)
    if gating == "weights":
        weights = reshape(like("soft_max", reshape(weights, used, rows)), 1, used, rows)
    if norm_weights:
        flat = reshape(weights, used, rows)
        weights = reshape(like("div", flat, like("clamp", sum_rows(flat))), 1, used, rows)
    if scale not in {0.0, 1.0}:
        weights = like("scale", weights)
    c.expand(weights)
    cur = reshape(x, width, 1, rows)
    before = c.shape.architecture == "llama4"
    if before:
        cur = like("mul", made("repeat", (width, used, rows), cur), weights)
    found = _expert_products(c, cur, chosen, block, act)
    if not before:
        found = like("mul", found, weights)
    c.expand(found)
    return _join(c, found, width, rows, used)


def _choose(
    c: Context,
    probs: Node,
    logits: Node,
    block: int,
    count: int,
    rows: int,
    used: int,
    *,
    probs_bias: bool,
) -> Node:
    selection = probs
    bias = c.weight("exp_probs_b", block, "bias")
    if bias is not None and probs_bias:
        selection = like("add", probs, bias)
    if c.shape.architecture == "llama4":
        selection = logits
    groups = c.number("expert_group_count")
    if groups > 1:
        selection = _grouped(selection, count, groups, c.number("expert_group_used_count"), rows)
    return top_k(selection, used)


def _grouped(selection: Node, count: int, groups: int, used: int, rows: int) -> Node:
    """Experts outside the best groups masked out."""
    parts = reshape(selection, count // groups, groups, rows)
    best = top_k(parts, 2)
    scores = get_rows(reshape(parts, 1, *parts.ne[:3]), best)
    scores = sum_rows(reshape(scores, *scores.ne[1:]))
    scores = reshape(scores, scores.ne[1], scores.ne[2])
    chosen = top_k(scores, used)
    kept = get_rows(parts, chosen)
    return reshape(set_rows(like("fill", parts), kept, chosen), count, rows)


def _expert_products(c: Context, cur: Node, chosen: Node, block: int, act: str) -> Node:
    joined = c.weight("ffn_gate_up_exps", block)
    if joined is not None:
        both = _biased(c, mul_mat_id(joined, cur, chosen), "ffn_gate_up_exps", block, chosen)
        half = both.ne[0] // 2
        gate = view(both, (half, both.ne[1], both.ne[2]), both.nb[1:3])
        up = view(both, (half, both.ne[1], both.ne[2]), both.nb[1:3])
        cur = glu(gate, up)
    else:
        up = _expert(c, cur, "ffn_up_exps", block, chosen)
        if c.weight("ffn_gate_exps", block) is not None:
            cur = glu(_expert(c, cur, "ffn_gate_exps", block, chosen), up)
        else:
            cur = like("unary", up)
            cur = like("sqr", cur) if act == "relu_sqr" else cur
    return _expert(c, cur, "ffn_down_exps", block, chosen)


def _expert(c: Context, x: Node, stem: str, block: int, chosen: Node) -> Node:
    weight = c.weight(stem, block)
    if weight is None:
        raise NoGraph(stem)
    return _biased(c, mul_mat_id(weight, x, chosen), stem, block, chosen)


def _biased(c: Context, x: Node, stem: str, block: int, chosen: Node) -> Node:
    bias = c.weight(stem, block, "bias")
    return like("add_id", x, bias, chosen) if bias is not None else x


def _join(c: Context, found: Node, width: int, rows: int, used: int) -> Node:
    views = [view(found, (width, rows), (found.nb[2],)) for _ in range(used)]
    c.expand_all(views)
    total = views[0]
    for one in views[1:]:
        total = like("add", total, one)
        c.expand(total)
    return cont(total) if used == 1 else total
