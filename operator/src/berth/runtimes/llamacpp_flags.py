"""Which llama-server flag is which setting? The one table, read both ways.

Flags are those of llama-server builds 11434 to 11669 (``llama-server --help``). The first name is the one that
Berth writes; all are understood in a command line that somebody pastes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from berth.estimator import AUTO, Settings


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting's flags. ``off`` are the names that turn a switch off; ``always`` is whether Berth writes it."""

    field: str
    on: tuple[str, ...]
    read: Callable[[str], Any] | None
    off: tuple[str, ...] = ()
    always: bool = True
    repeats: bool = False

    @property
    def takes_value(self) -> bool:
        """Whether a word follows."""
        return self.read is not None


def _layers(text: str) -> int:
    return AUTO if text in {"auto", "all"} else int(text)


def _switch(text: str) -> str:
    words = {
        "1": "on",
        "true": "on",
        "enabled": "on",
        "0": "off",
        "false": "off",
        "disabled": "off",
        "-1": "auto",
    }
    found = words.get(text, text)
    if found not in {"on", "off", "auto"}:
        raise ValueError(f"flash attention is on, off or auto, not {text!r}")
    return found


def _kind(text: str) -> str:
    return text.lower()


def _split(text: str) -> str:
    if text not in {"none", "layer", "row", "tensor"}:
        raise ValueError(f"a split is none, layer, row or tensor, not {text!r}")
    return text


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.replace("/", ",").split(",") if part)


def _words(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part and part != "none")


