"""A server that answers /v1/completions with known delays, refuses, or breaks off: what a load generator must see."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StubServer:
    """Attributes:
    first_s, between_s: before the first piece, between pieces. pieces: of an answer.
    refuse_above: requests at once that are answered; others get 429.
    break_at: number of requests (from 1) whose answer ends early.
    """

    def __init__(self, *, first_s=0.05, between_s=0.02, pieces=5, refuse_above=10**9, break_at=()):
        self.first_s, self.between_s, self.pieces = first_s, between_s, pieces
        self.refuse_above, self.break_at = refuse_above, set(break_at)
        self.bodies: list[dict] = []
        self.keys: list[str | None] = []
        self.running = self.most = 0
        self._lock = threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def _send(self, status, text, kind="application/json"):
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                stub.keys.append(self.headers.get("Authorization"))
                self._send(200, json.dumps({"data": [{"id": "stub"}]}))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stub._lock:
                    stub.bodies.append(body)
                    number = len(stub.bodies)
                    stub.running += 1
                    stub.most = max(stub.most, stub.running)
                    full = stub.running > stub.refuse_above
                try:
                    if full:
                        return self._send(429, json.dumps({"error": {"message": "full"}}))
                    self._stream(body, number)
                finally:
                    with stub._lock:
                        stub.running -= 1

            def _stream(self, body, number):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                time.sleep(stub.first_s)
                for place in range(stub.pieces):
                    if place:
                        time.sleep(stub.between_s)
                    self._event({"choices": [{"text": f"w{place} "}]})
                    if number in stub.break_at and place == 1:
                        self.close_connection = True
                        return
                self._event({"choices": [{"text": "", "finish_reason": "length"}]})
                self._event({"choices": [], "usage": {"prompt_tokens": len(body["prompt"].split()),
                                                      "completion_tokens": stub.pieces}})  # fmt: skip
                self.wfile.write(b"data: [DONE]\n\n")
                self.close_connection = True

            def _event(self, value):
                self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
                self.wfile.flush()

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
