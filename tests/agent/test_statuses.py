"""Which changes are written, and does the newest always arrive?"""

import asyncio
from dataclasses import replace

import pytest

from berth.agent.gpus import Gpu, GpuSample
from berth.agent.host import Disk, HostMemory
from berth.agent.inventory import Findings, inventory_status
from berth.agent.inventory import is_worth_writing as inventory_is_worth_writing
from berth.agent.live import Sample
from berth.agent.shelf import Blob
from berth.agent.statuses import StatusWriter, Subject, is_worth_writing
from berth.api.runner import (
    Admission,
    AgentStatus,
    DeviceUse,
    FetchStatus,
    Health,
    MemoryUse,
    Quiet,
    Runner,
)
from berth.kube.client import ApiError
from berth.kube.refs import ref_of
from berth.units import Bytes, GiB, MiB
from fakes.kube import FakeKube

RUNNERS = ref_of(Runner)
UP = AgentStatus(
    epoch=1,
    fetch=FetchStatus(state="Verified", done=5, total=5),
    health=Health(state="Ready", since="t"),
    memory=MemoryUse(
        host=2 * GiB, host_peak=3 * GiB, devices=[DeviceUse(device="G", used=GiB, peak=GiB)]
    ),
)


def with_(status: AgentStatus, **fields: object) -> AgentStatus:
    return status.model_copy(update=fields)


def health(**fields: object) -> Health:
    return Health(state="Ready", since="t").model_copy(update=fields)


def admission(state: str, have: int = 0, reason: str | None = None) -> Admission:
    return Admission(
        state=state, at="t", expires_at="t", pass_id="p", need=9, have=have, reason=reason
    )


REFUSED = with_(UP, admission=admission("Refused", have=GiB, reason="Memory"))
CASES = [
    pytest.param(UP, UP, 99, False, id="nothing changed"),
    pytest.param(UP, with_(UP, health=health(state="Hung")), 0, True, id="a state: at once"),
    pytest.param(UP, with_(UP, health=health(busy=1)), 0, True, id="busy: at once"),
    pytest.param(
        with_(UP, health=health(busy=1)), with_(UP, health=health(busy=2)), 4, False, id="busier"
    ),
    pytest.param(
        with_(UP, health=health(busy=1)), with_(UP, health=health(busy=2)), 5, True, id="after 5 s"
    ),
    pytest.param(UP, with_(UP, health=health(tokens=9)), 5, True, id="tokens after 5 s"),
    pytest.param(UP, with_(UP, health=health(failed_checks=1)), 1, False, id="one failed check"),
    pytest.param(
        UP, with_(UP, quiet=Quiet(since="t", drain_seen="d")), 0, True, id="quiet: at once"
    ),
    pytest.param(REFUSED, UP, 0, True, id="a refusal taken back"),
    pytest.param(
        REFUSED,
        with_(UP, admission=admission("Refused", have=GiB + 255 * MiB, reason="Memory")),
        99,
        False,
        id="free memory below the quantum",
    ),
    pytest.param(
        REFUSED,
        with_(UP, admission=admission("Refused", have=GiB + 256 * MiB, reason="Memory")),
        9,
        False,
        id="a quantum too early",
    ),
    pytest.param(
        REFUSED,
        with_(UP, admission=admission("Refused", have=GiB + 256 * MiB, reason="Memory")),
        10,
        True,
        id="a quantum after 10 s",
    ),
    pytest.param(
        UP,
        with_(
            UP,
            memory=MemoryUse(host=2 * GiB + 63 * MiB, host_peak=3 * GiB, devices=UP.memory.devices),
        ),
        99,
        False,
        id="what is held below the quantum",
    ),
    pytest.param(
        UP,
        with_(
            UP,
            memory=MemoryUse(host=2 * GiB, host_peak=3 * GiB + 64 * MiB, devices=UP.memory.devices),
        ),
        5,
        True,
        id="a peak that rose",
    ),
    pytest.param(
        UP,
        with_(UP, memory=MemoryUse(host=2 * GiB, host_peak=3 * GiB, devices=[])),
        10,
        True,
        id="a device that is no longer measured",
    ),
    pytest.param(None, AgentStatus(), 99, False, id="nothing to say yet"),
    pytest.param(None, UP, 0, True, id="the first word"),
    pytest.param(
        AgentStatus(fetch=FetchStatus(state="Fetching", done=1, total=9)),
        AgentStatus(fetch=FetchStatus(state="Fetching", done=8, total=9)),
        4,
        False,
        id="progress before 5 s",
    ),
]


@pytest.mark.parametrize(("before", "now", "passed", "want"), CASES)
def test_what_is_written(before, now, passed, want):
    assert is_worth_writing(before, now, passed_s=passed) is want


# -- inventory ---------------------------------------------------------------------------------


