"""Where is a pod's cgroup and what does it hold, under every layout of a kubelet?"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from berth.agent.cgroups import Cgroups, PodFigures
from berth.agent.host import Process, RealHost, pod_uid_of

UID = "0a1b2c3d-1111-2222-3333-444455556666"
FLAT = UID.replace("-", "_")
LAYOUTS = {
    "v2 cgroupfs guaranteed": f"kubepods/pod{UID}",
    "v2 cgroupfs burstable": f"kubepods/burstable/pod{UID}",
    "v2 cgroupfs best effort": f"kubepods/besteffort/pod{UID}",
    "v2 systemd guaranteed": f"kubepods.slice/kubepods-pod{FLAT}.slice",
    "v2 systemd burstable": f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice",
    "v2 below a root of the kubelet's own": f"berth/node-a/kubepods/burstable/pod{UID}",
    "v2 systemd below a root of the kubelet's own": (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{FLAT}.slice"
    ),
}


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def v2(root: Path, layout: str) -> Path:
    (root / "cgroup.controllers").write_text("memory")
    folder = root / layout
    write(
        folder,
        memory__current="1000",
        memory__stat="anon 300\nfile 600\nshmem 100\n",
        memory__events="oom_kill 2\n",
        cgroup__procs="",
    )
    write(folder / "container", cgroup__procs="11\n12\n")
    return folder


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_v2(tmp_path: Path, layout: str):
    v2(tmp_path, layout)
    want = PodFigures(held=500, file=500, pids=frozenset({11, 12}), oom_kills=2)
    assert Cgroups(tmp_path).figures(UID) == want


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_v1(tmp_path: Path, layout: str):
    folder = tmp_path / "memory" / layout
    write(
        folder,
        memory__usage_in_bytes="1000",
        memory__stat="cache 1\nrss 2\ntotal_cache 600\ntotal_shmem 100\n",
        cgroup__procs="",
    )
    write(folder / "container", cgroup__procs="11\n")
    assert Cgroups(tmp_path).figures(UID) == PodFigures(500, 500, frozenset({11}))


def test_a_pod_that_comes_goes_and_comes_again_is_found(tmp_path: Path):
    cgroups = Cgroups(tmp_path)
    assert cgroups.figures(UID) is None
    (tmp_path / "cgroup.controllers").write_text("memory")
    cgroups = Cgroups(tmp_path)
    folder = v2(tmp_path, f"kubepods/burstable/pod{UID}")
    assert cgroups.figures(UID) is not None
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    assert cgroups.figures(UID) is None
    v2(tmp_path, f"kubepods/besteffort/pod{UID}")
    assert cgroups.figures(UID) is not None


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (f"0::/kubepods/burstable/pod{UID}/abc", UID),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice/x.scope",
            UID,
        ),
        (f"12:memory:/kubepods/pod{UID}/c\n1:name=systemd:/x", UID),
        ("0::/user.slice/user-0.slice", ""),
        ("", ""),
    ],
)
def test_the_pod_of_a_process(text: str, want: str):
    assert pod_uid_of(text) == want


@pytest.fixture
def host(tmp_path: Path) -> RealHost:
    return RealHost(store=tmp_path / "not" / "yet", proc=Path("/proc"), cgroup=tmp_path)


def test_this_machine(host: RealHost):
    memory, disk = host.memory(), host.disk()
    assert 0 < memory.available <= memory.total
    assert 0 < disk.free <= disk.total
    assert host.cpus() > 0
    assert len(host.boot_id()) == 36
    own = host.process(os.getpid())
    assert isinstance(own, Process)
    assert own.held > 0
    assert "pytest" in own.command or "python" in own.command
    assert host.process(2**22 + 1) is None


def test_the_processor_time_of_a_pod(tmp_path: Path):
    folder = v2(tmp_path, f"kubepods/pod{UID}")
    (folder / "container" / "cgroup.procs").write_text(f"{os.getpid()}\n")
    host = RealHost(store=tmp_path, proc=Path("/proc"), cgroup=tmp_path)
    first = host.pod(UID)
    while time.process_time() < first.cpu_s + 0.1:
        pass
    assert host.pod(UID).cpu_s == pytest.approx(time.process_time(), abs=0.1)


def test_kill_ends_every_process_of_the_pod_and_nobody_else(host: RealHost, tmp_path: Path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    folder = v2(tmp_path, f"kubepods/pod{UID}")
    (folder / "container" / "cgroup.procs").write_text(f"{child.pid}\n")
    host = RealHost(store=tmp_path, proc=Path("/proc"), cgroup=tmp_path)
    assert host.kill_pod(UID) == 1
    assert child.wait(timeout=10) == -signal.SIGKILL
    assert host.kill_pod("nobody") == 0
