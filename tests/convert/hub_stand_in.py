"""A local server for the part of the Hugging Face Hub's protocol that the tests use through huggingface_hub."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN, USER, TEAM = "hf_of-ada", "ada", "team"
LARGE = 4096  # bytes from which a file is uploaded by git-lfs


class Repository:
    """A repository: its files by commit, the last of which is `main`, and the metadata of its README (`card`)."""

    def __init__(self, private: bool = False, *, gated: bool = False, card: dict | None = None) -> None:
        self.private, self.gated, self.card = private, gated, card or {}
        self.commits: dict[str, dict[str, bytes]] = {}

    def commit(self, files: dict[str, bytes]) -> str:
        """Add files to those of the last commit; returns the name of the new commit."""
        tree = (list(self.commits.values()) or [{}])[-1] | files
        name = hashlib.sha1(json.dumps([len(self.commits), *sorted(tree)]).encode()).hexdigest()
        self.commits[name] = tree
        return name

    def resolve(self, revision: str) -> str | None:
        """Resolve `main` or a (shortened) name of a commit to its full name."""
        if revision == "main":
            return list(self.commits)[-1]
        return next((name for name in self.commits if name.startswith(revision)), None)


class Hub(ThreadingHTTPServer):
    """The server. `asked` has the method and path of every request, `sent` (path, bytes) of every file or part sent.

    Data sets are repositories named `datasets/OWNER/NAME`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.uploaded: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.sent: list[tuple[str, int]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The value of HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, folder: Path, only: tuple[str, ...] = (), **more: bytes) -> str:
        """Commit the files of a folder, or `only` some of them, and `more`; returns the name of the commit."""
        files = {path.name: path.read_bytes() for path in folder.iterdir() if not only or path.name in only}
        return self.repositories.setdefault(name, Repository()).commit(files | more)

    def downloaded(self) -> set[str]:
        """The names of the files whose content was sent."""
        return {line.rpartition("/")[2] for line in self.asked if line.startswith("GET") and "/resolve/" in line}


