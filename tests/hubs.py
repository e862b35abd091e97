"""Stand-ins of ModelScope and Hugging Face on 127.0.0.1: the routes their clients call, and faults on demand.

Shapes of the answers: ModelScope's `/api/v1/models/<repo>/repo/files`, `/repo` and `/revisions`; Hugging
Face's `/api/models/<repo>/revision/<revision>?blobs=true` and `/<repo>/resolve/<revision>/<file>`, as their
clients (modelscope-hub 0.5.1, huggingface_hub 2.4.0) read them. As on the real hubs large files come by a
redirect to another address, which resumes with 206; ModelScope itself resumes with 200 and Content-Range.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REPO = "Qwen/Tiny-Instruct"
COMMIT = "5" * 40
LARGE = (".safetensors", ".bin")


@dataclass
class Request:
    """What came in: the path without its query, the offset asked for; and the bytes sent back."""

    path: str
    start: int
    agent: str
    authorization: str | None
    sent: int = 0


@dataclass
class Hub:
    """A stand-in's contents and faults.

    cuts: for a file, after how many bytes each answer in turn breaks off. statuses: an answer for a path part
    ("files", "revision", a file's name), so often. lies: other contents than the listed hash belongs to.
    silent: set when a file is asked for from its middle; it then never comes.
    """

    files: dict[str, bytes]
    repo: str = REPO
    revisions: tuple[str, ...] = ("master", "main", "v1.0", COMMIT)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    lies: dict[str, bytes] = field(default_factory=dict)
    page: bytes | None = None
    extra: list[dict[str, Any]] = field(default_factory=list)
    token: str | None = None
    resumes: bool = True
    delay: float = 0.0
    trickle: float = 0.0
    silent: threading.Event | None = None
    empty_for_unknown: bool = False
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    cdn: str = ""

    def of(self, name: str) -> list[Request]:
        """The requests that got bytes of the file `name`."""
        return [r for r in self.requests if r.path.endswith(f"/{name}") and r.path.startswith("/cdn/")]

    def sent(self, name: str) -> int:
        """The bytes of the file `name` that left the server."""
        return sum(r.sent for r in self.of(name))


def serve(hub: Hub) -> ThreadingHTTPServer:
    """Start the stand-in; `hub.url` is its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    return server


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, parts = self.hub, urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        path = unquote(parts.path)
        asked = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0]
        self.request_ = Request(
            path, int(asked), self.headers.get("User-Agent", ""), self.headers.get("Authorization")
        )
        hub.requests.append(self.request_)
        time.sleep(hub.delay)
        name = query.get("FilePath", path.rsplit("/", 1)[-1])
        if statuses := hub.statuses.get(name):
            return self._json({"Code": 1, "Message": "no"}, statuses.pop(0))
        if hub.page is not None:
            return self._body(hub.page, 200, {"Content-Type": "text/html"})
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}" and "/cdn/" not in path:
            return self._json({"Code": 1, "Message": "log in"}, 401)
        if path.startswith("/cdn/"):
            return self._file(path.removeprefix("/cdn/"), direct=False)
        if path.startswith("/api/v1/models/"):
            return self._modelscope(path.removeprefix("/api/v1/models/"), query)
        return self._hugging_face(path, query)

    def _modelscope(self, path: str, query: dict[str, str]) -> None:
        hub = self.hub
        if not path.startswith(f"{hub.repo}/"):
            return self._json({"Code": 10010205001, "Message": "record not found", "Success": False}, 404)
        route, known = path.removeprefix(f"{hub.repo}/"), query.get("Revision") in hub.revisions
        if route == "revisions":
            branches = [{"Revision": name, "CreatedAt": 1} for name in hub.revisions]
            return self._json({"Code": 200, "Data": {"RevisionMap": {"Branches": branches, "Tags": []}}})
        if not known and not hub.empty_for_unknown:
            return self._json({"Code": 10010205001, "Message": "no such revision", "Success": False}, 404)
        if route == "repo/files":
            entries = [
                {
                    "Name": n,
                    "Path": n,
                    "Size": len(d),
                    "Sha256": hashlib.sha256(d).hexdigest(),
                    "Type": "blob",
                }
                for n, d in hub.files.items()
            ]
            folder = [{"Name": "onnx", "Path": "onnx", "Size": 0, "Sha256": "", "Type": "tree"}]
            return self._json(
                {"Code": 200, "Data": {"Files": (folder + entries + hub.extra) if known else []}}
            )
        return self._large_or_small(query["FilePath"])

    def _hugging_face(self, path: str, query: dict[str, str]) -> None:
        hub = self.hub
        if path.startswith("/api/models/"):
            repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            if repo != hub.repo:
                return self._json({"error": "no"}, 404, {"X-Error-Code": "RepoNotFound"})
            if revision not in hub.revisions:
                return self._json({"error": "no"}, 404, {"X-Error-Code": "RevisionNotFound"})
            siblings = [self._sibling(name, data) for name, data in hub.files.items()]
            return self._json({"id": repo, "sha": COMMIT, "siblings": siblings + hub.extra})
        repo, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        if repo != hub.repo or revision != COMMIT or name not in hub.files:
            return self._json({"error": "no"}, 404, {"X-Error-Code": "EntryNotFound"})
        return self._large_or_small(name)

    @staticmethod
    def _sibling(name: str, data: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_blob(data)}
        if name.endswith(LARGE):
            sha256 = hashlib.sha256(data).hexdigest()
            entry |= {"blobId": "0" * 40, "lfs": {"sha256": sha256, "size": len(data), "pointerSize": 134}}
        return entry

    def _large_or_small(self, name: str) -> None:
        if name not in self.hub.files:
            return self._json({"Code": 404, "Message": "no such file"}, 404)
        if name.endswith(LARGE):
            return self._body(b"", 302, {"Location": f"{self.hub.cdn or self.hub.url}/cdn/{name}"})
        self.request_.path = f"/cdn/{name}"  # counted under one name however it is reached
        return self._file(name, direct=True)

    def _file(self, name: str, direct: bool) -> None:
        hub, start = self.hub, self.request_.start
        data = hub.lies.get(name, hub.files[name])
        if not hub.resumes:
            start = 0
        ranged = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        cuts = hub.cuts.get(name)
        status = 206 if ranged and not direct else 200
        self._body(data[start:], status, ranged | hub.headers, cuts.pop(0) if cuts else None)

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._body(
            json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})}
        )

    def _body(
        self, data: bytes, status: int, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        whole = data if cut is None else data[:cut]
        if self.hub.silent is not None and self.request_.start:
            self.hub.silent.set()
            time.sleep(600)
        slow = self.hub.trickle if self.request_.path.startswith("/cdn/") else 0.0
        step = 1 if slow else 65_536
        for begin in range(0, len(whole), step):
            piece = whole[begin : begin + step]
            try:
                self.wfile.write(piece)
            except OSError:  # the client has gone
                self.close_connection = True
                return
            self.request_.sent += len(piece)
            time.sleep(slow)
        if cut is not None:
            self.close_connection = True
