"""A web server on loopback: it serves a directory, counts what it sends, and misbehaves where told to."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


class Web(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, root: Path, certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.scheme = root, "http"
        if certificate is not None:  # with its private key in the same file
            context, self.scheme = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "https"
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.sent = 0  # bytes of contents
        self.asked: list[str] = []
        self.authorized: list[str] = []  # what was told to a proxy
        self.ended = threading.Event()
        # What goes wrong with the next requests of a file, by a part of its name; "always" repeats the last.
        self.faults: dict[str, list[str]] = {}

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}"

    def fault(self, name: str) -> str:
        for part, faults in self.faults.items():
            if part in name and faults:
                return faults[0] if faults[1:] == ["always"] else faults.pop(0)
        return ""


class _Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        name = urlsplit(self.path).path.lstrip("/")  # a proxy is asked for the whole address
        wanted = self.headers.get("Range", "")
        self.server.authorized += self.headers.get_all("Proxy-Authorization", [])
        self.server.asked.append(f"{name} {wanted}".strip())
        fault, path = self.server.fault(name), self.server.root / name
        if fault.startswith("leads"):
            self.send_response(302)
            self.send_header("Location", fault.removeprefix("leads to "))
            self.end_headers()
            with suppress(OSError):
                self._send(b"", "endless")
            return
        if fault.isdigit() or not path.is_file():
            self.send_error(int(fault or 404))
            return
        content = path.read_bytes()
        if fault in _CHANGES:
            content = _CHANGES[fault](content)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and "no range" not in fault else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if fault == "silent":
            self.server.ended.wait(30)
        if fault != "endless":
            self.send_header("Content-Length", str(len(content) - start))
        if fault == "encoded":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        with suppress(OSError):
            self._send(content[start:], fault)

    def _send(self, content: bytes, fault: str) -> None:
        if fault == "cut":
            content = content[: len(content) // 2]
        parts: Iterator[bytes] = iter([content])
        if fault == "endless":
            parts = (bytes(1 << 20) for _ in range(1 << 10))
        if fault == "slow":
            parts = (content[at : at + 1] for at in range(len(content)))
        for part in parts:
            self.server.sent += len(part)  # before whoever waits for it can look
            self.wfile.write(part)
            time.sleep(0.01 if fault == "slow" else 0)

    def log_message(self, *_: object) -> None:
        pass


_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "no range, page": lambda _: b"<html>please log in</html>",
    "short": lambda content: content[:-1],
    "long": lambda content: content + b"x",
    "replaced": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


@contextmanager
def served(root: Path, certificate: Path | None = None) -> Iterator[Web]:
    with Web(root, certificate) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
