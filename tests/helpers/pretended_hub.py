"""As much of the hub's protocol as its client speaks for lists of files and for files, on this machine."""

import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote

LIST = re.compile(r"/api/models/([^/]+/[^/]+?)(?:/revision/([^/]+))?")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
PRIVATE, GATED, CUT = "private", "gated", "cut"  # in names of repositories: what else they need, or break off


class PretendedHub(ThreadingHTTPServer):
    """A hub with files by repository and revision, and what it was asked: method, path and range."""

    daemon_threads = True

    def __init__(self, repositories: dict[str, dict[str, dict[str, bytes]]]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories, self.asked = repositories, list[tuple[str, str, str | None]]()
        self.address = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "PretendedHub":
        Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_HEAD(self) -> None:
        """A list of files or a file, or why not."""
        path, span = unquote(self.path.partition("?")[0]), self.headers.get("Range")
        self.server.asked.append((self.command, path, span))
        match = LIST.fullmatch(path) or FILE.fullmatch(path)
        repository, revision, file = (*match.groups(), None)[:3] if match else (PRIVATE, "", None)
        revisions = self.server.repositories.get(repository)
        files, commit = (revisions or {}).get(revision or "main"), hashlib.sha1(f"{revision}".encode()).hexdigest()
        if PRIVATE in repository:
            self.send(401)
        elif files is None:
            self.send(404, about={"X-Error-Code": "RevisionNotFound" if revisions else "RepoNotFound"})
        elif file is None:
            names = [{"rfilename": name} for name in files]
            self.send(200, json.dumps({"id": repository, "sha": commit, "siblings": names}).encode())
        elif GATED in repository:
            self.send(403, about={"X-Error-Code": "GatedRepo"})
        else:
            content, start = files[file], int((span or "bytes=0-")[6:-1])
            about = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
            about["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            half = len(content) // 2 if CUT in repository and not span else None
            self.send(206 if span else 200, content[start:], about, half)

    do_GET = do_HEAD

    def send(self, status: int, body: bytes = b"", about: dict[str, str] | None = None, sent: int | None = None):
        """Send an answer, or only so many bytes of it."""
        self.send_response(status)
        for name, text in {**(about or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:sent])

    def log_message(self, *_: object) -> None: ...
