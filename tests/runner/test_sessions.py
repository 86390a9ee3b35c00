"""Do sessions outlive an engine, and only for an engine of the same build?"""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from berth.runner.sessions import INDEX, Outcome, Sessions

TIMES = 1000


@dataclass
class Slots:
    """llama-server's slots: tokens by slot; a token takes ten bytes on the disk."""

    folder: Path
    tokens: dict[int, int]
    build: str = "b1-abc"
    fails: set[str] = field(default_factory=set)
    """Actions that are answered 500."""
    acted: list[str] = field(default_factory=list)

    def answer(self, path: str, body: dict) -> tuple[int, object]:
        if path == "/props":
            return 200, {"build_info": self.build}
        if path == "/slots":
            return 200, [{"id": slot} for slot in self.tokens]
        slot, _, action = path.removeprefix("/slots/").partition("?action=")
        self.acted.append(f"{action} {slot}")
        if action in self.fails:
            return 500, {"error": "no"}
        return 200, getattr(self, f"_{action}")(int(slot), self.folder / body["filename"])

    def _save(self, slot: int, path: Path) -> object:
        path.write_bytes(b"0123456789" * self.tokens[slot])
        return {"n_saved": self.tokens[slot], "n_written": path.stat().st_size}

    def _restore(self, slot: int, path: Path) -> object:
        self.tokens[slot] = path.stat().st_size // 10
        return {"n_restored": self.tokens[slot]}


@pytest.fixture
def engine(tmp_path):
    """An engine with two slots, one of them empty; its port."""
    slots = Slots(tmp_path / "sessions", {0: 7, 1: 0})
    slots.folder.mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            size = int(self.headers.get("Content-Length", 0))
            code, told = slots.answer(self.path, json.loads(self.rfile.read(size) or b"{}"))
            text = json.dumps(told).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    slots.port = server.server_address[1]
    yield slots
    server.shutdown()
    server.server_close()


def sessions(engine, *, limit=1 << 20, time_s=60.0):
    return Sessions(str(engine.folder), "127.0.0.1", engine.port, limit=limit, time_s=time_s)


def files(engine):
    return sorted(path.name for path in engine.folder.iterdir())


def test_what_was_said_is_there_again_after_the_engine(engine):
    assert sessions(engine).save() == Outcome(slots=1, tokens=7, size=70)
    assert files(engine) == [INDEX, "slot-0.bin"]
    engine.tokens = {0: 0, 1: 0}
    assert sessions(engine).restore() == Outcome(slots=1, tokens=7, size=70)
    assert engine.tokens == {0: 7, 1: 0}


def test_another_build_gets_nothing_and_the_files_go(engine):
    sessions(engine).save()
    engine.build, engine.acted = "b2-def", []
    assert sessions(engine).restore() == Outcome()
    assert (files(engine), engine.acted) == ([], [])


def test_a_save_that_was_killed_halfway_restores_nothing(engine):
    (engine.folder / "slot-0.new").write_bytes(b"half")
    (engine.folder / "slot-1.bin").write_bytes(b"whole, but nobody knows of which build")
    assert sessions(engine).restore() == Outcome()
    assert files(engine) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="no JSON"),
        pytest.param("[]", id="no object"),
        pytest.param('{"build": "b1-abc"}', id="no slots"),
        pytest.param(
            '{"build": "b1-abc", "slots": {"../../etc": {"size": 1}}}', id="no slot's name"
        ),
    ],
)
def test_an_index_that_means_nothing_restores_nothing(engine, text):
    (engine.folder / INDEX).write_text(text)
    assert sessions(engine).restore() == Outcome()
    assert files(engine) == []


def test_a_slot_that_the_engine_has_no_more_is_left_alone(engine):
    engine.tokens = {0: 7, 1: 3}
    sessions(engine).save()
    engine.tokens, engine.acted = {0: 0}, []
    assert sessions(engine).restore() == Outcome(slots=1, tokens=7, size=70)
    assert engine.acted == ["restore 0"]


def test_what_has_no_room_is_not_kept(engine):
    engine.tokens = {0: 7, 1: 9}
    found = sessions(engine, limit=100).save()
    assert found == Outcome(slots=1, tokens=7, size=70, problem="no room for slot 1")
    assert files(engine) == [INDEX, "slot-0.bin"]


def test_an_engine_that_cannot_save_keeps_nothing_and_that_is_said(engine):
    engine.fails = {"save"}
    found = sessions(engine).save()
    assert found == Outcome(problem="/slots/0?action=save answered 500")
    assert files(engine) == []


def test_a_restore_that_fails_is_said_and_the_engine_serves_all_the_same(engine):
    sessions(engine).save()
    engine.fails = {"restore"}
    assert sessions(engine).restore().problem == "/slots/0?action=restore answered 500"


def test_no_time_left_saves_nothing_more(engine):
    clock = iter([0.0, *(100.0 for _ in range(TIMES))])
    found = sessions(engine, time_s=60).save(lambda: next(clock))
    assert (found.slots, engine.acted) == (0, [])
    assert found.problem.startswith("no time left")


def test_an_engine_that_is_gone_is_no_crash(engine):
    gone = Sessions(str(engine.folder), "127.0.0.1", 1, limit=1, time_s=1)
    assert gone.save().problem.startswith("/props: ")
    assert gone.restore() == Outcome()
