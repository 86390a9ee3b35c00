"""The command line of the cluster: `python -m cluster --help`."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from cluster import build, controlplane, images, model, packages, quickstart, stack, whole
from cluster.problem import Problem

DEFAULT_STATE_DIR = images.CHECKOUT / ".berth"


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    try:
        COMMANDS[options.command](options)
    except Problem as problem:
        print(f"error: {problem.what}\n  to do: {problem.todo}", file=sys.stderr)
        return 1
    return 0


def _up(options: argparse.Namespace) -> None:
    whole.up(options.state, audit=options.audit)


def _quickstart(options: argparse.Namespace) -> None:
    if options.cluster == "current":
        quickstart.up_current(options.state / "current", options.values)
        return
    if (options.state / "api").exists():
        raise Problem("`make api-up` runs in this checkout", todo="end it first: make down")
    quickstart.up_local(options.state, port=options.port)


def _api_up(options: argparse.Namespace) -> None:
    if (options.state / "controlplane.json").exists():
        raise Problem("a whole cluster is up in this checkout", todo="end it first: make down")
    running = stack.start(options.state / "api", gateway_port=options.port)
    for name, (memory, gpus) in API_NODES.items():
        running.node(name, memory=memory, gpus=gpus)
    shutil.copy(running.plane.kubeconfig, options.state / "kubeconfig")
    (options.state / "endpoint").write_text(running.endpoint + "\n")
    print(f"gateway     {running.endpoint}")
    print(f"kubeconfig  {options.state / 'kubeconfig'}")
    print(f"hub         {running.hub}  (files of {running.hub_root})")
    print(f"nodes       {', '.join(API_NODES)}: kwok's, with engines that are played")


def _down(options: argparse.Namespace) -> None:
    if options.cluster == "current":
        quickstart.down_current(options.state / "current")
        return
    controlplane.stop_all(options.state / "api")
    if (options.state / "controlplane.json").exists():
        whole.down(options.state)
    shutil.rmtree(options.state, ignore_errors=True)


def _status(options: argparse.Namespace) -> None:
    cluster = whole.running(options.state)
    for name in cluster.plane.processes.names():
        state = "runs" if cluster.plane.processes.is_running(name) else "has ended"
        print(f"{name:26}{state}")
    print(cluster.plane.kubectl("get", "nodes,pods", "--all-namespaces"), end="")


def _kubeconfig(options: argparse.Namespace) -> None:
    print(whole.running(options.state).kubeconfig)


def _build(options: argparse.Namespace) -> None:
    packages.ensure(packages.CONTROL_PLANE)
    for name in options.names or build.PROGRAMS:
        print(build.binary(build.PROGRAMS[name]))


def _images(_: argparse.Namespace) -> None:
    for image in images.IMAGES:
        built = images.built(image)
        print(f"{built.reference} {built.archive}")
    print(model.gguf())


API_NODES = {
    "cpu-0": (64 << 30, ""),
    "gpu-0": (128 << 30, "2x24Gi"),
    "gpu-1": (256 << 30, "80Gi"),
}
"""Memory in bytes and GPUs of the nodes that `api-up` plays."""

COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "up": _up,
    "quickstart": _quickstart,
    "api-up": _api_up,
    "down": _down,
    "status": _status,
    "kubeconfig": _kubeconfig,
    "build": _build,
    "images": _images,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__)
    parser.add_argument(
        "--state", type=Path, default=DEFAULT_STATE_DIR, help="the cluster's folder"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start control plane, node and DNS; changes nothing twice")
    up.add_argument("--audit", action="store_true", help="log every API request to log/audit.jsonl")
    quick = commands.add_parser("quickstart", help="a cluster, Berth in it, one answer: `make up`")
    quick.add_argument("--cluster", choices=["local", "current"], default="local")
    quick.add_argument("--values", type=Path, help="more values for the chart (current cluster)")
    quick.add_argument("--port", type=int, default=quickstart.DEFAULT_PORT, help="on loopback")
    api = commands.add_parser("api-up", help="API server, controller, gateway; nodes are played")
    api.add_argument("--port", type=int, default=0, help="of the gateway, on loopback")
    down = commands.add_parser("down", help="end all of it and verify that nothing is left")
    down.add_argument("--cluster", choices=["local", "current"], default="local")
    commands.add_parser("status", help="which programs run, and what the cluster says")
    commands.add_parser("kubeconfig", help="where the administrator's kubeconfig is")
    building = commands.add_parser("build", help="build the Go programs, or those named")
    building.add_argument("names", nargs="*", choices=[*build.PROGRAMS, []], metavar="NAME")
    commands.add_parser("images", help="build the project's images and fetch the small model")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
