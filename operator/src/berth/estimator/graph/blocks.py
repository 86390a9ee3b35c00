"""How are the parts of a layer built that most architectures share?

Each function follows the one of the same purpose in llama-graph.cpp, order included: the order decides
which tensors live at once.
"""

from berth.estimator.graph.context import Context, NoGraph
from berth.estimator.graph.tensor import (
    Node,
    cast,
    cont,
    get_rows,
    glu,
    like,
    made,
    mul_mat,
    permute,
    reshape,
    row_size,
    set_rows,
    transpose,
    view,
)
from berth.estimator.shape import Layer


def rms(x: Node) -> Node:
    """A root-mean-square norm without weight."""
    return like("rms_norm", x)


def norm(x: Node, weight: Node | None, bias: Node | None = None, *, kind: str = "rms_norm") -> Node:
    """A norm with its weight and bias, where there are any; it is held to the device of its block."""
    x = like(kind, x)
    if weight is not None:
        x.pin = -1 if weight.name in UNPINNED else weight.block
        x = like("mul", x, weight)
    return like("add", x, bias) if bias is not None else x


UNPINNED = frozenset({"blk.{}.post_ffw_norm.weight"})
"""Norms that the engine leaves to the scheduler although they belong to a block."""


def linear(c: Context, x: Node, stem: str, block: int) -> Node:
    """A matrix product with its bias, where there is one. Raises NoGraph where the file has no such matrix."""
    weight = c.weight(stem, block)
    if weight is None:
        raise NoGraph(stem)
    x = mul_mat(weight, x)
    scale = c.weight(stem, block, "scale")
    x = like("mul", x, scale) if scale is not None else x
    bias = c.weight(stem, block, "bias")
    return like("add", x, bias) if bias is not None else x


def embed(c: Context, *, scaled: bool = False) -> Node:
    """The batch's embeddings: of tokens, with the embedding input and the mixture of both beside them."""
    rows, width = c.batch.rows, c.shape.embedding
    wide = width * (1 + max(c.number("n_deepstack_layers"), 0))
    table = c.weight("token_embd")
    if table is None:
        raise NoGraph("token_embd")
    x = _looked_up(table, c.input("tokens", "I32", rows), wide)
    c.expand(x)
    c.expand(c.input("embd", "F32", wide, rows))
    if c.shape.architecture not in UNMIXED:
        ids, slots = c.input("mixed_tokens", "I32", rows), c.input("mixed_slots", "I64", rows)
        other = c.input("mixed_embd", "F32", wide, rows)
        c.expand(set_rows(like("dup", other), _looked_up(table, ids, wide), slots))
    if wide != width:
        c.held["stacked", -1] = x
        x = view(x, (width, rows), (x.nb[1],))
    if c.real("embedding_scale"):
        x = like("scale", x if x.contiguous else cont(x))
    if scaled:
        x = like("mul", x, c.input("scale_rows", "F32", 1, rows))
    c.expand(x)
    return x


def _looked_up(table: Node, ids: Node, wide: int) -> Node:
    x = get_rows(table, ids)
    # The engine copies rows before it widens them: so its buffers say, in 16 settings of build 11669.
    return made("pad", (wide, x.ne[1]), cont(x)) if wide != x.ne[0] else x


UNMIXED = frozenset(
    {"cogvlm", "deepseek4", "granite-switch", "eagle3", "dflash", "gemma4-assistant"}
)
"""Architectures whose batches may not mix tokens and embeddings; all others have a third branch for it."""


def positions(c: Context) -> Node:
    """The rows' positions."""
    return c.input("positions", "I32", c.batch.rows * (4 if c.shape.architecture in MROPE else 1))


