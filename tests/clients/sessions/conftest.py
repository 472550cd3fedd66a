"""A service with sessions, written from its contract: its language model is a toy, what it keeps of sessions is not."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

Json = dict[str, Any]
Reply = tuple[int, Json | bytes | None]
BUNDLE = "b" * 64
DEFAULTS = {
    "state": "carried",
    "weights": "dynamic",
    "learn_from": "winner",
    "rate": 0.1,
    "tau": 1,
    "decay": 0.0,
    "max_loss_rise": 0.5,
}


class RefusedError(Exception):
    """A refusal: its status and problem document."""

    def __init__(self, status: int, name: str, detail: str, **more: Any) -> None:
        super().__init__(name)
        self.reply = status, {"type": f"/problems/{name}", "title": "No", "status": status, "detail": detail, **more}


class FakeSession:
    """What a session is: options, weights, and a log of what was accepted."""

    def __init__(self, identifier: str, options: Json, rescoring: Json) -> None:
        self.id, self.options, self.rescoring = identifier, options, rescoring
        self.version = 0
        self.log: dict[str, Json] = {}

    @property
    def tag(self) -> str:
        return f'"{self.version}"'

    def copy(self, identifier: str) -> "FakeSession":
        other = FakeSession(identifier, self.options, self.rescoring)
        other.version, other.log = self.version, json.loads(json.dumps(self.log))
        return other

    def exported(self) -> bytes:
        kept = {name: getattr(self, name) for name in ("options", "rescoring", "version", "log")}
        return b"exported:" + json.dumps({"bundle": BUNDLE, **kept}).encode()

    def description(self) -> Json:
        events = sum(len(entry["winner"].split()) + 1 for entry in self.log.values())
        perplexity = {"session": 8.0 if events else None, "static": 16.0 if events else None, "events": events}
        return {
            "id": self.id,
            "version": self.version,
            "bundle": BUNDLE,
            "options": self.options,
            "rescoring": {"lm_scale": 1.0, "interpolation": {"rnn": 1.0}, **self.rescoring},
            "utterances": len(self.log),
            "words_learnt": sum(self.learnt().values()),
            "lessons_undone": 0,
            "rank": 0,
            "bytes": 0,
            "perplexity": {"mixture": perplexity},
            "created": 0,
            "used": 0,
        }

    def learnt(self) -> Counter[str]:
        words: Counter[str] = Counter()
        if self.options["weights"] == "dynamic":
            for entry in self.log.values():
                if self.options["learn_from"] == "winner":
                    words.update((entry["winner"] if entry["confirmed"] is None else entry["confirmed"]).split())
                elif self.options["learn_from"] == "confirmed":
                    words.update((entry["confirmed"] or "").split())
        return words

    def result(self, utterance: Json, *, compact: bool) -> Json:
        """A word is worth -10, 3 more for each time it was learnt, 1 more where it stands in the carried text."""
        learnt, last = self.learnt(), ""
        if self.log and self.options["state"] == "carried":
            entry = list(self.log.values())[-1]
            last = entry["winner"] if entry["confirmed"] is None else entry["confirmed"]
        ranking = []
        for index, hypothesis in enumerate(utterance["hypotheses"]):
            words = hypothesis["text"].split()
            total = hypothesis["acoustic_score"] + sum(
                -10 + 3 * learnt[word] + (word in last.split()) for word in words
            )
            entry = {"index": index, "total": total, "posterior": 1 / len(utterance["hypotheses"])}
            ranking.append(entry if compact else {**entry, "text": hypothesis["text"], "scored_text": " ".join(words)})
        ranking.sort(key=lambda entry: -entry["total"])
        labels = {name: utterance[name] for name in ("session_id", "speaker") if name in utterance}
        best = utterance["hypotheses"][ranking[0]["index"]]["text"]
        return {"id": utterance["id"], **labels, "best_text": best, "ranking": ranking}


class FakeSessions:
    """The endpoints. calls: what was asked, in order; most: how many calls at once, in all and of one session."""

    def __init__(self) -> None:
        self.sessions: dict[str, FakeSession] = {}
        self.gone: dict[str, str] = {}
        self.calls: list[tuple[str, str, Json | bytes | None]] = []
        self.headers: list[dict[str, str]] = []
        self.most = {"all": 0, "one session": 0}
        self.meanwhile: Callable[[str, str], None] = lambda *_: None
        self._running: Counter[str] = Counter()
        self._lock = threading.RLock()

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        url = urlsplit(target)
        path = url.path[url.path.index("/v1/") :]
        octets = headers.get("content-type") == "application/octet-stream"
        document = (body if octets else json.loads(body)) if body else None
        parts = [unquote(part) for part in path.split("/")[2:]]
        name = parts[1] if len(parts) > 1 else ""
        with self._lock:
            self.calls.append((method, path, document))
            self.headers.append(headers)
            self._running[name] += 1
            self.most["all"] = max(self.most["all"], self._running.total())
            self.most["one session"] = max(self.most["one session"], self._running[name] if name else 0)
        try:
            self.meanwhile(method, path)
            with self._lock:
                return self._serve(method, parts[1:], headers, document, parse_qs(url.query))
        except RefusedError as refused:
            return refused.reply
        finally:
            with self._lock:
                self._running[name] -= 1

    @staticmethod
    def encoded(document: Json | bytes | None) -> tuple[str, bytes]:
        """Content type and body of a reply."""
        if document is None:
            return "text/plain", b""
        if isinstance(document, bytes):
            return "application/octet-stream", document
        kind = "application/problem+json" if "detail" in document else "application/json"
        return kind, json.dumps(document).encode()

    def paths(self, method: str, ending: str = "") -> list[str]:
        return [path for verb, path, _ in self.calls if verb == method and path.endswith(ending)]

    def _serve(self, method: str, parts: list[str], headers: dict[str, str], body: Any, query: Any) -> Reply:
        if not parts:
            return self._made(
                FakeSession(body["id"], {**DEFAULTS, **body.get("options", {})}, body.get("rescoring", {}))
            )
        if parts == ["import"]:
            return self._imported(query["id"][0], body)
        session, rest = self._found(parts[0]), tuple(parts[1:])
        if method != "GET" and rest != ("fork",) and headers.get("if-match", session.tag) != session.tag:
            raise RefusedError(409, "version-conflict", "somebody was quicker", version=session.version)
        if rest[:1] == ("utterances",) and method == "PUT":
            return self._confirm(session, rest[1], body["text"])
        calls: dict[Any, Callable[[FakeSession, Any], Reply]] = {
            ("GET",): lambda session, _: (200, session.description()),
            ("DELETE",): self._delete,
            ("POST", "rescore"): self._rescore,
            ("POST", "reset"): self._reset,
            ("POST", "fork"): lambda session, body: self._made(session.copy(body["id"])),
            ("GET", "export"): lambda session, _: (200, session.exported()),
        }
        return calls[method, *rest](session, body)

    def _found(self, identifier: str) -> FakeSession:
        if identifier in self.sessions:
            return self.sessions[identifier]
        if identifier in self.gone:
            raise RefusedError(410, f"session-{self.gone[identifier]}", "make another")
        raise RefusedError(404, "unknown-session", "there never was one")

    def _made(self, session: FakeSession) -> Reply:
        if session.id in self.sessions:
            raise RefusedError(409, "session-exists", "pick another id")
        self.sessions[session.id] = session
        return 201, session.description()

    def _imported(self, identifier: str, body: bytes) -> Reply:
        if not body.startswith(b"exported:"):
            raise RefusedError(422, "corrupt-snapshot", "the header is broken")
        kept = json.loads(body.removeprefix(b"exported:"))
        if kept["bundle"] != BUNDLE:
            raise RefusedError(409, "foreign-bundle", "it was made with cccc")
        made = FakeSession(identifier, kept["options"], kept["rescoring"])
        made.version, made.log = kept["version"], kept["log"]
        return self._made(made)

    def _delete(self, session: FakeSession, _: Any) -> Reply:
        self.gone[session.id] = "deleted"
        del self.sessions[session.id]
        return 204, None

    def _reset(self, session: FakeSession, _: Any) -> Reply:
        session.version, session.log = session.version + 1, {}
        return 200, session.description()

    def _confirm(self, session: FakeSession, utterance: str, text: str) -> Reply:
        if utterance not in session.log:
            raise RefusedError(404, "unknown-utterance", "it was never rescored")
        if session.log[utterance]["confirmed"] != text:
            session.log[utterance]["confirmed"] = text
            session.version += 1
        return 200, session.description()

    def _rescore(self, session: FakeSession, body: Json) -> Reply:
        identifier = body["utterance"]["id"]
        if (entry := session.log.get(identifier)) is not None:
            if entry["request"] != body:
                raise RefusedError(409, "utterance-conflict", "pick another utterance id")
            return 200, {**entry["answer"], "repeated": True}
        result = session.result(body["utterance"], compact=body.get("compact", False))
        session.version += 1
        lesson = {"learnt": True, "words": 1, "undone": False}
        answer = {"session": session.id, "version": session.version, "repeated": False, "lesson": lesson}
        answer |= {"bundle": BUNDLE, "result": result}
        winner = result["best_text"]
        session.log[identifier] = {"request": body, "answer": answer, "winner": winner, "confirmed": None}
        return 200, answer


class SessionServer:
    """The fake on a real socket. lost: of how many coming calls the work is done and the answer never sent."""

    def __init__(self, fake: FakeSessions) -> None:
        self.fake = fake
        self.lost: Callable[[str, str], bool] = lambda *_: False
        server = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, document = fake.answer(self.command, self.path, headers, body)
                if server.lost(self.command, self.path):
                    self.close_connection = True
                    return
                kind, content = fake.encoded(document)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = _answer  # noqa: N815 - the names are the standard library's
            do_POST = _answer  # noqa: N815 - as above
            do_PUT = _answer  # noqa: N815 - as above
            do_DELETE = _answer  # noqa: N815 - as above

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None: ...

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def fake() -> FakeSessions:
    return FakeSessions()


@pytest.fixture
def server(fake: FakeSessions) -> Iterator[SessionServer]:
    running = SessionServer(fake)
    yield running
    running.stop()