FLAGS: tuple[Flag, ...] = (
    Flag("context", ("-c", "--ctx-size"), int),
    Flag("parallel", ("-np", "--parallel"), int),
    Flag("kv_unified", ("-kvu", "--kv-unified"), None, off=("--no-kv-unified", "-no-kvu")),
    Flag("kv_unified_per_slot", ("--kv-unified-per-slot",), int, always=False),
    Flag("batch", ("-b", "--batch-size"), int),
    Flag("ubatch", ("-ub", "--ubatch-size"), int),
    Flag("cache_type_k", ("-ctk", "--cache-type-k"), _kind),
    Flag("cache_type_v", ("-ctv", "--cache-type-v"), _kind),
    Flag("flash_attn", ("-fa", "--flash-attn"), _switch),
    Flag("swa_full", ("--swa-full",), None, always=False),
    Flag(
        "embeddings", ("--embeddings", "--embedding", "--rerank", "--reranking"), None, always=False
    ),
    Flag("pooling", ("--pooling",), str, always=False),
    Flag("n_gpu_layers", ("-ngl", "--n-gpu-layers", "--gpu-layers"), _layers),
    Flag("cpu_moe", ("-cmoe", "--cpu-moe"), None, always=False),
    Flag("n_cpu_moe", ("-ncmoe", "--n-cpu-moe"), int, always=False),
    Flag("n_cpu_ffn", ("-ncffn", "--n-cpu-ffn"), int, always=False),
    Flag("moe_cache_mib", ("--moe-cache-mib",), int, always=False),
    Flag("override_tensor", ("-ot", "--override-tensor"), _words, always=False, repeats=True),
    Flag("split_mode", ("-sm", "--split-mode"), _split, always=False),
    Flag("tensor_split", ("-ts", "--tensor-split"), _shares, always=False),
    Flag("main_gpu", ("-mg", "--main-gpu"), int, always=False),
    Flag("kv_offload", ("-kvo", "--kv-offload"), None, off=("--no-kv-offload", "-nkvo")),
    Flag("op_offload", ("--op-offload",), None, off=("--no-op-offload",)),
    Flag("repack", ("--repack",), None, off=("--no-repack", "-nr")),
    Flag("no_host", ("--no-host",), None, always=False),
    Flag("load_mode", ("-lm", "--load-mode"), str, always=False),
    Flag("cache_ram_mib", ("-cram", "--cache-ram"), int),
    Flag("ctx_checkpoints", ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"), int),
    Flag("threads", ("-t", "--threads"), int, always=False),
    Flag("mmproj_offload", ("--mmproj-offload",), None, off=("--no-mmproj-offload",), always=False),
    Flag(
        "cache_type_k_draft",
        ("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"),
        _kind,
        always=False,
    ),
    Flag(
        "cache_type_v_draft",
        ("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"),
        _kind,
        always=False,
    ),
    Flag(
        "n_gpu_layers_draft",
        ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"),
        _layers,
        always=False,
    ),
    Flag("spec_types", ("--spec-type",), _words, always=False),
    Flag(
        "draft_max",
        ("--spec-draft-n-max", "--draft-max", "--draft", "--draft-n"),
        int,
        always=False,
    ),
)

LEAST = {
    "context": 0,
    "parallel": AUTO,
    "batch": 1,
    "ubatch": 0,
    "kv_unified_per_slot": 0,
    "n_cpu_moe": 0,
}
"""The least that some numbers may be; others mean something when they are negative."""

RANKING = frozenset({"--rerank", "--reranking"})
"""Names of the switch for embeddings that ask for one score a sequence as well."""

LOAD_MODES = {
    "--no-mmap": "none",
    "--mlock": "mmap+mlock",
    "--mmap": "mmap",
    "-dio": "dio",
    "--direct-io": "dio",
}
"""Switches of older builds that are a load mode now."""

SWITCHES = frozenset(
    {
        "--metrics", "--slots", "--no-slots", "--props", "--jinja", "--no-jinja", "--no-webui", "--webui", "--ui",
        "--no-ui", "--no-warmup", "--warmup", "-cb", "--cont-batching", "-nocb", "--no-cont-batching", "--perf",
        "--no-perf", "--context-shift", "--no-context-shift", "-v", "--verbose", "--log-verbose", "--offline",
        "--log-disable", "--log-prefix", "--no-log-prefix", "--log-timestamps", "--no-log-timestamps",
        "--log-jsonl", "--no-log-jsonl", "--check-tensors", "-sp", "--special", "--spm-infill", "--ignore-eos",
        "--no-mmproj", "--mmproj-auto", "--no-mmproj-auto", "--cache-idle-slots", "--no-cache-idle-slots",
        "-e", "--escape", "--no-escape", "--lora-init-without-apply", "--cache-prompt", "--no-cache-prompt",
        "--ui-mcp-proxy", "--no-ui-mcp-proxy", "--webui-mcp-proxy", "--no-webui-mcp-proxy", "-bs",
        "--backend-sampling", "--models-autoload", "--no-models-autoload", "--prefill-assistant",
        "--no-prefill-assistant", "--spec-default",
    }
)  # fmt: skip
"""Flags without a value that move no byte."""

IDLE_VALUES = frozenset(
    {
        "-a", "--alias", "--api-key", "--api-key-file", "--api-prefix", "-C", "-Cb", "-Cr", "-Crb", "--cache-reuse",
        "--chat-template", "--chat-template-file", "--chat-template-kwargs", "--checkpoint-every-n-tokens", "-cpent",
        "--cpu-mask", "--cpu-mask-batch", "--cpu-range", "--cpu-range-batch", "--cpu-strict", "--cpu-strict-batch",
        "--defrag-thold", "-dt", "--draft-min", "--draft-n-min", "--draft-p-min", "--dry-allowed-length", "--dry-base",
        "--dry-multiplier", "--dry-penalty-last-n", "--dry-sequence-breaker", "--dynatemp-exp", "--dynatemp-range",
        "-fitc", "--fit-ctx", "-fitp", "--fit-print", "-fitt", "--fit-target",
        "--frequency-penalty", "--grammar", "--grammar-file", "--host", "-j", "--json-schema", "--json-schema-file",
        "-jf", "--keep", "-l", "--log-colors", "--log-file", "--log-verbosity", "--logit-bias", "-lv", "--media-path",
        "--min-p", "--mirostat", "--mirostat-ent", "--mirostat-lr", "-n", "--n-predict", "--numa", "--path", "--poll",
        "--poll-batch", "--port", "--predict", "--presence-penalty", "--prio", "--prio-batch", "--reasoning-budget",
        "--reasoning-format", "--repeat-last-n", "--repeat-penalty", "--reuse-port", "--rope-freq-base",
        "--rope-freq-scale", "--rope-scale", "--rope-scaling", "-s", "--samplers", "--sampling-seq", "--seed",
        "--slot-prompt-similarity", "--slot-save-path", "--spec-draft-n-min", "--spec-draft-p-min", "-sps",
        "--ssl-cert-file", "--ssl-key-file", "--tags", "-tb", "--temp", "--threads-batch", "--threads-http",
        "--timeout", "-to", "--top-k", "--top-n-sigma", "--top-p", "--typical", "--verbosity", "--xtc-probability",
        "--xtc-threshold", "--yarn-attn-factor", "--yarn-beta-fast", "--yarn-beta-slow", "--yarn-ext-factor",
        "--yarn-orig-ctx",
    }
)  # fmt: skip
"""Flags with a value that move no byte."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A llama-server command line, read: settings, and the files and devices that it names."""

    settings: Settings
    model: str | None = None
    projector: str | None = None
    adapters: tuple[str, ...] = ()
    draft: str | None = None
    devices: tuple[str, ...] | None = None
    rpc: tuple[str, ...] = ()
    fit: str = "on"
    """Whether llama-server takes less than it was asked for where less is free; its default is that it does."""
    unknown: tuple[str, ...] = ()


_FILES = {
    "-m": "model", "--model": "model", "-mm": "projector", "--mmproj": "projector", "-md": "draft",
    "--model-draft": "draft", "--spec-draft-model": "draft", "--lora": "adapters", "--lora-scaled": "adapters",
    "-dev": "devices", "--device": "devices", "--rpc": "rpc",
    "-fit": "fit", "--fit": "fit",
}  # fmt: skip
_BY_NAME = {name: (flag, True) for flag in FLAGS for name in flag.on} | {
    name: (flag, False) for flag in FLAGS for name in flag.off
}
_IDLE = dict.fromkeys(IDLE_VALUES)


def write(settings: Settings) -> list[str]:
    """The flags of settings: those that Berth always writes, and others where they differ from the default."""
    words: list[str] = []
    default = Settings()
    for flag in FLAGS:
        value = getattr(settings, flag.field)
        if not flag.always and value == getattr(default, flag.field):
            continue
        words += _written(flag, settings.unified if flag.field == "kv_unified" else value)
    return words


def _written(flag: Flag, value: Any) -> list[str]:
    if not flag.takes_value:
        names = flag.on if value else flag.off
        return [names[0]] if names else []
    if flag.repeats:
        return [word for one in value for word in (flag.on[0], one)]
    if isinstance(value, tuple):
        return [
            flag.on[0],
            ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value),
        ]
    if flag.field.startswith("n_gpu_layers") and value == AUTO:
        return [flag.on[0], "all"]
    return [flag.on[0], str(value)]


