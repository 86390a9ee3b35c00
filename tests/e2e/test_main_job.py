"""The main job on a real node with the real llama-server: from `kubectl apply` to an answer, and through faults."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from cluster import model as gemma
from cluster.release import NAMESPACE
from e2e.installed import FILE, REPO, Installed, chat

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

WIDE = {"parallel": 16, "contextLength": 32768}
"""About 2 GiB, mostly cache: large beside what the machine's other programs come and go with."""
LONG: dict[str, Any] = {"max_tokens": 120, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def one(berth: Installed) -> Iterator[str]:
    """A model of the real file, taken away afterwards."""
    yield berth.model("one")
    berth.delete("one")


@pytest.fixture
def tight(berth: Installed) -> Iterator[None]:
    """Room for one runner only: the node keeps all else of its host memory free."""
    berth.model("probe", overrides=WIDE)
    needs = berth.wait("needs", lambda: berth.get("model", "probe").get("status", {}).get("needs"))
    inventory = berth.every("nodeinventories")[0]
    reserve = inventory["status"]["host"]["available"] - needs["host"] * 3 // 2
    berth.cluster.plane.apply(
        {
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Residency",
            "metadata": {"name": "tight"},
            "spec": {"host": {"reserve": str(reserve)}},
        }
    )
    berth.delete("probe")
    yield
    berth.kubectl("delete", "residency", "tight")


class TestSources:
    def test_the_needs_are_told_before_anything_is_downloaded(
        self, berth: Installed, one: str
    ) -> None:
        berth.wait("needs", lambda: berth.get("model", one).get("status", {}).get("needs"))
        status = berth.get("model", one)["status"]
        assert status["facts"]["architecture"] == "gemma3"
        assert status["facts"]["bytes"] == gemma.SIZE
        assert status["needs"]["kvCache"] == 27 << 20  # llama.cpp's own figure for 4096 tokens
        assert "KV cache 27 MiB" in status["needs"]["text"]
        assert berth.created_pods(one) == 0

    async def test_a_hub_repository_a_url_and_a_host_path_answer(self, berth: Installed) -> None:
        sources: dict[str, dict[str, Any]] = {
            "from-hub": {"huggingFace": {"repo": REPO, "files": [FILE]}},
            "from-url": {
                "url": {"uri": f"{berth.hub}/{REPO}/resolve/main/{FILE}", "sha256": gemma.SHA256}
            },
            "from-path": {"path": {"hostPath": str(berth.host_path), "path": FILE}},
        }
        for name, source in sources.items():
            berth.model(name, source)
            answer = await berth.ask(name)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"]
        await asyncio.to_thread(berth.delete, *sources)

    async def test_a_claim_is_looked_at_by_a_pod_and_answers(self, berth: Installed) -> None:
        berth.claim("weights", berth.host_path)
        source = {"path": {"persistentVolumeClaim": "weights", "path": FILE}}
        name = berth.model("from-claim", source)
        berth.wait("needs", lambda: berth.get("model", name).get("status", {}).get("needs"))
        status = berth.get("model", name)["status"]
        assert status["facts"]["bytes"] == gemma.SIZE
        assert status["needs"]["kvCache"] == 27 << 20
        answer = await berth.ask(name)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"]
        (pod,) = berth.runner_pods(name)
        volumes = berth.get("pod", pod)["spec"]["volumes"]
        mounted = {"claimName": "weights", "readOnly": True}
        assert {"name": "models", "persistentVolumeClaim": mounted} in volumes
        await asyncio.to_thread(berth.delete, name)

    def test_a_claims_folder_that_holds_no_model_is_told(self, berth: Installed) -> None:
        berth.claim("bare", berth.host_path.parent)
        source = {"path": {"persistentVolumeClaim": "bare", "path": "nothing.gguf"}}
        name = berth.model("from-nothing", source)
        told = berth.wait(
            "why its header is not read",
            lambda: next(
                (
                    condition
                    for condition in berth.get("model", name)
                    .get("status", {})
                    .get("conditions", [])
                    if condition["type"] == "HeaderRead" and condition["status"] == "False"
                ),
                None,
            ),
        )
        assert told["reason"] == "SourceNotFound"
        assert "nothing.gguf is missing" in told["message"]
        berth.delete(name)

    def test_a_wrong_source_is_refused_by_the_api_server(self, berth: Installed) -> None:
        with pytest.raises(Exception, match="exactly one of huggingFace, url, path, image"):
            berth.model("wrong", {"url": {"uri": "http://a/b.gguf"}, "image": {"reference": "x"}})

    async def test_a_wrong_sum_is_never_served(self, berth: Installed) -> None:
        berth.model(
            "damaged",
            {"url": {"uri": f"{berth.hub}/{REPO}/resolve/main/{FILE}", "sha256": "0" * 64}},
        )
        answer = await berth.ask("damaged")
        assert answer.status_code == 503
        assert "Hash" in json.dumps(berth.get("model", "damaged")["status"])
        assert berth.created_pods("damaged") == 0
        await asyncio.to_thread(berth.delete, "damaged")


class TestLoading:
    async def test_a_hundred_first_requests_make_one_pod(self, berth: Installed) -> None:
        name = berth.model("hundred", overrides={"parallel": 4})
        answers = await asyncio.gather(*(berth.ask(name) for _ in range(100)))
        assert [answer.status_code for answer in answers] == [200] * 100
        assert berth.created_pods(name) == 1
        await asyncio.to_thread(berth.delete, name)

    async def test_the_first_token_comes_soon_after_the_engine_could_give_it(
        self, berth: Installed, one: str
    ) -> None:
        assert (await berth.ask(one)).status_code == 200
        berth.kubectl("annotate", "model", one, f"berth.dev/unload-requested={time.time()}")
        await asyncio.to_thread(berth.wait_state, one, "Down")
        began = time.monotonic()
        async with (
            berth.client() as client,
            client.stream("POST", "/v1/chat/completions", json=chat(one, stream=True)) as answer,
        ):
            async for line in answer.aiter_lines():
                if line.startswith("data: ") and '"content":"' in line.replace('": "', '":"'):
                    break
        seconds = time.monotonic() - began
        loaded = berth.get("model", one)["status"]["loadSeconds"]
        print(f"first request to first token: {seconds:.1f} s (load seconds {loaded})")
        assert seconds < 60


class TestRoom:
    async def test_two_that_do_not_fit_together_take_turns(
        self, berth: Installed, tight: None
    ) -> None:
        first, second = (berth.model(name, overrides=WIDE) for name in ("first", "second"))
        for name, other in ((first, second), (second, first), (first, second)):
            answer = await berth.ask(name)
            assert answer.status_code == 200, answer.text
            assert berth.state(name) == "Up"
            assert berth.runner_pods(other) == []
        await asyncio.to_thread(berth.delete, first, second)

    async def test_a_busy_one_is_never_stopped(self, berth: Installed, tight: None) -> None:
        first, second = (berth.model(name, overrides=WIDE) for name in ("first", "second"))
        assert (await berth.ask(first)).status_code == 200
        long = asyncio.create_task(berth.ask(first, **LONG))
        await asyncio.sleep(0.5)
        other = asyncio.create_task(berth.ask(second))
        answer = await long
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == LONG["max_tokens"]
        assert (await other).status_code == 200
        await asyncio.to_thread(berth.delete, first, second)

    async def test_what_fits_nowhere_is_refused_with_numbers(
        self, berth: Installed, one: str
    ) -> None:
        assert (await berth.ask(one)).status_code == 200
        large = berth.model("large", overrides={"parallel": 256, "contextLength": 32768})
        berth.wait("needs", lambda: berth.get("model", large).get("status", {}).get("needs"))
        answer = await berth.ask(large)
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["code"] == "insufficient_capacity"
        assert "GiB" in answer.json()["error"]["message"]
        assert berth.state(one) == "Up"
        await asyncio.to_thread(berth.delete, large)

    async def test_idle_and_kept(self, berth: Installed) -> None:
        idle = berth.model("idle", idleTimeout="3s")
        kept = berth.model("kept", minReplicas=1, idleTimeout="3s")
        await asyncio.to_thread(berth.wait_state, kept, "Up")
        assert (await berth.ask(idle)).status_code == 200
        await asyncio.to_thread(berth.wait_state, idle, "Down")
        assert berth.state(kept) == "Up"
        berth.kubectl("scale", "model", kept, "--replicas=0")
        await asyncio.to_thread(berth.wait_state, kept, "Down")
        await asyncio.to_thread(berth.delete, idle, kept)


async def _stream(berth: Installed, name: str, **more: Any) -> list[str]:
    """The data of every frame, to the end or to where it is cut."""
    frames: list[str] = []
    async with (
        berth.client() as client,
        client.stream(
            "POST", "/v1/chat/completions", json=chat(name, stream=True, **more)
        ) as answer,
    ):
        with contextlib.suppress(httpx.RemoteProtocolError):
            async for line in answer.aiter_lines():
                frames += [line.removeprefix("data: ")] if line.startswith("data: ") else []
    return frames


class TestFaults:
    @pytest.mark.parametrize("moment", ["idle", "loading", "streaming"])
    async def test_the_engine_is_killed(self, berth: Installed, one: str, moment: str) -> None:
        if moment == "loading":
            answer = asyncio.create_task(berth.ask(one))
            await asyncio.to_thread(berth.wait, "its pod", lambda: _engine_runs(berth, one))
            await asyncio.to_thread(berth.kill_engine, one)
            assert (await answer).status_code == 200
            return
        assert (await berth.ask(one)).status_code == 200
        if moment == "streaming":
            stream = asyncio.create_task(_stream(berth, one, max_tokens=2000, ignore_eos=True))
            await asyncio.sleep(1)
            await asyncio.to_thread(berth.kill_engine, one)
            frames = await stream
            assert "error" in json.loads(frames[-1])
            assert "[DONE]" not in frames
        else:
            await asyncio.to_thread(berth.kill_engine, one)
        assert (await berth.ask(one)).status_code == 200

    @pytest.mark.parametrize("moment", ["idle", "loading"])
    async def test_the_pod_is_deleted(self, berth: Installed, one: str, moment: str) -> None:
        if moment == "idle":
            assert (await berth.ask(one)).status_code == 200
        waiting = asyncio.create_task(_doing(berth, one, moment))
        await asyncio.to_thread(berth.wait, "its pod", lambda: _engine_runs(berth, one))
        berth.kubectl("delete", "pod", berth.runner_pods(one)[0], "--wait=false")
        _check_answer(await waiting)
        assert (await berth.ask(one)).status_code == 200

    async def test_the_pod_is_deleted_while_it_streams(self, berth: Installed, one: str) -> None:
        """A drain: what has begun ends whole, what comes next waits for the next load."""
        assert (await berth.ask(one)).status_code == 200
        stream = asyncio.create_task(_stream(berth, one, **LONG))
        await asyncio.sleep(0.5)
        pod = berth.runner_pods(one)[0]
        berth.kubectl("delete", "pod", pod, "--wait=false")
        frames = await stream
        assert frames[-1] == "[DONE]"
        assert (await berth.ask(one)).status_code == 200

    @pytest.mark.parametrize("program", ["controller", "agent", "gateway"])
    @pytest.mark.parametrize("moment", ["idle", "loading", "streaming"])
    async def test_a_program_is_killed(
        self, berth: Installed, one: str, program: str, moment: str
    ) -> None:
        before = berth.created_pods(one)
        if moment != "loading":
            assert (await berth.ask(one)).status_code == 200
        task = asyncio.create_task(_doing(berth, one, moment))
        await asyncio.sleep(1)
        await asyncio.to_thread(berth.kill_program, program)
        if program == "gateway" and moment != "idle":
            with contextlib.suppress(httpx.HTTPError):
                await task
        else:
            _check_answer(await task)
        await _until_answered(berth, one)
        assert berth.created_pods(one) - before == 1

    @pytest.mark.parametrize("moment", ["loading", "streaming"])
    async def test_the_api_server_restarts(self, berth: Installed, one: str, moment: str) -> None:
        if moment == "streaming":
            assert (await berth.ask(one)).status_code == 200
        task = asyncio.create_task(_doing(berth, one, moment))
        await asyncio.sleep(1)
        await asyncio.to_thread(berth.cluster.plane.restart, "kube-apiserver")
        _check_answer(await task)
        await _until_answered(berth, one)


async def _doing(berth: Installed, name: str, moment: str) -> Any:
    """What goes on when the fault comes."""
    if moment == "loading":
        return await berth.ask(name)
    return await _stream(berth, name, **LONG) if moment == "streaming" else None


def _check_answer(answer: Any) -> None:
    if isinstance(answer, httpx.Response):
        assert answer.status_code == 200, answer.text
    elif answer is not None:
        assert answer[-1] == "[DONE]"


def _engine_runs(berth: Installed, name: str) -> bool:
    pods = berth.runner_pods(name)
    return bool(pods) and berth.get("pod", pods[0]).get("status", {}).get("phase") == "Running"


async def _until_answered(berth: Installed, name: str, deadline_s: float = 90) -> None:
    end = time.monotonic() + deadline_s
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if (await berth.ask(name)).status_code == 200:
                return
        assert time.monotonic() < end, f"{name} did not answer within {deadline_s:.0f} s"
        await asyncio.sleep(0.5)


class TestSdk:
    async def test_chat_completions_embeddings_list_and_errors(
        self, berth: Installed, one: str
    ) -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{berth.endpoint}/v1", api_key="none", max_retries=0
        ) as client:
            messages: Any = [{"role": "user", "content": "hello"}]
            whole = await client.chat.completions.create(model=one, messages=messages, max_tokens=8)
            assert whole.choices[0].message.content
            text = ""
            async for chunk in await client.chat.completions.create(
                model=one, messages=messages, max_tokens=8, stream=True
            ):
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            assert text
            completion = await client.completions.create(model=one, prompt="Once", max_tokens=4)
            assert completion.choices[0].text
            assert one in [entry.id async for entry in client.models.list()]
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="nobody", messages=messages)

    async def test_embeddings_of_a_model_that_is_run_for_them(self, berth: Installed) -> None:
        name = berth.model("embed", overrides={"args": ["--embeddings", "--pooling", "mean"]})
        async with openai.AsyncOpenAI(base_url=f"{berth.endpoint}/v1", api_key="none") as client:
            answer = await client.embeddings.create(model=name, input=["a ship", "a harbour"])
        assert len(answer.data) == 2
        assert len(answer.data[0].embedding) == 640
        await asyncio.to_thread(berth.delete, name)


class TestRights:
    def test_no_program_was_ever_refused_a_right(self, berth: Installed) -> None:
        refused = [
            f"{entry['user']['username']} {entry['verb']} {entry['requestURI']}"
            for entry in berth.cluster.plane.audited()
            if entry.get("responseStatus", {}).get("code") == 403
            and entry["user"]["username"].startswith(f"system:serviceaccount:{NAMESPACE}:")
        ]
        assert refused == []
