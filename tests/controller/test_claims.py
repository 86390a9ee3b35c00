"""A pod looks at the files of a claim: when is it created, believed, told of, deleted, asked again?"""

import asyncio
import itertools
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from berth.api.model import FactsStatus, Model
from berth.api.runner import Mount
from berth.controller.claims import Asked, ClaimDesk, ClaimWork
from berth.controller.inspections import claim_facts
from berth.controller.pricing import Files, Unpriceable
from berth.controller.resolve import source_hash
from berth.controller.store import Store
from berth.controller.views import node_view
from berth.controller.volumes import Requirement, matches
from berth.facts import Facts
from berth.headers import FileRef, HeaderError, HeaderReason, HeaderResult
from berth.headers.report import encode, encode_error
from berth.kube.client import ApiError
from berth.kube.refs import CLAIMS, NODES, PODS, VOLUMES, Ref
from controller.objects import NOW, model, node
from fakes.kube import FakeKube, Object, Write

SOURCE = {"path": {"persistentVolumeClaim": "weights", "path": "gemma/gemma.gguf"}}
FACTS = Facts(format="gguf", architecture="llama", file_bytes=(7,))
FOUND = {"weights": HeaderResult(FACTS, (FileRef("", "gemma.gguf", 7),), "", "sha256:d")}


class Server(FakeKube):
    """A fake API server that deletes, too, and never gives two objects one uid."""

    uids = itertools.count()

    async def create(self, ref: Ref, body: Object, namespace: str = "") -> Object:
        if (ref.plural, namespace, body["metadata"]["name"]) in self.objects:
            raise ApiError(409, "AlreadyExists", "it is there")
        meta = body["metadata"] | {"uid": f"uid-{next(self.uids)}"}
        return await super().create(ref, body | {"metadata": meta}, namespace)

    async def delete(self, ref: Ref, name: str, namespace: str = "", **_: Any) -> bool:
        self._accept(Write("delete", ref.plural, f"{namespace}/{name}", {}))
        gone = self.objects.pop((ref.plural, namespace, name), None)
        return gone is not None