def parse(words: Sequence[str], base: Settings | None = None) -> CommandLine:
    """A command line's settings over ``base`` (llama-server's own defaults). Raises ValueError naming the flag."""
    found: dict[str, Any] = {}
    files: dict[str, Any] = {}
    unknown: list[str] = []
    rest = [word for part in words for word in _equals(part)]
    if rest and not rest[0].startswith("-"):
        rest.pop(0)
    while rest:
        name = rest.pop(0)
        if name in _BY_NAME:
            _read_setting(name, rest, found)
        elif name in _FILES:
            _read_file(name, rest, files)
        elif name in LOAD_MODES:
            found["load_mode"] = LOAD_MODES[name]
        elif name not in SWITCHES:
            unknown += [] if name in IDLE_VALUES else [name]
            if rest and not _is_flag(rest[0]):
                rest.pop(0)
    return CommandLine(replace(base or Settings(), **found), unknown=tuple(unknown), **files)


def _equals(word: str) -> list[str]:
    """``--flag=value`` as two words; a value with an equals sign (``-ot a=b``) stays whole."""
    name, separator, value = word.partition("=")
    return (
        [name, value]
        if separator and name.startswith("--") and name in {**_BY_NAME, **_FILES, **_IDLE}
        else [word]
    )


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word.lstrip("-").replace(".", "", 1).isdigit()


def _read_setting(name: str, rest: list[str], found: dict[str, Any]) -> None:
    flag, turned = _BY_NAME[name]
    if flag.read is None:
        found[flag.field] = turned
        if name in RANKING:
            found["pooling"] = "rank"
        return
    if flag.field == "flash_attn" and (not rest or _is_flag(rest[0])):
        # Builds before 6000 knew it as a switch.
        found[flag.field] = "on"
        return
    if not rest:
        raise ValueError(f"{name} needs a value")
    word = rest.pop(0)
    try:
        value = flag.read(word)
    except ValueError as err:
        raise ValueError(f"{name} {word}: {err}") from err
    if flag.field in LEAST and value < LEAST[flag.field]:
        raise ValueError(f"{name} {word}: the least is {LEAST[flag.field]}")
    found[flag.field] = (*found.get(flag.field, ()), *value) if flag.repeats else value


def _read_file(name: str, rest: list[str], files: dict[str, Any]) -> None:
    if not rest:
        raise ValueError(f"{name} needs a value")
    word, field = rest.pop(0), _FILES[name]
    if field in {"devices", "rpc"}:
        files[field] = _words(word)
    elif field == "adapters":
        paths = [
            part.rsplit(":", 1)[0] if name == "--lora-scaled" else part for part in word.split(",")
        ]
        files[field] = (*files.get(field, ()), *paths)
    else:
        files[field] = word


assert {flag.field for flag in FLAGS} | {"build"} == {field.name for field in fields(Settings)}, (
    "a setting has no flag"
)
