"""Which flags does an engine take? Read out of its own package or help text, without running or importing it.

``PYTHONPATH=tests python -m runtimes.engine_flags vllm vllm-0.33.0-….whl`` prints the JSON that is kept under
``tests/data/engine-flags``: the names of the flags and whether each takes a value. No text of the engine is kept.
"""

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "engine-flags"
Flags = dict[str, str]
"""``value``, ``switch`` (without one) or ``off`` (the name that turns a switch off), by name."""


def known_flags(engine: str) -> Flags:
    """The flags of an engine, as they were read out of its pinned version."""
    return dict(json.loads((FOLDER / f"{engine}.json").read_text())["flags"])


def of_vllm(wheel: str) -> Flags:
    """argparse calls of ``EngineArgs`` and the fields of the front end; types from the configuration classes."""
    files = sources(wheel, r"vllm/(config/[^/]*|engine/arg_utils|entrypoints/common/cli_args)\.py")
    booleans = {
        name
        for text in files.values()
        for name, kind in fields(text, ".*")
        if re.match(r"bool\b", kind)
    }
    found: Flags = {}
    for path in ("vllm/engine/arg_utils.py", "vllm/entrypoints/common/cli_args.py"):
        for names, is_plain in add_argument_names(files[path]):
            longest = max(names, key=len)
            if is_plain:
                found |= dict.fromkeys(names, "switch")
                continue
            is_switch = longest.removeprefix("--").replace("-", "_") in booleans
            found |= dict.fromkeys(names, "switch" if is_switch else "value")
            found |= {f"--no-{longest[2:]}": "off"} if is_switch else {}
    for name, kind in fields(files["vllm/entrypoints/common/cli_args.py"], ".*FrontendArgs"):
        found |= negatable(name, kind)
    return found


def of_sglang(wheel: str) -> Flags:
    """Fields of the argument groups, with their aliases."""
    files = sources(wheel, r"sglang/srt/arg_groups/fields/.*\.py")
    found: Flags = {}
    for text in files.values():
        for name, kind in fields(text, ".*"):
            if not kind.startswith("A[") or "no_cli=True" in kind or name.startswith("_"):
                continue
            own = re.search(r"cli_name=['\"](--[\w-]+)", kind)
            names = [own.group(1) if own else f"--{name.replace('_', '-')}"]
            aliases = re.search(r"aliases=\[([^\]]*)\]", kind)
            names += re.findall(r"['\"](-[\w-]+)", aliases.group(1)) if aliases else []
            is_switch = kind.startswith(("A[bool,", "A[bool ")) and "action" not in kind
            found |= dict.fromkeys(names, "switch" if is_switch else "value")
    return found


def of_max(wheel: str) -> Flags:
    """Options of the command itself, and the fields of the configuration classes that become options."""
    files = sources(wheel, r"max/(_entrypoints/pipelines|pipelines/.*config.*)\.py")
    kinds = "KVCacheConfig|MAXModelConfig(Base)?|PipelineConfig|PipelineRuntimeConfig|SamplingConfig|LoRAConfig"
    found: Flags = {"--model": "value", "--model-path": "value", "--devices": "value"}
    for text in files.values():
        for name, kind in fields(text, kinds):
            found |= negatable(name, kind) if not name.startswith("_") else {}
    text = files["max/_entrypoints/pipelines.py"]
    for call in calls(text, "option"):
        said = [
            n.value
            for n in call.args
            if isinstance(n, ast.Constant) and str(n.value).startswith("--")
        ]
        is_switch = any(k.arg == "is_flag" for k in call.keywords)
        for names in said:
            on, _, off = str(names).partition("/")
            found |= {on: "switch" if is_switch or off else "value"} | ({off: "off"} if off else {})
    return found


def of_llamacpp(help_text: str) -> Flags:
    """The columns of ``llama-server --help``: names start a line, in one comma-separated list."""
    found: Flags = {}
    for line in Path(help_text).read_text().splitlines():
        names = re.match(r"(-[\w-]+(?:, +-[\w-]+)*)( [^ ]+)?", line)
        if not names:
            continue
        head = line[: len(names.group(0))]
        listed = re.findall(r"-[\w-]+", names.group(1))
        takes = bool(re.match(r"(-[\w-]+(?:, +-[\w-]+)*) [^ ]", head))
        found |= dict.fromkeys(listed, "value" if takes else "switch")
    return found


def negatable(name: str, kind: str) -> Flags:
    """A field as an option: ``--name`` and ``--no-name`` where it is a boolean."""
    word = name.replace("_", "-")
    if re.match(r"bool\b", kind):
        return {f"--{word}": "switch", f"--no-{word}": "off"}
    return {f"--{word}": "value"}


def sources(wheel: str, pattern: str) -> dict[str, str]:
    """The text of a wheel's files whose whole path matches."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(pattern, name)]
        return {name: archive.read(name).decode() for name in names}


def fields(text: str, classes: str) -> Iterator[tuple[str, str]]:
    """Annotated fields of the classes whose whole name matches, with their annotation as text."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and re.fullmatch(classes, node.name):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id, ast.unparse(item.annotation)


def calls(text: str, name: str) -> Iterator[ast.Call]:
    """Calls of a method of that name."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == name
        ):
            yield node


def add_argument_names(text: str) -> Iterator[tuple[list[str], bool]]:
    """The names of each ``add_argument`` call, and whether it is a switch that has no other name."""
    for call in calls(text, "add_argument"):
        names = [str(n.value) for n in call.args if isinstance(n, ast.Constant)]
        names = [name for name in names if name.startswith("-")]
        actions = [
            k.value.value
            for k in call.keywords
            if k.arg == "action" and isinstance(k.value, ast.Constant)
        ]
        if names:
            yield names, "store_true" in actions


READERS = {"vllm": of_vllm, "sglang": of_sglang, "max": of_max, "llamacpp": of_llamacpp}

if __name__ == "__main__":
    print(json.dumps(dict(sorted(READERS[sys.argv[1]](sys.argv[2]).items())), indent=0))
