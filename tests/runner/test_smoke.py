"""Is a streamed answer what it must be? Each API's way to speak and to end."""

import http.server
import threading

import pytest

from berth.runner.smoke import SmokeTest, smoke_fault

CHAT = b'data: {"choices":[{"delta":{"content":"Hello "}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWERS = [
    pytest.param(CHAT + DONE, "", id="chat"),
    pytest.param(
        b'data: {"choices":[{"delta":{"reasoning_content":"Well, hello"}}]}\n\n' + DONE, "",
        id="a model that thinks first",
    ),
    pytest.param(b'data: {"choices":[{"text":"hello"}]}\n\n' + DONE, "", id="completions"),
    pytest.param(
        b'event: x\ndata: {"type":"response.output_text.delta","delta":"hello"}\n\n'
        b'data: {"type":"response.completed"}\n\n', "", id="responses",
    ),
    pytest.param(
        b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"hello"}}\n\n'
        b'data: {"type":"message_stop"}\n\n', "", id="messages",
    ),
    pytest.param(CHAT, "the stream of /x ended in the middle, after 6 characters", id="cut"),
    pytest.param(DONE, "the answer of /x is empty", id="no text"),
    pytest.param(
        b'data: {"error":{"message":"no slot"}}\n\n', "/x answered with an error: {'message': 'no slot'}",
        id="an error event",
    ),
    pytest.param(b"not a stream", "the stream of /x ended in the middle, after 0 characters", id="no stream"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "want"), ANSWERS)
def test_an_answer_is_judged_by_its_words_and_its_end(answer, want):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        test = SmokeTest("/x", "{}", expect="HELLO" if not want else "", timeout_s=10)
        assert smoke_fault(test, "127.0.0.1", server.server_address[1]) == want


def test_nobody_listens():
    fault = smoke_fault(SmokeTest("/x", "{}", timeout_s=1), "127.0.0.1", 1)
    assert fault.startswith("/x broke off: ConnectionRefusedError")
