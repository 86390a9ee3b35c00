"""What does a node that is not there do with a pod that looks at a claim? It really looks.

The claim's files lie in ``CLAIMS/NAMESPACE/CLAIM``; a file ``.hold`` in there keeps the pod running.
"""

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from berth.api.meta import LABEL_INSPECTS
from berth.kube.client import Object

HOLD = ".hold"
POLL_S = 0.05


@dataclass(frozen=True)
class Ended:
    """How the program ended, with what the kubelet keeps of its message."""

    exit_code: int
    message: str


def is_inspecting(pod: Object) -> bool:
    return LABEL_INSPECTS in (pod["metadata"].get("labels") or {})


async def inspect(pod: Object, claims: Path) -> Ended:
    """Run the pod's own command on the folder that stands for its claim."""
    (volume,) = pod["spec"]["volumes"]
    claim = volume["persistentVolumeClaim"]["claimName"]
    folder = claims / pod["metadata"]["namespace"] / claim
    while (folder / HOLD).exists():
        await asyncio.sleep(POLL_S)
    (container,) = pod["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    words = [
        word.replace("$$", "$").replace(f"={mount['mountPath']}/", f"={folder}/")
        for word in container["command"][1:]
    ]
    with tempfile.NamedTemporaryFile(dir=claims) as report:
        program = await asyncio.create_subprocess_exec(
            sys.executable, *words, "--report", report.name
        )
        code = await program.wait()
        return Ended(code, report.read()[:4096].decode(errors="replace"))
