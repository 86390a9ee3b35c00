"""Which engines run on this node that Berth did not start? By process, loading ones included."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from berth.agent.gpus import GpuSample
from berth.agent.host import Host, Process

_ENGINE = re.compile(
    r"(^|[/ ])(llama-server|llama-cli|vllm|sglang(\.launch_server)?|text-generation-server"
    r"|ollama|trtllm-serve|tritonserver)( |$)|-m (vllm|sglang)[. ]"
)
"""In a command line. A process that computes on a GPU is one whatever it is called."""


@dataclass(frozen=True)
class Engine:
    """One such process; ``pod_uid`` is empty outside of pods."""

    process: Process

    @property
    def pod_uid(self) -> str:
        return self.process.pod_uid

    @property
    def words(self) -> str:
        """For a message: the program and its id. Arguments may hold what is nobody's business."""
        return f"{self.process.name} (pid {self.process.pid})"

    def is_claimed(self, claims: Iterable[str]) -> bool:
        """Whether the policy sets memory aside for it: a claim's name is in its command line."""
        return any(name and name in self.process.command for name in claims)


def find_engines(host: Host, gpus: GpuSample) -> list[Engine]:
    """Every engine on the node, those of Berth's own pods included, by process id."""
    computing = {process.pid for gpu in gpus.gpus for process in gpu.processes or ()}
    found = []
    for pid in sorted({*host.pids(), *computing}):
        process = host.process(pid)
        if process is not None and (pid in computing or _ENGINE.search(process.command)):
            found.append(Engine(process))
    return found