def _about(content: bytes) -> dict:
    """The Hub's metadata of a file: its size, its git object and, for a large one, its SHA-256."""
    about: dict = {"size": len(content), "blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}
    if len(content) >= LARGE:
        about["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return about


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._get(body=False)

    def do_GET(self) -> None:
        self._get(body=True)

    def do_PUT(self) -> None:
        oid, content = self.path.rpartition("/")[2], self._content()
        good = hashlib.sha256(content).hexdigest() == oid
        self.server.uploaded[oid] = content
        self._send(200 if good else 400)

    def do_POST(self) -> None:
        path, content = self._record_request(), self._content()
        if not self._authorized():
            self._refuse(401, "", "Invalid username or password.")
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self._create(json.loads(content))
        elif match := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            files = json.loads(content)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "lfs" if f["size"] >= LARGE else "regular", "shouldIgnore": False}
                for f in files
            ]
            self._json({"files": modes})
        elif match := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            self._json(
                {"transfer": "basic", "objects": [self._upload_actions(one) for one in json.loads(content)["objects"]]}
            )
        elif path == "/lfs/verify":
            upload = json.loads(content)
            self._send(200 if len(self.server.uploaded[upload["oid"]]) == upload["size"] else 400)
        elif match := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            self._commit(match[1], [json.loads(line) for line in content.splitlines()])
        else:
            self._refuse(404, "", f"no such endpoint: {path}")

    def _get(self, body: bool) -> None:
        path = self._record_request()
        if path == "/api/whoami-v2":
            if not self._authorized():
                return self._refuse(401, "", "Invalid credentials in Authorization header")
            return self._json({"type": "user", "name": USER, "orgs": [{"name": TEAM, "type": "org"}], "auth": {}})
        if match := re.fullmatch(r"/api/(?:models|(datasets))/(.+?)/tree/([^/]+)(?:/(.+))?", path):
            name = f"datasets/{match[2]}" if match[1] else match[2]
            return self._tree(name, unquote(match[3]), unquote(match[4] or ""))
        if match := re.fullmatch(r"/api/datasets/(.+)/auth-check", path):
            repository = self.server.repositories[f"datasets/{match[1]}"]
            is_open = not repository.gated or self._authorized()
            return self._send(200) if is_open else self._refuse(403, "GatedRepo", "Access is restricted")
        if match := re.fullmatch(r"/api/(?:models|(datasets))/(.+?)(?:/revision/(.+))?", path):
            name, revision, file = match[2], unquote(match[3] or "main"), None
            name = f"datasets/{name}" if match[1] else name
        elif match := re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", path):
            name, revision, file = match[1], unquote(match[2]), match[3]
        else:
            return self._refuse(404, "", f"no such endpoint: {path}")
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and not self._authorized()):
            return self._refuse(404, "RepoNotFound", "Repository not found")  # the Hub answers both cases alike
        if (commit := repository.resolve(revision)) is None:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repository.commits[commit]
        if file is None:
            siblings = [
                {"rfilename": one} | (_about(files[one]) if "blobs" in self.path else {}) for one in sorted(files)
            ]
            about = {"id": name.removeprefix("datasets/"), "sha": commit, "siblings": siblings}
            about |= {"private": repository.private, "gated": repository.gated and "auto", "cardData": repository.card}
            return self._json(about)
        if file not in files:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(files[file]).hexdigest()}"'}
        if part := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or ""):
            start, end = int(part[1]), int(part[2]) + 1
            self.server.sent.append((f"{name}/{file}", len(files[file][start:end])))
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(files[file])}"
            return self._send(206, files[file][start:end], headers, body)
        if body:
            self.server.sent.append((f"{name}/{file}", len(files[file])))
        return self._send(200, files[file], headers, body)

    def _tree(self, name: str, revision: str, folder: str) -> None:
        repository = self.server.repositories[name]
        files = repository.commits[repository.resolve(revision) or ""]
        inside = [path for path in files if path.startswith(f"{folder}/" if folder else "")]
        if not inside:
            return self._refuse(404, "EntryNotFound", f"{folder} does not exist")
        below = f"{folder}/" if folder else ""
        entries: dict[str, dict] = {}
        for path in inside:
            first, slash, _ = path.removeprefix(below).partition("/")
            if slash and "recursive=true" not in self.path.lower():
                entries[below + first] = {"type": "directory", "path": below + first, "oid": "0" * 40, "size": 0}
            else:
                about = _about(files[path])
                entries[path] = {"type": "file", "path": path, "oid": about["blobId"], "size": about["size"]}
        return self._json(list(entries.values()))

    def _create(self, request: dict) -> None:
        name = f"{request.get('organization') or USER}/{request['name']}"
        if name in self.server.repositories:
            return self._json({"error": "You already created this model repo", "url": f"{self.server.url}/{name}"}, 409)
        self.server.repositories[name] = Repository("private" in (request.get("visibility"), request.get("private")))
        self.server.repositories[name].commit({".gitattributes": b""})
        return self._json({"url": f"{self.server.url}/{name}"})

    def _upload_actions(self, about: dict) -> dict:
        url = self.server.url
        actions = {"upload": {"href": f"{url}/lfs/{about['oid']}"}, "verify": {"href": f"{url}/lfs/verify"}}
        return about | {"actions": actions}

    def _commit(self, name: str, lines: list[dict]) -> None:
        files = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.uploaded[value["oid"]]
        commit = self.server.repositories[name].commit(files)
        self._json({"success": True, "commitUrl": f"{self.server.url}/{name}/commit/{commit}", "commitOid": commit})

    def _record_request(self) -> str:
        path = urlsplit(self.path).path
        self.server.asked.append(f"{self.command} {path}")
        return path

    def _content(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _json(self, value: object, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._send(status, json.dumps({"error": message}).encode(), headers)

    def _send(
        self, status: int, content: bytes = b"", headers: dict[str, str] | None = None, body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(content)