@dataclass
class World:
    """A desk, the server behind it, and one Model ``m`` whose files are on the claim ``weights``."""

    server: Server = field(default_factory=Server)
    now: float = NOW
    stored: FactsStatus | None = None
    model: Model = field(default_factory=lambda: Model.model_validate(model(source=SOURCE)))
    image: str = "berth/operator:1"

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new leader: it knows only what the API server has."""
        self.tasks: list[asyncio.Task[None]] = []
        self.store = Store()
        self.desk = ClaimDesk(
            ClaimWork(
                self.server,  # type: ignore[arg-type]
                self.store,
                self.image,
                changed=lambda: None,
                clock=lambda: self.now,
                start=self._start,
            )
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def volume(self, *, modes: tuple[str, ...] = ("ReadWriteMany",), node: str = "") -> None:
        """The claim, bound to a volume; with ``node``, to one that only that node sees."""
        self.server.put(
            CLAIMS,
            {
                "metadata": {"name": "weights", "namespace": "ns"},
                "spec": {"accessModes": list(modes), "volumeName": "pv"},
            },
        )
        host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}}
        spec = {"nodeAffinity": terms} if node else {}
        self.server.put(VOLUMES, {"metadata": {"name": "pv"}, "spec": spec})

    def nodes(self, *names: str) -> None:
        for name in names:
            self.server.put(NODES, node(name, labels={"kubernetes.io/hostname": name}))

    async def step(self) -> Files | str | None:
        """One pass, and all that it started: the files, or why there are none."""
        for table in (self.store.pods, self.store.nodes):
            table.replace(*await self.server.list_all(table.ref))
        asked = Asked("ns/m", self.model, source_hash(self.model), None, self.now)
        try:
            answer: Files | str | None = self.desk.files(asked, self.stored)
        except Unpriceable as err:
            answer = err.word or err.reason
        self.desk.sweep({"ns/m"})
        await asyncio.gather(*self.tasks)
        self.tasks.clear()
        return answer

    async def until_pod(self) -> Object:
        """The claim is seen in the first pass, the pod created in the second."""
        await self.step()
        await self.step()
        (pod,) = self.pods()
        return pod

    def pods(self) -> list[Object]:
        return [obj for (plural, _, _), obj in self.server.objects.items() if plural == "pods"]

    def ended(self, message: str = "", *, exit_code: int = 0, **status: Any) -> None:
        (pod,) = self.pods()
        terminated = {"exitCode": exit_code, "reason": "Completed", "message": message}
        self._tell(
            pod,
            {
                "phase": "Failed" if exit_code or status else "Succeeded",
                "containerStatuses": [{"state": {"terminated": terminated}}],
                **status,
            },
        )

    def unscheduled(self, message: str) -> None:
        (pod,) = self.pods()
        condition = {"type": "PodScheduled", "status": "False", "message": message}
        self._tell(pod, {"phase": "Pending", "conditions": [condition]})

    def _tell(self, pod: Object, status: Object) -> None:
        meta = pod["metadata"]
        self.server.change(PODS, meta["name"], "ns", lambda obj: obj.update(status=status))


@pytest.fixture
def world() -> World:
    made = World()
    made.nodes("a", "b")
    made.volume()
    return made


async def test_a_pod_looks_and_its_facts_become_the_files(world: World) -> None:
    pod = await world.until_pod()
    assert pod["spec"]["containers"][0]["command"][-1] == "weights=/models/gemma/gemma.gguf"
    assert await world.step() == "ReadingHeader"
    world.ended(encode(FOUND))
    await world.step()
    assert world.pods() == []
    files = await world.step()
    assert isinstance(files, Files)
    assert files.mount == Mount(persistent_volume_claim="weights")
    assert [(file.name, file.size) for file in files.files] == [("gemma/gemma.gguf", 7)]
    assert files.local_nodes is None
    assert files.facts.source_hash == source_hash(world.model)
    assert [write.verb for write in world.server.writes] == ["create", "delete"]


async def test_a_new_leader_goes_on_with_the_pod_of_the_former(world: World) -> None:
    await world.until_pod()
    world.restart()
    await world.step()
    assert len(world.pods()) == 1
    world.ended(encode(FOUND))
    world.restart()
    for _ in range(2):
        await world.step()
    assert isinstance(await world.step(), Files)
    assert [write.verb for write in world.server.writes] == ["create", "delete"]


async def test_facts_that_are_stored_need_no_pod(world: World) -> None:
    world.stored = claim_facts(world.model, FOUND, source_hash(world.model))
    await world.step()
    files = await world.step()
    assert isinstance(files, Files)
    assert files.facts == world.stored
    assert world.server.writes == []


async def test_a_pod_of_another_source_is_deleted_and_the_new_one_asked(world: World) -> None:
    await world.until_pod()
    world.model.spec.source.path.path = "other.gguf"  # type: ignore[union-attr]
    for _ in range(3):
        await world.step()
    (pod,) = world.pods()
    assert pod["spec"]["containers"][0]["command"][-1] == "weights=/models/other.gguf"


async def test_a_pod_of_a_model_that_was_made_anew_is_not_believed(world: World) -> None:
    await world.until_pod()
    world.ended(encode(FOUND))
    world.model.metadata.uid = "another"
    assert await world.step() == "ReadingHeader"
    await world.step()
    (pod,) = world.pods()
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "another"


async def test_a_pod_that_may_go_elsewhere_now_is_asked_anew(world: World) -> None:
    await world.until_pod()
    world.unscheduled("0/2 nodes are available")
    world.model.spec.node_selector = {"zone": "x"}
    for _ in range(3):
        await world.step()
    (pod,) = world.pods()
    assert pod["spec"]["nodeSelector"] == {"zone": "x"}


async def test_without_a_claim_there_is_no_pod_and_it_is_looked_for_again(world: World) -> None:
    world.server.remove(CLAIMS, "weights", "ns")
    await world.step()
    assert await world.step() == "ClaimNotFound"
    assert world.desk.next_retry() == NOW + 5
    assert world.pods() == []
    world.volume()
    world.now += 5
    await world.until_pod()


async def test_what_the_scheduler_says_is_told_after_a_while_and_the_pod_stays(
    world: World,
) -> None:
    await world.until_pod()
    world.unscheduled("0/2 nodes are available: 2 had volume node affinity conflict")
    assert await world.step() == "ReadingHeader"
    assert world.desk.next_retry() == NOW + 30
    world.now += 30
    assert await world.step() == "Unschedulable"
    assert world.desk.next_retry() is None
    world.ended(encode(FOUND))
    await world.step()
    await world.step()
    assert isinstance(await world.step(), Files)


@pytest.mark.parametrize(
    ("end", "word", "pause"),
    [
        pytest.param(
            {
                "message": encode_error(HeaderError(HeaderReason.INVALID_GGUF, "cut")),
                "exit_code": 1,
            },
            "InvalidGGUF",
            300,
            id="its own word, that stays true",
        ),
        pytest.param(
            {
                "message": encode_error(HeaderError(HeaderReason.SOURCE_NOT_FOUND, "no file")),
                "exit_code": 1,
            },
            "SourceNotFound",
            5,
            id="its own word, that may change",
        ),
        pytest.param({"message": "what?"}, "SourceFailed", 5, id="no report"),
        pytest.param(
            {"exit_code": 137, "reason": "DeadlineExceeded"}, "SourceTooSlow", 5, id="too slow"
        ),
        pytest.param({"exit_code": 1, "reason": "Evicted"}, "SourceUnreachable", 5, id="evicted"),
    ],
)
async def test_a_failure_is_told_kept_for_people_and_tried_again(
    world: World, end: dict[str, Any], word: str, pause: float
) -> None:
    await world.until_pod()
    world.ended(**end)
    assert await world.step() == word
    assert world.desk.next_retry() == NOW + pause
    (failed,) = world.pods()
    world.now += pause
    await world.step()
    assert world.pods() == []
    await world.step()
    (again,) = world.pods()
    assert again["metadata"]["uid"] != failed["metadata"]["uid"]


async def test_failures_in_a_row_are_further_and_further_apart(world: World) -> None:
    pauses = []
    for _ in range(8):
        while not world.pods() or world.pods()[0].get("status"):
            await world.step()
        world.ended("what?")
        await world.step()
        retry_at = world.desk.next_retry()
        assert retry_at is not None
        pauses.append(retry_at - world.now)
        world.now = retry_at
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]


async def test_a_pod_that_is_refused_is_told_with_the_servers_words(world: World) -> None:
    refusal = ApiError(403, "Forbidden", "exceeded quota")
    world.server.refuses = lambda write: refusal if write.verb == "create" else None
    await world.step()
    await world.step()
    assert await world.step() == "UnexpectedAdmissionError"
    assert world.desk.next_retry() == NOW + 5


async def test_a_volume_of_one_node_says_where_the_model_may_run(world: World) -> None:
    world.volume(node="b")
    await world.until_pod()
    world.ended(encode(FOUND))
    await world.step()
    await world.step()
    files = await world.step()
    assert isinstance(files, Files)
    assert files.local_nodes == {"b"}


async def test_a_volume_that_is_mounted_once_stays_where_it_is_mounted(world: World) -> None:
    world.volume(modes=("ReadWriteOnce",))
    holder: Object = {
        "metadata": {"name": "writer", "namespace": "ns"},
        "spec": {
            "nodeName": "a",
            "volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "weights"}}],
        },
    }
    world.server.put(PODS, holder)
    await world.step()
    await world.step()
    (pod,) = [p for p in world.pods() if p["metadata"]["name"] != "writer"]
    terms = pod["spec"]["affinity"]["nodeAffinity"]
    assert "'values': ['a']" in str(terms)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        pytest.param(
            {"projector": {"url": {"uri": "https://x.example/p.gguf"}}}, "projector", id="elsewhere"
        ),
        pytest.param(
            {"projector": {"path": {"persistentVolumeClaim": "other", "path": "p.gguf"}}},
            "projector",
            id="on another claim",
        ),
    ],
)
async def test_all_parts_lie_on_one_claim(spec: Object, says: str) -> None:
    world = World(model=Model.model_validate(model(source=SOURCE, **spec)))
    world.volume()
    assert await world.step() == "Unsupported"
    assert world.server.writes == []


async def test_a_projector_on_the_same_claim_is_looked_at_with_the_weights(world: World) -> None:
    projector = {"path": {"persistentVolumeClaim": "weights", "path": "gemma/mm"}}
    world.model = Model.model_validate(model(source=SOURCE, projector=projector))
    pod = await world.until_pod()
    assert pod["spec"]["containers"][0]["command"][-1] == "projector=/models/gemma/mm"
    beside = HeaderResult(FACTS, (FileRef("", "p.gguf", 3),), "", "sha256:e")
    world.ended(encode({**FOUND, "projector": beside}))
    await world.step()
    await world.step()
    files = await world.step()
    assert isinstance(files, Files)
    assert [(file.name, file.role) for file in files.files] == [
        ("gemma/gemma.gguf", "weights"),
        ("gemma/mm/p.gguf", "projector"),
    ]


async def test_a_report_that_leaves_a_part_out_is_none(world: World) -> None:
    projector = {"path": {"persistentVolumeClaim": "weights", "path": "p.gguf"}}
    world.model = Model.model_validate(model(source=SOURCE, projector=projector))
    await world.until_pod()
    world.ended(encode(FOUND))
    await world.step()
    assert await world.step() == "InvalidHeader"


async def test_without_an_image_people_are_told_which_setting() -> None:
    world = World(image="")
    world.volume()
    await world.step()
    assert await world.step() == "Unsupported"


async def test_files_that_changed_are_looked_at_again(world: World) -> None:
    world.stored = claim_facts(world.model, FOUND, source_hash(world.model))
    await world.step()
    world.desk.forget("ns/m")
    await world.until_pod()


async def test_a_claim_that_no_pod_could_mount_is_asked_for_its_volume_again(world: World) -> None:
    world.stored = claim_facts(world.model, FOUND, source_hash(world.model))
    await world.step()
    world.volume(node="b")
    world.desk.forget_volume("ns/m")
    assert await world.step() is None
    files = await world.step()
    assert isinstance(files, Files)
    assert files.local_nodes == {"b"}


@pytest.mark.parametrize(
    ("one", "holds"),
    [
        (Requirement("zone", "In", ("x", "y")), True),
        (Requirement("zone", "NotIn", ("x",)), False),
        (Requirement("other", "NotIn", ("x",)), True),
        (Requirement("zone", "Exists"), True),
        (Requirement("zone", "DoesNotExist"), False),
        (Requirement("cpus", "Gt", ("7",)), True),
        (Requirement("cpus", "Lt", ("8",)), False),
        (Requirement("zone", "Gt", ("7",)), False),
        (Requirement("metadata.name", "In", ("a",), field=True), True),
        (Requirement("metadata.name", "In", ("a",)), False),
        (Requirement("zone", "Like", ("x",)), False),
    ],
)
def test_a_volumes_affinity_is_matched_as_kubernetes_does(one: Requirement, holds: bool) -> None:
    view = node_view(node("a", labels={"zone": "x", "cpus": "8"}))
    assert matches([(one,)], view) is holds
    assert matches([()], view) is False
    assert matches([(one, Requirement("zone", "In", ("x",)))], view) is holds