MROPE = frozenset(
    {"qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "hunyuan_vl", "paddleocr"}
)
"""Architectures with four positions a token; glm4 and glm4moe have them where the header has sections."""


def rope(c: Context, x: Node, factors: Node | None = None) -> Node:
    """A rotation by position."""
    return like("rope", x, positions(c), factors)


def mask(c: Context, *, window: bool) -> Node:
    """The attention mask of the full or of the sliding layers."""
    kind = "F16" if c.flash else "F32"
    if c.shape.encoder:
        return c.input(f"mask {window}", kind, c.batch.rows, c.batch.rows)
    cells = c.sizes.window_cells if window else c.sizes.cells
    streams = c.sizes.streams
    return c.input(f"mask {window}", kind, cells, c.batch.rows // streams, 1, streams)


def indices(c: Context, what: str, *, window: bool) -> Node:
    """Where the batch's keys or values go in the cache."""
    each = c.shape.widest_value if what == "v" and c.sizes.turned else 1
    return c.input(f"{what} indices {window}", "I64", c.batch.rows * each)


def rotation(c: Context, what: str, *, window: bool) -> Node | None:
    """The rotation that a quantised cache is stored under; None where the cache is not, or widths differ."""
    kind = c.settings.cache_type_k if what == "k" else c.settings.cache_type_v
    if kind.upper() in {"F32", "F16", "BF16"}:
        return None
    kept = [layer for layer in c.shape.layers if layer.keeps and layer.window == window]
    widths = {layer.key if what == "k" else layer.value for layer in kept}
    first = c.shape.layers[0].key if what == "k" else c.shape.layers[0].value
    if len(widths) != 1 or first % 64:
        return None
    width, size = widths.pop(), 64
    while what == "k" and width % (2 * size) == 0:
        size *= 2
    return c.input(f"{what} rotation {window}", "F32", size, size)


def rotated(x: Node, rotation: Node) -> Node:
    """Rows turned by a rotation."""
    size = rotation.ne[0]
    flat = (size, x.elements // size)
    turned = mul_mat(rotation, reshape(x, *flat) if x.contiguous else cont(x, *flat))
    return reshape(turned, *x.ne)


def heads(c: Context, x: Node, layer: Layer, *, clamp: bool = False) -> tuple[Node, Node, Node]:
    """Queries, keys and values of a layer, by head."""
    block, rows = layer.number, c.batch.rows
    if c.weight("attn_qkv", block) is not None:
        return _fused(c, x, layer)
    found = [linear(c, x, f"attn_{name}", block) for name in "qkv"]
    if c.real("attention.clamp_kqv"):
        found = [like("clamp", one) for one in found]
    q = reshape(found[0], layer.key, layer.heads, rows)
    k = reshape(found[1], layer.key, layer.kv_heads, rows)
    return q, k, reshape(found[2], layer.value, layer.kv_heads, rows)


def _fused(c: Context, x: Node, layer: Layer) -> tuple[Node, Node, Node]:
    qkv = linear(c, x, "attn_qkv", layer.number)
    if c.real("attention.clamp_kqv"):
        qkv = like("clamp", qkv)
    stride, rows = qkv.nb[1], c.batch.rows
    parts = ((layer.key, layer.heads), (layer.key, layer.kv_heads), (layer.value, layer.kv_heads))
    q, k, v = (view(qkv, (width, count, rows), (4 * width, stride)) for width, count in parts)
    return q, k, v


def attend(
    c: Context, layer: Layer, q: Node, k: Node | None, v: Node | None, *, sinks: Node | None = None,
    bias: Node | None = None, wo: str = "attn_output",
) -> Node:  # fmt: skip
    """Attention of a layer with its cache, and the output product."""
    if not c.shape.encoder:
        return _attend_cached(c, layer, q, k, v, sinks, bias, wo)
    assert k is not None
    assert v is not None
    c.expand_all((q, k, v))
    x = mha(c, layer, q, k, v, mask(c, window=layer.window), sinks=sinks, bias=bias)
    return linear(c, x, wo, layer.number) if wo else x


def _attend_cached(
    c: Context,
    layer: Layer,
    q: Node,
    k: Node | None,
    v: Node | None,
    sinks: Node | None,
    bias: Node | None,
    wo: str,
) -> Node:
    turn_k, turn_v = rotation(c, "k", window=layer.window), rotation(c, "v", window=layer.window)
    if turn_k is not None:
        q = rotated(q, turn_k)
        k = rotated(k, turn_k) if k is not None else None
    if turn_v is not None:
        v = rotated(v, turn_v) if v is not None else None
    order = (q, k, v) if c.shape.slides else (q, v, k)
    c.expand_all(one for one in order if one is not None)
    if k is not None:
        c.expand(store_keys(c, layer, k))
    if v is not None:
        c.expand(_store_values(c, layer, v))
    x = mha(
        c, layer, q, *read_cache(c, layer), mask(c, window=layer.window), sinks=sinks, bias=bias
    )
    if turn_v is not None:
        x = rotated(x, turn_v)
    return linear(c, x, wo, layer.number) if wo else x


def store_keys(c: Context, layer: Layer, k: Node) -> Node:
    """The batch's keys written into the cache."""
    target = c.cache(layer, "k")
    rows = view(k, (k.ne[0] * k.ne[1], k.ne[2]), (k.nb[2],))
    if target.ne[2] > 1:
        target = reshape(target, target.ne[0], target.ne[1] * target.ne[2])
    return set_rows(target, rows, indices(c, "k", window=layer.window))


def _store_values(c: Context, layer: Layer, v: Node) -> Node:
    target, ids = c.cache(layer, "v"), indices(c, "v", window=layer.window)
    width, rows = v.ne[0] * v.ne[1], v.ne[2]
    if not c.sizes.turned:
        part = view(v, (width, rows), (v.nb[2],))
        if target.ne[2] > 1:
            target = reshape(target, target.ne[0], target.ne[1] * target.ne[2])
        return set_rows(target, part, ids)
    part = reshape(v, width, rows) if 4 * width == v.nb[2] else cont(v, width, rows)
    if width < target.ne[0]:
        part = made("pad", (target.ne[0], rows), part)
    return set_rows(reshape(target, 1, target.elements), reshape(part, 1, part.elements), ids)


def read_cache(c: Context, layer: Layer) -> tuple[Node, Node]:
    """A layer's cached keys and values by head; a layer that owns none reads an earlier one's."""
    owner = layer if layer.keeps else c.shape.lender(layer)
    keys, values = c.cache(owner, "k"), c.cache(owner, "v")
    cells, streams = keys.ne[1], keys.ne[2]
    row = row_size(keys.kind, keys.ne[0])
    k = view(
        keys,
        (owner.key, owner.kv_heads, cells, streams),
        (row_size(keys.kind, owner.key), row, row * cells),
    )
    row = row_size(values.kind, values.ne[0])
    if not c.sizes.turned:
        nb = (row_size(values.kind, owner.value), row, row * cells)
        return k, view(values, (owner.value, owner.kv_heads, cells, streams), nb)
    cell = row_size(values.kind, cells)
    nb = (cell * owner.value, cell, cell * values.ne[0])
    return k, view(values, (cells, owner.kv_heads, owner.value, streams), nb)


def mha(
    c: Context, layer: Layer, q: Node, k: Node, v: Node, mask: Node, *, sinks: Node | None = None, bias: Node | None = None,
    v_mla: Node | None = None,
) -> Node:  # fmt: skip
    """Attention itself: rows of all heads joined."""
    turned = v.nb[1] > v.nb[2]
    streams = k.ne[3]
    per = q.ne[2] // streams
    q = view(q, (q.ne[0], q.ne[1], per, streams), (q.nb[1], q.nb[2], q.nb[2] * per))
    q, k, v = (permute(one, 0, 2, 1, 3) for one in (q, k, v))
    fused = c.flash and bias is None
    x = (
        _flash(c, layer, q, k, v, mask, sinks, v_mla, turned=turned)
        if fused
        else _plain(c, q, k, v, mask, sinks, bias, v_mla, turned)
    )
    c.expand(x)
    return x


def _flash(
    c: Context,
    layer: Layer,
    q: Node,
    k: Node,
    v: Node,
    mask: Node,
    sinks: Node | None,
    v_mla: Node | None,
    *,
    turned: bool,
) -> Node:
    v = transpose(v) if turned else v
    k = cast(k, "F16") if k.kind == "F32" else k
    v = cast(v, "F16") if v.kind == "F32" else v
    operands = [q, k, v, mask, *([sinks] if sinks is not None else [])]
    x = made("flash_attn", (v.ne[0], q.ne[2], q.ne[1], q.ne[3]), *operands)
    c.fused.append((layer.number, x))
    if v_mla is not None:
        x = mul_mat(v_mla, permute(x, 0, 2, 1, 3))
        x = cont(permute(x, 0, 2, 1, 3))
    return reshape(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])


def _plain(
    c: Context, q: Node, k: Node, v: Node, mask: Node, sinks: Node | None, bias: Node | None, v_mla: Node | None,
    turned: bool,
) -> Node:  # fmt: skip
    scores = mul_mat(k, q)
    if c.shape.architecture == "grok":
        scores = like("scale", like("unary", like("scale", scores)))
    if c.shape.architecture in CAPPED:
        scores = like("scale", like("unary", like("scale", scores)))
    if bias is not None:
        scores = like("add", scores, bias)
    scores = like("soft_max", scores, mask, sinks)
    v = v if turned else cont(transpose(v))
    x = mul_mat(v, scores)
    if v_mla is not None:
        x = mul_mat(v_mla, x)
    x = permute(x, 0, 2, 1, 3)
    x = cont(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])
    if not c.settings.kv_offload:
        c.force_host(x)
    return x


CAPPED = frozenset({"gemma2"})
"""Architectures whose attention scores are capped."""


def feed_forward(
    c: Context, x: Node, block: int, *, up: str = "ffn_up", gate: str = "ffn_gate", down: str = "ffn_down",
    act: str = "gated",
) -> Node:  # fmt: skip
    """A feed-forward part. ``act``: ``gated`` (one fused step), ``halves`` (gate and up in one matrix),
    ``relu_sqr``, ``plain``, or ``ungated`` where a gate is there but multiplied after the activation.
    """
    raised = linear(c, x, up, block) if c.weight(up, block) is not None else x
    gated = c.weight(gate, block) is not None
    cur = linear(c, x, gate, block) if gated else raised
    if gated and act != "ungated":
        cur = glu(cur, raised)
    elif act == "halves":
        cur = glu(cur)
    elif act == "relu_sqr":
        cur = like("sqr", like("unary", cur))
    else:
        cur = like("unary", cur)
        cur = like("mul", cur, raised) if gated else cur
    return linear(c, cur, down, block)


def last_rows(c: Context, *nodes: Node) -> list[Node]:
    """Only the rows whose logits are wanted."""
    ids = c.input("outputs", "I32", c.batch.outputs)
    return [get_rows(node, ids) for node in nodes]


def logits(c: Context, x: Node, *, cap: bool = False, scale: bool = False) -> None:
    """The last product, and the end of the graph."""
    weight = c.output()
    if weight is None:
        raise NoGraph("output")
    x = mul_mat(weight, x)
    bias = c.weight("output", -1, "bias")
    x = like("add", x, bias) if bias is not None else x
    if scale:
        x = like("scale", x)
    if cap:
        x = like("scale", like("unary", like("scale", x)))
    c.expand(x)
    x.is_output = True