def found(
    available: int = 32 * GiB, used: int = 0, files: int = 1, free: int = 900 * GiB
) -> Findings:
    gpu = Gpu("G", 0, "H200", Bytes(80 * GiB), Bytes(used), "9.0")
    return Findings(
        sample=Sample(HostMemory(Bytes(64 * GiB), Bytes(available)), GpuSample((gpu,)), at=0.0),
        disk=Disk(Bytes(1000 * GiB), Bytes(free)),
        cpus=8,
        files=[Blob(f"{n:064x}", 7) for n in range(files)],
    )


@pytest.mark.parametrize(
    ("now", "passed", "hurry", "want"),
    [
        pytest.param(found(), 99, False, False, id="an idle node writes nothing"),
        pytest.param(
            found(available=32 * GiB - 255 * MiB), 99, False, False, id="a little less free"
        ),
        pytest.param(found(available=31 * GiB), 9, False, False, id="a quantum too early"),
        pytest.param(found(available=31 * GiB), 10, False, True, id="a quantum after 10 s"),
        pytest.param(found(available=31 * GiB), 0, True, True, id="a runner came or went"),
        pytest.param(found(used=3 * GiB), 10, False, True, id="a device's quantum"),
        pytest.param(found(files=2), 0, False, True, id="a file: at once"),
        pytest.param(found(free=895 * GiB), 99, False, False, id="a little disk"),
        pytest.param(found(free=800 * GiB), 10, False, True, id="much disk"),
        pytest.param(replace(found(), epoch=9), 0, False, True, id="an epoch: at once"),
    ],
)
def test_when_the_inventory_is_written(now, passed, hurry, want):
    before, after = inventory_status(found()), inventory_status(now)
    got = inventory_is_worth_writing(before, after, passed_s=passed, hurry=hurry)
    assert got is want


def test_many_files_are_told_by_digest_and_count():
    few, many = inventory_status(found(files=512)), inventory_status(found(files=513))
    assert (len(few.files), few.file_count) == (512, 512)
    assert (len(many.files), many.file_count) == (0, 513)
    assert few.files_digest != many.files_digest
    assert len(str(few.wire())) < 256 << 10


def test_a_device_that_cannot_tell_is_shown_full():
    sample = replace(
        found().sample, gpus=GpuSample((Gpu("G", 0, total=Bytes(80 * GiB), used=None),))
    )
    (device,) = inventory_status(replace(found(), sample=sample)).devices
    assert device.used == 80 * GiB


def test_a_driver_fault_is_a_condition_that_keeps_its_time():
    fault = GpuSample(problem="NVML: Driver/library version mismatch")
    broken = replace(found(), sample=replace(found().sample, gpus=fault))
    well = inventory_status(replace(found(), now="t1"))
    ill = inventory_status(replace(broken, now="t2"), well.conditions)
    still = inventory_status(replace(broken, now="t3"), ill.conditions)
    rows = [
        (s.conditions[0].status, s.conditions[0].last_transition_time) for s in (well, ill, still)
    ]
    assert rows == [("True", "t1"), ("False", "t2"), ("False", "t2")]
    assert inventory_is_worth_writing(well, ill, passed_s=0)
    assert not inventory_is_worth_writing(ill, still, passed_s=99)
    assert "mismatch" in still.conditions[0].message


# -- the writer --------------------------------------------------------------------------------

SUBJECT = Subject(RUNNERS, "r", "team", "uid-r")


@pytest.fixture
def kube() -> FakeKube:
    found = FakeKube()
    found.put(RUNNERS, {"metadata": {"name": "r", "namespace": "team", "uid": "uid-r"}, "spec": {}})
    return found


async def test_only_the_newest_is_written_after_an_outage(kube: FakeKube):
    writer = StatusWriter(kube)
    kube.away = True
    for number in range(5):
        writer.put(SUBJECT, {"agent": {"epoch": number}})
        await asyncio.sleep(0)
    kube.away = False
    await writer.flush()
    assert [write.body["status"] for write in kube.writes] == [{"agent": {"epoch": 4}}]
    assert writer.failures > 0


async def test_what_is_gone_is_not_written(kube: FakeKube):
    gone: list[Subject] = []
    writer = StatusWriter(kube, gone.append)
    absent = Subject(RUNNERS, "x", "team", "u")
    writer.put(absent, {"agent": {}})
    await writer.flush()
    assert gone == [absent]


async def test_what_is_forgotten_is_not_written_once_the_server_is_back(kube: FakeKube):
    writer = StatusWriter(kube)
    kube.away = True
    writer.put(SUBJECT, {"agent": {}})
    await asyncio.sleep(0)
    writer.forget(SUBJECT)
    kube.away = False
    await writer.flush()
    assert kube.writes == []


async def test_a_value_that_the_server_calls_wrong_is_dropped_and_the_next_one_goes(kube: FakeKube):
    kube.refuses = lambda w: (
        ApiError(422, "Invalid", "no") if w.body["status"]["agent"]["epoch"] == 1 else None
    )
    writer = StatusWriter(kube)
    writer.put(SUBJECT, {"agent": {"epoch": 1}})
    await writer.flush()
    writer.put(SUBJECT, {"agent": {"epoch": 2}})
    await writer.flush()
    assert [write.body["status"]["agent"]["epoch"] for write in kube.writes] == [2]
