"""The tests of Mino, and the practice mode.

    python -m pytest mino_test.py     runs the tests
    python mino_test.py               starts Mino against a practice service on this machine

Most tests use Mino as a person does: a real process under a real pseudo-terminal, in a temporary home, against
a scripted service on 127.0.0.1. Nothing here reads the real home directory, needs a network, or sleeps and hopes:
each wait is for something, has a bound, and fails with what the screen showed.

Contents
     1. The scripted service
     2. The streams it sends
     3. The home and its records
     4. The screen
     5. The terminal
     6. The captured streams
     7. The practice model
     8. Tests: the helpers themselves
     9. The practice mode
"""

from __future__ import annotations

import codecs
import fcntl
import http.server
import itertools
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import termios
import threading
import time
import traceback
import unicodedata
import uuid
import zlib
from collections import deque
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Match, NamedTuple, Optional, Tuple, Union

import pytest

HERE = Path(__file__).resolve().parent
MINO = HERE / "mino.py"
PATIENCE = 10.0  # seconds; what a wait may take before it fails
HOLD_LIMIT = 60.0  # seconds; a service thread held longer than this gives up, and the test fails


# ---- 1. The scripted service --------------------------------------------------------------------------------------
# A Responses service on loopback that answers each request with the next reply of its script and keeps the request.
# A reply says what is sent, in what framing, and where the service stops until the test lets it go on.
# A request without a reply gets a 500 and fails the test when the service ends. A client that goes away is no error.


class Request(NamedTuple):
    """One request as it arrived; `body` is None where `raw` is not JSON."""

    path: str
    headers: Any  # http.client.HTTPMessage: names in any case
    body: Any
    raw: bytes


class Cut(NamedTuple):
    """An end of the connection in the middle of a reply: plain, or with a reset."""

    reset: bool


CUT, RESET = Cut(False), Cut(True)


class Hold:
    """A point in a reply where the service waits for `release()`."""

    def __init__(self) -> None:
        """Make a closed hold."""
        self.reached = threading.Event()  # the service is here
        self.left = threading.Event()  # the client went away while the service was here
        self._open = threading.Event()

    def release(self) -> None:
        """Let the service go on, now or when it comes here."""
        self._open.set()

    def wait(self, timeout: float = PATIENCE) -> None:
        """Wait until the service is here."""
        assert self.reached.wait(timeout), f"the service did not reach the hold in {timeout:g} s"

    def wait_left(self, timeout: float = PATIENCE) -> None:
        """Wait until the client has gone away while the service was here."""
        assert self.left.wait(timeout), f"the client did not go away in {timeout:g} s"

    def _stand(self, connection: socket.socket) -> None:
        """Wait for the release; raises OSError when the client goes first, AssertionError after the bound."""
        self.reached.set()
        end = time.monotonic() + HOLD_LIMIT
        while not self._open.wait(0.01):
            if _is_gone(connection):
                self.left.set()
                raise ConnectionResetError("the client went away")
            if time.monotonic() > end:
                raise AssertionError(f"a hold was not released in {HOLD_LIMIT:g} s")


def _is_gone(connection: socket.socket) -> bool:
    """Whether the other side has ended or reset the connection."""
    readable, _, _ = select.select([connection], [], [], 0)
    try:
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


Part = Union[bytes, Hold, Cut]


class Reply(NamedTuple):
    """What the service sends for one request; use `_replace` for variants.

    framing: "chunked", "close" (no length, the connection ends it) or "length". A header given as None is left out;
    a Content-Length given in `headers` is sent as it is, true or not.
    """

    parts: Iterable[Part] = ()
    status: int = 200
    headers: Optional[Dict[str, Optional[str]]] = None
    framing: str = "chunked"
    before: Optional[Hold] = None  # before the headers
    gzip: bool = False


Script = Union[Reply, Callable[[Request], Reply]]


class Service:
    """The scripted service: `with Service() as service: service.script(answer("Hello."))`."""

    def __init__(self, *replies: Script, otherwise: Optional[Script] = None) -> None:
        """Listen on a free port; `otherwise` is the reply when the script is at its end."""
        self.requests: List[Request] = []
        self.errors: List[str] = []  # not empty at the end: the test fails
        self._script = deque(replies)
        self._otherwise = otherwise
        self._changed = threading.Condition()
        self._holds: List[Hold] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.service = self
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> "Service":
        """Start to serve."""
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        """Stop; raises AssertionError for what went wrong, unless something else is on its way already."""
        for hold in self._holds:
            hold.release()
        self._server.shutdown()
        self._server.server_close()
        if kind is None:
            assert not self.errors, "\n".join(self.errors)

    def script(self, *replies: Script) -> None:
        """Add replies, one for each request to come."""
        with self._changed:
            self._script.extend(replies)

    def wait_for_requests(self, count: int, timeout: float = PATIENCE) -> Request:
        """Wait until `count` requests have arrived; returns the last of these."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.requests) >= count, timeout)
            assert arrived, f"{len(self.requests)} of {count} requests arrived in {timeout:g} s"
            return self.requests[count - 1]

    def _reply(self, request: Request) -> Reply:
        """Remember the request and take its reply from the script."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
            reply = self._script.popleft() if self._script else self._otherwise
        if reply is None:
            self.errors.append(f"no reply scripted for request {len(self.requests)}: {request.raw[-300:]!r}")
            return problem(500, "no reply scripted")
        return reply(request) if callable(reply) else reply

    def _serve(self, handler: "_Handler", request: Request) -> None:
        """Answer one request; raises OSError when the client is gone."""
        reply = self._reply(request)
        if reply.before is not None:
            self._stand(handler, reply.before)
        parts = _squeezed(reply.parts) if reply.gzip else reply.parts
        headers: Dict[str, Optional[str]] = {"Content-Type": "text/event-stream"}
        if reply.gzip:
            headers["Content-Encoding"] = "gzip"
        if reply.framing == "length":
            parts = list(parts)
            headers["Content-Length"] = str(sum(len(part) for part in parts if isinstance(part, bytes)))
        else:
            headers.update({"Transfer-Encoding": "chunked"} if reply.framing == "chunked" else {"Connection": "close"})
        headers.update(reply.headers or {})
        handler.send_response_only(reply.status)
        for name, value in headers.items():
            if value is not None:
                handler.send_header(name, value)
        handler.end_headers()
        for part in parts:
            if isinstance(part, Hold):
                self._stand(handler, part)
            elif isinstance(part, Cut):
                return handler.cut(part.reset)
            elif part:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if reply.framing == "chunked" else part)
        if reply.framing == "chunked":
            handler.wfile.write(b"0\r\n\r\n")

    def _stand(self, handler: "_Handler", hold: Hold) -> None:
        """Wait at a hold, which the end of the service releases too."""
        self._holds.append(hold)
        hold._stand(handler.connection)


class _Server(socketserver.ThreadingTCPServer):
    """A thread for each connection, none of which outlives the tests."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64
    service: Service

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error; anything else is one of the service."""
        if not isinstance(sys.exc_info()[1], OSError):
            self.service.errors.append(traceback.format_exc())


class _Handler(http.server.BaseHTTPRequestHandler):
    """Reads requests and hands them to the service."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        """Serve one request."""
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        try:
            self.server.service._serve(self, Request(self.path, self.headers, body, raw))
        except OSError:
            self.close_connection = True

    do_GET = do_POST

    def cut(self, reset: bool) -> None:
        """End the connection now."""
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _squeezed(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts gzip-encoded, each flushed so that it can be read at once."""
    squeeze = zlib.compressobj(wbits=31)
    for part in parts:
        yield squeeze.compress(part) + squeeze.flush(zlib.Z_SYNC_FLUSH) if isinstance(part, bytes) else part
    yield squeeze.flush()


# ---- 2. The streams it sends --------------------------------------------------------------------------------------
# Builders of output items, events and whole replies, in the shape the OpenAI service gives them.
# `answer`, `call` and `calls` are what most tests need; `events` is for those that leave out or bend something.
# Identifiers are fresh in each process, so that no two calls of a turn share one by accident.

_number = itertools.count(1)


def message_item(text: str, kind: str = "output_text", **fields: Any) -> Dict[str, Any]:
    """A message of the assistant with one part of text."""
    part = {"type": "refusal", "refusal": text} if kind == "refusal" else {
        "type": "output_text", "annotations": [], "logprobs": [], "text": text}
    return {"id": f"msg_{next(_number)}", "type": "message", "status": "completed", "role": "assistant",
            "content": [part], **fields}


def call_item(command: str, *, call_id: Optional[str] = None, name: str = "bash", arguments: Optional[str] = None,
              **fields: Any) -> Dict[str, Any]:
    """A call of bash; `arguments`, a JSON text, stands in for the command's own."""
    number = next(_number)
    return {"id": f"fc_{number}", "type": "function_call", "status": "completed",
            "call_id": call_id or f"call_{number}", "name": name,
            "arguments": _json({"command": command}) if arguments is None else arguments, **fields}


def reasoning_item(secret: str = "gAAAA-sealed-thought", **fields: Any) -> Dict[str, Any]:
    """Reasoning that only the service can read."""
    return {"id": f"rs_{next(_number)}", "type": "reasoning", "summary": [], "encrypted_content": secret, **fields}


def delta(text: str, output_index: int = 0, content_index: int = 0, kind: str = "output_text",
          **fields: Any) -> Dict[str, Any]:
    """The event that carries a fragment of text."""
    return {"type": f"response.{kind}.delta", "output_index": output_index, "content_index": content_index,
            "delta": text, **fields}


def item_done(item: Dict[str, Any], output_index: int = 0) -> Dict[str, Any]:
    """The event that closes one output item."""
    return {"type": "response.output_item.done", "output_index": output_index, "item": item}


def completed(*items: Dict[str, Any], **fields: Any) -> Dict[str, Any]:
    """The event that ends a response well; `fields` go into its `response`."""
    return {"type": "response.completed", "response": _response("completed", items, **fields)}


def failed(message: str, code: str = "server_error") -> Dict[str, Any]:
    """The event that ends a response with the service's own error."""
    return {"type": "response.failed",
            "response": _response("failed", (), error={"code": code, "message": message})}


def incomplete(reason: str, *items: Dict[str, Any]) -> Dict[str, Any]:
    """The event that ends a response early."""
    return {"type": "response.incomplete",
            "response": _response("incomplete", items, incomplete_details={"reason": reason})}


def events(*items: Dict[str, Any], chunks: Optional[Iterable[str]] = None) -> List[Dict[str, Any]]:
    """Every event of a response made of `items`; `chunks` cuts the text of the first message into fragments."""
    found: List[Dict[str, Any]] = [{"type": "response.created", "response": _response("in_progress", ())},
                                   {"type": "response.in_progress", "response": _response("in_progress", ())}]
    for index, item in enumerate(items):
        found.append({"type": "response.output_item.added", "output_index": index,
                      "item": {**item, "status": "in_progress", "content": []}})
        if item["type"] == "message":
            found.extend(_message_events(item, index, chunks))
            chunks = None
        elif item["type"] == "function_call":
            place = {"output_index": index, "item_id": item["id"]}
            found.append({"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]})
            found.append({"type": "response.function_call_arguments.done", **place, "arguments": item["arguments"]})
        found.append(item_done(item, index))
    found.append(completed(*items))
    return [{**event, "sequence_number": number} for number, event in enumerate(found)]


def _message_events(item: Dict[str, Any], index: int, chunks: Optional[Iterable[str]]) -> Iterator[Dict[str, Any]]:
    """The events between the opening and the close of a message."""
    for number, part in enumerate(item["content"]):
        place = {"item_id": item["id"], "output_index": index, "content_index": number}
        text = part.get("text", part.get("refusal"))
        yield {"type": "response.content_part.added", **place, "part": {**part, part["type"].split("_")[-1]: ""}}
        for chunk in (text,) if chunks is None else chunks:
            yield {"type": f"response.{part['type']}.delta", **place, "delta": chunk, "logprobs": []}
        yield {"type": f"response.{part['type']}.done", **place, part["type"].split("_")[-1]: text}
        yield {"type": "response.content_part.done", **place, "part": part}
        chunks = None


def _response(status: str, items: Iterable[Dict[str, Any]], **fields: Any) -> Dict[str, Any]:
    """The response object inside some events."""
    return {"id": f"resp_{next(_number)}", "object": "response", "created_at": 1796000000, "status": status,
            "error": None, "incomplete_details": None, "model": "tiny", "output": list(items), "store": False,
            "usage": {"input_tokens": 8, "output_tokens": 8, "total_tokens": 16}, **fields}


def _json(value: Any) -> str:
    """Compact JSON that keeps letters readable and lone surrogates as escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def sse(*found: Dict[str, Any]) -> bytes:
    """Events as they go over the wire, with an `event:` line where they have a type."""
    lines = [(f"event: {event['type']}\n" if "type" in event else "") + f"data: {_json(event)}\n\n" for event in found]
    return "".join(lines).encode("utf-8")


def stream(*found: Dict[str, Any], **fields: Any) -> Reply:
    """A reply of these events, each sent on its own; `fields` are those of Reply."""
    return Reply([sse(event) for event in found], **fields)


def answer(text: str, *, chunks: Optional[Iterable[str]] = None,
           items: Optional[List[Dict[str, Any]]] = None) -> Reply:
    """A complete answer; `items` are all its output items, where it has more than the one message."""
    return stream(*events(*([message_item(text)] if items is None else items), chunks=chunks))


def call(command: str, *, text: str = "", call_id: Optional[str] = None, name: str = "bash",
         arguments: Optional[str] = None) -> Reply:
    """A response that asks for one call, after some text where there is any."""
    item = call_item(command, call_id=call_id, name=name, arguments=arguments)
    return stream(*events(*([message_item(text)] if text else []), item))


def calls(commands: Iterable[str], *, text: str = "", reasoning: bool = False) -> Reply:
    """A response that asks for several calls, after sealed reasoning and text where wanted."""
    return stream(*events(*([reasoning_item()] if reasoning else []), *([message_item(text)] if text else []),
                          *[call_item(command) for command in commands]))


def problem(status: int, message: str, **headers: str) -> Reply:
    """An HTTP error as OpenAI words it; a header such as `Retry_After` is given with underscores."""
    named: Dict[str, Optional[str]] = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply([_json({"error": {"message": message, "type": "error"}}).encode()], status,
                 {"Content-Type": "application/json", **named}, "length")


# ---- 3. The home and its records ----------------------------------------------------------------------------------
# A home directory of a test's own, with a directory beside it to start Mino in, and builders of session records.
# Records are made without `v` and `seq`; `numbered` adds these, so that a session reads as a list of what happened.

TURN_A, TURN_B, TURN_C, TURN_D = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)
SESSION = "0123456789abcdef" * 2
KEY = "sk-test-0123456789"
Record = Dict[str, Any]


class Home:
    """`path` is the home, `work` the directory Mino is started in, `root` is ~/.mino."""

    def __init__(self, place: Path) -> None:
        """Make both directories in `place`."""
        self.place = place.resolve()
        self.path, self.work = self.place / "home", self.place / "work"
        self.root = self.path / ".mino"
        self.sessions = self.root / "sessions"
        self.config = self.root / "config.json"
        self.soul = self.root / "SOUL.md"
        self.path.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(exist_ok=True)

    def configure(self, url: str, key: str = KEY, model: str = "tiny") -> "Home":
        """Write complete settings."""
        self._make_root()
        text = json.dumps({"base_url": url, "api_key": key, "model": model}, indent=2) + "\n"
        _write_private(self.config, text.encode("utf-8"))
        return self

    def write_session(self, content: Union[bytes, Iterable[Record]], session_id: str = SESSION) -> Path:
        """Write a session file: bytes as they are, records one a line."""
        self._make_root()
        if not isinstance(content, bytes):
            content = "".join(_json(record) + "\n" for record in content).encode("utf-8")
        path = self.sessions / f"{session_id}.jsonl"
        _write_private(path, content)
        return path

    @property
    def session(self) -> Path:
        """The only session file."""
        found = [path for path in self.sessions.iterdir() if re.fullmatch(r"[0-9a-f]{32}\.jsonl", path.name)]
        assert len(found) == 1, f"{len(found)} session files: {sorted(path.name for path in found)}"
        return found[0]

    @property
    def recovery_copies(self) -> List[Path]:
        """The copies of damaged session files."""
        return sorted(self.sessions.glob("*-recovery-*.jsonl"))

    def records(self) -> List[Record]:
        """The records of the session."""
        return [json.loads(line) for line in self.session.read_bytes().split(b"\n")[:-1]]

    def kinds(self) -> List[str]:
        """The kinds of the records of the session, a result or an end with its status."""
        return [" ".join(filter(None, (record["kind"], record.get("status"), record.get("result", {}).get("status"))))
                for record in self.records()]

    def _make_root(self) -> None:
        """Make ~/.mino and its sessions, private."""
        for path in (self.root, self.sessions):
            path.mkdir(mode=0o700, exist_ok=True)


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    path.write_bytes(content)
    path.chmod(0o600)


def user(text: str, turn: str = TURN_A) -> Record:
    """The question that begins a turn."""
    return {"turn_id": turn, "kind": "user_message", "text": text}


def response(*items: Dict[str, Any], text: Optional[str] = None, turn: str = TURN_A) -> Record:
    """A complete response; `text` is that of its messages unless given."""
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    said = "".join(part.get("text", part.get("refusal", "")) for part in parts) if text is None else text
    return {"turn_id": turn, "kind": "model_response", **({"text": said} if said else {}),
            **({"output": list(items)} if items else {})}


def start(call_id: str, command: str, turn: str = TURN_A, *, cwd: str = "/", name: str = "bash") -> Record:
    """An approved call, before its process."""
    return {"turn_id": turn, "kind": "tool_start", "call_id": call_id, "name": name,
            "arguments": {"command": command}, "cwd": cwd}


def result(call_id: str, status: str, output: str = "", turn: str = TURN_A, **fields: Any) -> Record:
    """What became of a call; `fields` are exit_code and truncated."""
    return {"turn_id": turn, "kind": "tool_result", "call_id": call_id,
            "result": {"status": status, "output": output, **fields}}


def end(status: str = "completed", turn: str = TURN_A) -> Record:
    """The end of a turn."""
    return {"turn_id": turn, "kind": "turn_end", "status": status}


def ack(turn: str = TURN_A) -> Record:
    """The user's word that the turn's unknown commands may have run."""
    return {"turn_id": turn, "kind": "recovery_ack"}


def exchange(question: str, reply: str, turn: str = TURN_A) -> List[Record]:
    """A completed turn of one question and one answer."""
    return [user(question, turn), response(message_item(reply), turn=turn), end("completed", turn)]


def numbered(*records: Record, v: int = 2, first: int = 1) -> List[Record]:
    """The records with version and sequence number, as they stand in a file."""
    return [{"v": v, "seq": number, **record} for number, record in enumerate(records, first)]


# ---- 4. The screen ------------------------------------------------------------------------------------------------
# As much of an xterm as a shell-like program needs: what has been printed, in columns and rows, scrolled lines
# included. A character in the last column leaves the cursor there until the next one wraps (as in xterm), and East
# Asian characters and emoji take two columns. Colours and modes are skipped; `unknown` lists what it can't do.

_TOKEN = re.compile(r"\x1b\[([0-?]*)([ -/]*)([@-~])"  # a control sequence
                    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a title and the like
                    r"|\x1b[()*+#%][\s\S]|\x1b[^\[\]()*+#%]|[\s\S]")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[()*+#%])?\Z")


def width(character: str) -> int:
    """How many columns a printable character takes: 0, 1 or 2."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Screen:
    """A terminal of `cols` columns and `rows` rows; feed it bytes, read its text."""

    def __init__(self, cols: int = 80, rows: int = 24) -> None:
        """Begin empty, with the cursor in the corner."""
        self.cols, self.rows = cols, rows
        self.lines: List[List[str]] = [[]]  # all of them; a wide character is followed by an empty cell
        self.top = 0  # the line that is the first row of the screen
        self.line = self.column = 0  # the cursor; `line` counts from the first of all lines
        self.wraps = False  # the last column was just written
        self.unknown: List[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> str:
        """Take what a program wrote, split anywhere; returns its plain text, without returns and bells."""
        text = self._rest + self._decoder.decode(data)
        cut = _UNFINISHED.search(text)
        self._rest = cut[0] if cut else ""
        plain: List[str] = []
        for token in _TOKEN.finditer(text[:cut.start()] if cut else text):
            if token[3]:
                self._control(token[3], token[1])
            elif len(token[0]) == 1:
                self._character(token[0])
                plain.append(token[0])
        return "".join(plain).replace("\r", "").replace("\a", "")

    def text(self) -> str:
        """All lines, without trailing blanks."""
        return "\n".join("".join(cells).rstrip(" ") for cells in self.lines).rstrip("\n")

    def resize(self, cols: int, rows: int) -> None:
        """Take another size; what was printed is not wrapped anew."""
        self.cols, self.rows = cols, rows
        self.top = max(self.top, self.line - rows + 1)
        self.column, self.wraps = min(self.column, cols - 1), False

    def _character(self, character: str) -> None:
        """Print one character, or do what a control character says."""
        if character == "\n":
            self._feed_line()
        elif character == "\r":
            self._go(self.line, 0)
        elif character == "\b":
            self._go(self.line, self.column - 1)
        elif character == "\t":
            self._go(self.line, (self.column // 8 + 1) * 8)
        elif character >= " " and not "\x7f" <= character < "\xa0":
            self._print(character, width(character))

    def _print(self, character: str, columns: int) -> None:
        """Put a character at the cursor; one without width joins the one before."""
        if columns == 0:
            cells = self._cells(self.column)
            at = self.column if self.wraps else self.column - 1
            while at > 0 and not cells[at]:
                at -= 1
            if at >= 0:
                cells[at] += character
            return
        if self.wraps or self.column + columns > self.cols:
            self._feed_line()
            self.column = 0
        end = self.column + columns
        cells = self._cells(end)
        self._split(cells, self.column)
        self._split(cells, end)
        cells[self.column:end] = [character] + [""] * (columns - 1)
        self._go(self.line, end)
        self.wraps = end == self.cols

    def _split(self, cells: List[str], column: int) -> None:
        """Blank a wide character of which `column` is the second half."""
        if 0 < column < len(cells) and not cells[column]:
            cells[column - 1] = cells[column] = " "

    def _cells(self, length: int) -> List[str]:
        """The line of the cursor, filled with blanks to `length`."""
        cells = self.lines[self.line]
        cells.extend(" " * (length - len(cells)))
        return cells

    def _go(self, line: int, column: int) -> None:
        """Move the cursor, within the screen."""
        self.line = min(max(line, self.top), self.top + self.rows - 1)
        self.column = min(max(column, 0), self.cols - 1)
        self.wraps = False
        while len(self.lines) <= self.line:
            self.lines.append([])

    def _feed_line(self) -> None:
        """Move down; below the last row the screen scrolls."""
        self.top += self.line == self.top + self.rows - 1
        self._go(self.line + 1, self.column)

    def _control(self, final: str, parameters: str) -> None:
        """Do what a control sequence says."""
        numbers = [int(number) if number.isdigit() else 0 for number in parameters.split(";")]
        first, count = numbers[0], max(numbers[0], 1)
        cells = self._cells(self.column)
        self.wraps = self.wraps and final in "mhl"
        if final in "ABCDEFG`dHf":
            row = self.line - self.top
            second = max(numbers[1], 1) if len(numbers) > 1 else 1
            row, column = {
                "A": (row - count, self.column), "B": (row + count, self.column), "C": (row, self.column + count),
                "D": (row, self.column - count), "E": (row + count, 0), "F": (row - count, 0), "G": (row, count - 1),
                "`": (row, count - 1), "d": (count - 1, self.column), "H": (count - 1, second - 1),
                "f": (count - 1, second - 1)}[final]
            self._go(self.top + max(row, 0), column)
        elif final == "K":
            self._erase(self.line, first)
        elif final == "J":
            self._erase(self.line, min(first, 2))
            below = range(self.line + 1, len(self.lines)) if first in (0, 2) else ()
            above = range(self.top, self.line) if first in (1, 2) else ()
            for line in (*above, *below):
                self._erase(line, 2)
        elif final == "@":
            self._split(cells, self.column)
            cells[self.column:] = ([" "] * count + cells[self.column:])[:self.cols - self.column]
        elif final == "P":
            self._split(cells, self.column)
            self._split(cells, self.column + count)
            del cells[self.column:self.column + count]
        elif final == "X":
            end = min(self.column + count, len(cells))
            self._split(cells, self.column)
            self._split(cells, end)
            cells[self.column:end] = " " * (end - self.column)
        elif final not in "mhlntc":
            self.unknown.append(f"CSI {parameters} {final}")

    def _erase(self, line: int, what: int) -> None:
        """Blank a line: 0 from the cursor on, 1 up to it, 2 all of it."""
        cells = self.lines[line]
        self._split(cells, self.column + (what == 1))
        if what == 1:
            done = min(self.column + 1, len(cells))
            cells[:done] = " " * done
        else:
            del cells[self.column if what == 0 else 0:]


# ---- 5. The terminal ----------------------------------------------------------------------------------------------
# Mino as a process of its own, as a person starts it: the leader of a session with a pseudo-terminal to control it,
# and an environment with nothing in it that could tell it of this machine. A thread collects what it prints.
# What is left when a `with` block ends is killed: the process, its descendants, and orphans known by their HOME.

_SHIM = """
import _signal, fcntl, os, sys, termios
tty, ignored, program = int(sys.argv[1]), sys.argv[2].split(), sys.argv[3:]
_signal.pthread_sigmask(_signal.SIG_SETMASK, [])
for name in ("SIGINT", "SIGHUP", "SIGTERM", "SIGQUIT", "SIGTSTP", "SIGTTOU", "SIGTTIN", "SIGPIPE", "SIGXFSZ"):
    _signal.signal(getattr(_signal, name), _signal.SIG_IGN if name in ignored else _signal.SIG_DFL)
if tty >= 0:
    fcntl.ioctl(tty, termios.TIOCSCTTY, 0)
    os.close(tty)
os.execv(program[0], program)
"""


class Completed(NamedTuple):
    """What a run without a terminal came to."""

    status: int
    stdout: str
    stderr: str


def until(condition: Callable[[], Any], what: str, timeout: float = PATIENCE) -> Any:
    """Wait for something that tells nobody when it happens; returns the first true value of `condition`."""
    end, never = time.monotonic() + timeout, threading.Event()
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not in {timeout:g} s"
        never.wait(0.01)


def launcher(place: Path, **constants: Any) -> Path:
    """A script in `place` that runs Mino with other values for constants of its limits section."""
    script = place / "launcher.py"
    script.write_text(f"""import importlib.util, sys
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("mino", {str(MINO)!r})
mino = sys.modules["mino"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mino)
for name, value in {constants!r}.items():
    assert hasattr(mino, name), "mino.py has no constant " + name
    setattr(mino, name, value)
sys.exit(mino.main())
""", encoding="utf-8")
    return script


class Mino:
    """`with Mino(home) as mino: mino.ask("Hello."); mino.expect("Hi."); mino.line("/exit"); assert mino.wait() == 0`

    stdin is "pty", "pipe", "null", a descriptor, or the bytes of a pipe that then ends; stdout and stderr are "pty",
    "pipe", "null", a descriptor or a path to append to; stderr may be "stdout". `launcher` is the script that is run
    instead of mino.py, `ignore` names signals that are ignored from the start, `env` adds to the environment (None
    removes). `text` is all output so far without control sequences, `output` the bytes themselves, `streams` the same
    by where they came from: "pty", "stdout", "stderr".
    """

    def __init__(self, home: Home, *args: str, cols: int = 80, rows: int = 24,
                 env: Optional[Dict[str, Optional[str]]] = None, launcher: Optional[Path] = None,
                 stdin: Union[str, int, bytes] = "pty", stdout: Union[str, int, Path] = "pty",
                 stderr: Union[str, int, Path] = "pty", ignore: Iterable[str] = (),
                 cwd: Optional[Path] = None) -> None:
        """Say what is to be started; `with` starts it."""
        self.home = home
        self.start = (" ".join(ignore), launcher, args)
        self.environment = _environment(home, env)
        self.cwd = cwd or home.work
        self.ends: Dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        self.text = ""
        self.output = bytearray()
        self.streams = {"pty": bytearray(), "stdout": bytearray(), "stderr": bytearray()}
        self._screens = {name: Screen(cols, rows) for name in self.streams}
        self._seen = 0  # how much of the text `expect` has gone past
        self._ended = False  # no more output will come
        self._changed = threading.Condition()
        self._ours: Dict[str, int] = {}  # our ends of the terminal and the pipes
        self._to_close: List[str] = []

    def __enter__(self) -> "Mino":
        """Start the process, and the threads that serve its streams."""
        self._ours["pty"], terminal = os.openpty()
        os.set_blocking(self._ours["pty"], False)
        _set_size(terminal, self._screens["pty"])
        theirs: Dict[str, Any] = {name: self._end(name, end, terminal) for name, end in self.ends.items()}
        self.process = subprocess.Popen(_command(terminal, *self.start), cwd=self.cwd, env=self.environment,
                                        pass_fds=[terminal], start_new_session=True, **theirs)
        for descriptor in {terminal, *theirs.values()} - set(self.ends.values()) - {subprocess.STDOUT}:
            os.close(descriptor)
        self.pid = self.process.pid
        self._wake, self._waker = os.pipe()
        self._threads = [threading.Thread(target=self._read, daemon=True)]
        if isinstance(self.ends["stdin"], bytes):
            self._threads.append(threading.Thread(target=self._pour, args=(self.ends["stdin"],), daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        """Kill what is left of what was started here, and close our ends."""
        for pid in [*self.children(), self.pid] if self.process.poll() is None else []:
            _kill(pid)
        self.process.wait(PATIENCE)
        for pid in _orphans(self.home):
            _kill(pid)
        os.close(self._waker)
        for thread in self._threads:
            thread.join(PATIENCE)
        for descriptor in (self._wake, *self._ours.values()):
            os.close(descriptor)
        self._ours.clear()

    def type(self, text: Union[str, bytes]) -> None:
        """Press keys; where standard input is a pipe, write into that."""
        rest = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        descriptor = self._ours["stdin" if self.ends["stdin"] == "pipe" else "pty"]
        while rest:
            _, writable, _ = select.select([], [descriptor], [], PATIENCE)
            assert writable, self._story(f"{len(rest)} bytes of input were not taken in {PATIENCE:g} s")
            rest = rest[os.write(descriptor, rest[:512]):]

    def line(self, text: str) -> None:
        """Type a line and press Enter."""
        self.type(text + ("\n" if self.ends["stdin"] == "pipe" else "\r"))

    def ask(self, text: str) -> None:
        """Wait for the prompt, then type a line."""
        self.expect("You> ")
        self.line(text)

    def signal(self, signum: int) -> None:
        """Send a signal to Mino alone."""
        os.kill(self.pid, signum)

    def resize(self, cols: int, rows: int) -> None:
        """Change the size of the window."""
        with self._changed:
            self._screens["pty"].resize(cols, rows)
            _set_size(self._ours["pty"], self._screens["pty"])

    def close(self, name: str) -> None:
        """Close our end of a pipe, "stdin", "stdout" or "stderr", or of the "pty", as when its window is closed."""
        with self._changed:
            self._to_close.append(name)
            os.write(self._waker, b".")
            closed = self._changed.wait_for(lambda: name not in self._ours, PATIENCE)
        assert closed, f"{name} was not closed"

    def expect(self, text: str, timeout: float = PATIENCE) -> str:
        """Wait for text after what was expected last; returns what came before it."""
        with self._changed:
            self._changed.wait_for(lambda: self.text.find(text, self._seen) >= 0 or self._ended, timeout)
            found = self.text.find(text, self._seen)
            if found < 0:
                why = "the output ended" if self._ended else f"{timeout:g} s passed"
                raise AssertionError(self._story(f"{why} without {text!r}"))
            before, self._seen = self.text[self._seen:found], found + len(text)
            return before

    def screen(self) -> str:
        """What the terminal shows, scrolled lines included, without trailing blanks."""
        with self._changed:
            return self._screens["pty"].text()

    @property
    def cursor(self) -> Tuple[int, int]:
        """The line (from the first of all lines) and the column of the cursor, both from 0."""
        with self._changed:
            return self._screens["pty"].line, self._screens["pty"].column

    def echo_is_on(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._ours["pty"])[3] & termios.ECHO)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end; returns the exit status, negative for a signal. All output has been read then."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._story(f"still running after {timeout:g} s")) from None
        with self._changed:
            self._changed.wait_for(lambda: self._ended, 1.0)  # a child that kept a stream must not hold us up
        return status

    def children(self) -> List[int]:
        """The live descendants of Mino."""
        table, found = _processes(), [self.pid]
        for pid in found:
            found.extend(child for child, parent in table.items() if parent == pid)
        return found[1:]

    def _story(self, what: str) -> str:
        """The message of a failed wait: what was waited for, and what there was instead."""
        lines = [what, "---- the screen", self._screens["pty"].text(), f"---- exit status {self.process.poll()}"]
        for name in ("stdout", "stderr"):
            if self.streams[name]:
                lines.append(f"---- {name}: {bytes(self.streams[name])!r}")
        return "\n".join(lines)

    def _end(self, name: str, end: Union[str, int, bytes, Path], terminal: int) -> int:
        """The child's end of one of the three streams; ours is kept."""
        if isinstance(end, int):
            return end
        if isinstance(end, Path):
            return os.open(end, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if end == "null":
            return os.open(os.devnull, os.O_RDWR)
        if end in ("pty", "stdout"):
            return terminal if end == "pty" else subprocess.STDOUT
        read, write = os.pipe()
        self._ours[name], theirs = (write, read) if name == "stdin" else (read, write)
        return theirs

    def _pour(self, content: bytes) -> None:
        """Write all of standard input, as far as it is wanted, and end it."""
        with open(self._ours.pop("stdin"), "wb", buffering=0) as pipe:
            try:
                while content:
                    content = content[pipe.write(content):]
            except BrokenPipeError:
                pass

    def _read(self) -> None:
        """Collect output until all of it has ended or the `with` block has; runs in a thread."""
        watched = {descriptor: name for name, descriptor in self._ours.items() if name != "stdin"}
        while True:
            ready, _, _ = select.select([self._wake, *watched], [], [])
            with self._changed:
                if self._wake in ready:
                    if not os.read(self._wake, 1):
                        return
                    descriptor = self._ours.pop(self._to_close.pop())
                    watched.pop(descriptor, None)
                    os.close(descriptor)
                for descriptor in set(ready) & set(watched):
                    data = _read_some(descriptor)
                    name = watched[descriptor] if data else watched.pop(descriptor)
                    self.streams[name] += data
                    self.output += data
                    self.text += self._screens[name].feed(data)
                self._ended = not watched
                self._changed.notify_all()


def run_piped(home: Home, content: bytes = b"", *args: str, env: Optional[Dict[str, Optional[str]]] = None,
              launcher: Optional[Path] = None, merged: bool = False, timeout: float = PATIENCE) -> Completed:
    """Run Mino to its end without a terminal; `merged` puts its errors into one log with its output."""
    process = subprocess.Popen(
        _command(-1, "", launcher, args), cwd=home.work, env=_environment(home, env), start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merged else subprocess.PIPE)
    try:
        output, errors = process.communicate(content, timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"still running after {timeout:g} s: {output!r}, {errors!r}") from None
    finally:
        for pid in _orphans(home):
            _kill(pid)
    return Completed(process.returncode, *[(text or b"").decode("utf-8", "backslashreplace")
                                           for text in (output, errors)])


def _command(terminal: int, ignored: str, launcher: Optional[Path], args: Iterable[str]) -> List[str]:
    """The command that starts Mino with ordinary signals, and a terminal to control it unless that is -1."""
    return [sys.executable, "-I", "-S", "-c", _SHIM, str(terminal), ignored,
            sys.executable, str(launcher or MINO), *args]


def _environment(home: Home, changes: Optional[Dict[str, Optional[str]]]) -> Dict[str, str]:
    """What Mino is started with: nothing that could tell it of this machine or its user."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    language = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
    found = {**kept, "HOME": str(home.path), "TERM": "xterm-256color", "LANG": language, **(changes or {})}
    return {name: value for name, value in found.items() if value is not None}


def _set_size(descriptor: int, screen: Screen) -> None:
    """Tell a terminal its size."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", screen.rows, screen.cols, 0, 0))


def _read_some(descriptor: int) -> bytes:
    """What can be read now; empty at the end, which a terminal tells by an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def _kill(pid: int) -> None:
    """Kill a process that may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _processes() -> Dict[int, int]:
    """Each live process with its parent; zombies are not alive."""
    if not os.path.exists("/proc/self/stat"):
        lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, check=True).stdout
        fields = [line.split() for line in lines.decode().splitlines()]
    else:
        fields = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            state = _read_file(f"/proc/{entry}/stat").rpartition(b") ")[2].split()
            fields.append([entry, state[1].decode(), state[0].decode()] if state else [entry, "0", "Z"])
    return {int(pid): int(parent) for pid, parent, state in fields if not state.startswith("Z")}


def _orphans(home: Home) -> List[int]:
    """Processes with a home in this place in their environment that no process of ours is an ancestor of."""
    parents, mark = _processes(), re.compile(b"(?:^|[\\0 ])HOME=" + re.escape(f"{home.place}/".encode()))
    if os.path.exists("/proc/self/environ"):
        marked = [pid for pid in parents if mark.search(_read_file(f"/proc/{pid}/environ"))]
    else:
        lines = subprocess.run(["ps", "-A", "-E", "-ww", "-o", "pid=,command="], stdout=subprocess.PIPE).stdout
        marked = [int(line.split()[0]) for line in lines.splitlines() if mark.search(line)]
    return [pid for pid in marked if os.getpid() not in _ancestors(pid, parents)]


def _ancestors(pid: int, parents: Dict[int, int]) -> List[int]:
    """The process, its parent, and so on."""
    found = [pid]
    while parents.get(found[-1], 0) not in (0, *found):
        found.append(parents[found[-1]])
    return found


def _read_file(path: str) -> bytes:
    """A file of /proc; empty where the process is gone or not ours."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


@pytest.fixture
def service() -> Iterator[Service]:
    """A service with an empty script."""
    with Service() as started:
        yield started


@pytest.fixture
def home(tmp_path: Path, service: Service) -> Home:
    """A home whose settings name that service."""
    return Home(tmp_path).configure(service.url)


# ---- 6. The captured streams --------------------------------------------------------------------------------------
# What real services sent: llama.cpp's llama-server, the litellm proxy (`bridge`: built from chat completions, `pass`:
# handed on from llama-server) and `transformers serve`, in November 2026; long identifiers are shortened, nothing
# else that matters. `*-tool` ends in one call of bash, `echo hi`. To notice: no sequence numbers and no indexes
# (llama.cpp), no `event:` lines and a `[DONE]` (litellm), a message closed twice and arguments without deltas
# (transformers), reasoning that is malformed at completion but right before (litellm's bridge), items out of order.

CAPTURES: dict[str, bytes] = {
    "llama-text": br'''event: response.created
data: {"type":"response.created","response":{"id":"resp_1","object":"response","status":"in_progress"}}

event: response.in_progress
data: {"type":"response.in_progress","response":{"id":"resp_1","object":"response","status":"in_progress"}}

event: response.output_item.added
data: {"type":"response.output_item.added","item":{"content":[],"id":"msg_x1","role":"assistant","status":"in_progress","type":"message"}}

event: response.content_part.added
data: {"type":"response.content_part.added","item_id":"msg_x1","part":{"type":"output_text","text":""}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_x1","delta":"Two"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_x1","delta":" plus two"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_x1","delta":" is"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_x1","delta":" four."}

event: response.output_text.done
data: {"type":"response.output_text.done","item_id":"msg_x1","text":"Two plus two is four."}

event: response.content_part.done
data: {"type":"response.content_part.done","item_id":"msg_x1","part":{"type":"output_text","annotations":[],"logprobs":[],"text":"Two plus two is four."}}

event: response.output_item.done
data: {"type":"response.output_item.done","item":{"type":"message","status":"completed","id":"msg_x1","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"Two plus two is four."}],"role":"assistant"}}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","object":"response","created_at":1796009941,"status":"completed","model":"tiny-think.gguf","output":[{"type":"message","status":"completed","id":"msg_x1","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"Two plus two is four."}],"role":"assistant"}],"usage":{"input_tokens":75,"output_tokens":5,"total_tokens":80,"input_tokens_details":{"cached_tokens":0}}},"timings":{"cache_n":0}}

''',
    "llama-tool": br'''event: response.created
data: {"type":"response.created","response":{"id":"resp_1","object":"response","status":"in_progress"}}

event: response.in_progress
data: {"type":"response.in_progress","response":{"id":"resp_1","object":"response","status":"in_progress"}}

event: response.output_item.added
data: {"type":"response.output_item.added","item":{"id":"rs_x1","summary":[],"type":"reasoning","content":[],"encrypted_content":"","status":"in_progress"}}

event: response.reasoning_text.delta
data: {"type":"response.reasoning_text.delta","delta":"I should","item_id":"rs_x1"}

event: response.reasoning_text.delta
data: {"type":"response.reasoning_text.delta","delta":" just","item_id":"rs_x1"}

event: response.reasoning_text.delta
data: {"type":"response.reasoning_text.delta","delta":" run it.","item_id":"rs_x1"}

event: response.output_item.added
data: {"type":"response.output_item.added","item":{"content":[],"id":"msg_x2","role":"assistant","status":"in_progress","type":"message"}}

event: response.content_part.added
data: {"type":"response.content_part.added","item_id":"msg_x2","part":{"type":"output_text","text":""}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_x2","delta":"Running"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_x2","delta":" the"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_x2","delta":" command"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"msg_x2","delta":" now."}

event: response.output_item.added
data: {"type":"response.output_item.added","item":{"id":"fc_x3","arguments":"","call_id":"call_x3","name":"bash","type":"function_call","status":"in_progress"}}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","delta":"{","item_id":"fc_x3"}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","delta":"\"command\": \"","item_id":"fc_x3"}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","delta":"echo hi","item_id":"fc_x3"}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","delta":"\"}","item_id":"fc_x3"}

event: response.output_item.done
data: {"type":"response.output_item.done","item":{"id":"rs_x1","summary":[],"type":"reasoning","content":[{"text":"I should just run it.","type":"reasoning_text"}],"encrypted_content":""}}

event: response.output_text.done
data: {"type":"response.output_text.done","item_id":"msg_x2","text":"Running the command now."}

event: response.content_part.done
data: {"type":"response.content_part.done","item_id":"msg_x2","part":{"type":"output_text","annotations":[],"logprobs":[],"text":"Running the command now."}}

event: response.output_item.done
data: {"type":"response.output_item.done","item":{"type":"message","status":"completed","id":"msg_x2","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"Running the command now."}],"role":"assistant"}}

event: response.output_item.done
data: {"type":"response.output_item.done","item":{"id":"fc_x3","type":"function_call","status":"completed","arguments":"{\"command\": \"echo hi\"}","call_id":"call_x3","name":"bash"}}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","object":"response","created_at":1796009941,"status":"completed","model":"tiny-think.gguf","output":[{"id":"rs_x1","summary":[],"type":"reasoning","content":[{"text":"I should just run it.","type":"reasoning_text"}],"encrypted_content":""},{"type":"message","status":"completed","id":"msg_x2","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"Running the command now."}],"role":"assistant"},{"id":"fc_x3","type":"function_call","status":"completed","arguments":"{\"command\": \"echo hi\"}","call_id":"call_x3","name":"bash"}],"usage":{"input_tokens":396,"output_tokens":17,"total_tokens":413,"input_tokens_details":{"cached_tokens":33}}},"timings":{"cache_n":0}}

''',
    "litellm-bridge-tool": br'''data: {"type":"response.created","response":{"id":"resp_1","created_at":1796010036,"instructions":"You are a terminal agent.","model":"tiny","object":"response","output":[],"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"top_p":1.0,"reasoning":{"effort":null,"summary":null},"status":"in_progress","store":true},"sequence_number":0,"model":"tiny-bridge"}

data: {"type":"response.in_progress","response":{"id":"resp_1","created_at":1796010036,"instructions":"You are a terminal agent.","model":"tiny","object":"response","output":[],"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"top_p":1.0,"reasoning":{"effort":null,"summary":null},"status":"in_progress","store":true},"sequence_number":1,"model":"tiny-bridge"}

data: {"type":"response.output_item.added","output_index":0,"item":{"id":"rs_x1","type":"reasoning","status":"in_progress"},"sequence_number":2,"model":"tiny-bridge"}

data: {"type":"response.reasoning_summary_text.delta","item_id":"rs_x1","output_index":0,"delta":"I should","sequence_number":3,"model":"tiny-bridge"}

data: {"type":"response.reasoning_summary_text.delta","item_id":"rs_x1","output_index":0,"delta":" just","sequence_number":4,"model":"tiny-bridge"}

data: {"type":"response.reasoning_summary_text.delta","item_id":"rs_x1","output_index":0,"delta":" run it.","sequence_number":5,"model":"tiny-bridge"}

data: {"type":"response.reasoning_summary_text.done","item_id":"rs_x1","output_index":0,"sequence_number":6,"summary_index":0,"text":"I should just run it.","model":"tiny-bridge"}

data: {"type":"response.reasoning_summary_part.done","item_id":"rs_x1","output_index":0,"sequence_number":7,"summary_index":0,"part":{"type":"summary_text","text":"I should just run it."},"model":"tiny-bridge"}

data: {"type":"response.output_item.done","output_index":0,"sequence_number":8,"item":{"id":"rs_x1","type":"reasoning","summary":[{"type":"summary_text","text":"I should just run it."}]},"model":"tiny-bridge"}

data: {"type":"response.output_item.added","output_index":1,"item":{"id":"msg_x2","type":"message","role":"assistant","status":"in_progress","content":[]},"sequence_number":9,"model":"tiny-bridge"}

data: {"type":"response.content_part.added","item_id":"msg_x2","output_index":1,"content_index":0,"part":{"type":"output_text","text":"","annotations":[]},"sequence_number":10,"model":"tiny-bridge"}

data: {"type":"response.output_text.delta","item_id":"msg_x2","output_index":1,"content_index":0,"delta":"Running","sequence_number":11,"model":"tiny-bridge"}

data: {"type":"response.output_text.delta","item_id":"msg_x2","output_index":1,"content_index":0,"delta":" the","sequence_number":12,"model":"tiny-bridge"}

data: {"type":"response.output_text.delta","item_id":"msg_x2","output_index":1,"content_index":0,"delta":" command","sequence_number":13,"model":"tiny-bridge"}

data: {"type":"response.output_text.delta","item_id":"msg_x2","output_index":1,"content_index":0,"delta":" now.","sequence_number":14,"model":"tiny-bridge"}

data: {"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","id":"fc_x3","call_id":"x3","name":"bash","status":"in_progress","arguments":""},"sequence_number":15,"model":"tiny-bridge"}

data: {"type":"response.function_call_arguments.delta","item_id":"fc_x3","output_index":2,"delta":"{","sequence_number":16,"model":"tiny-bridge"}

data: {"type":"response.function_call_arguments.delta","item_id":"fc_x3","output_index":2,"delta":"\"command\":","sequence_number":17,"model":"tiny-bridge"}

data: {"type":"response.function_call_arguments.delta","item_id":"fc_x3","output_index":2,"delta":" \"","sequence_number":18,"model":"tiny-bridge"}

data: {"type":"response.function_call_arguments.delta","item_id":"fc_x3","output_index":2,"delta":"echo hi","sequence_number":19,"model":"tiny-bridge"}

data: {"type":"response.function_call_arguments.delta","item_id":"fc_x3","output_index":2,"delta":"\"}","sequence_number":20,"model":"tiny-bridge"}

data: {"type":"response.function_call_arguments.done","item_id":"fc_x3","output_index":2,"arguments":"{\"command\": \"echo hi\"}","sequence_number":21,"model":"tiny-bridge"}

data: {"type":"response.output_item.done","output_index":2,"sequence_number":22,"item":{"type":"function_call","id":"fc_x3","call_id":"x3","name":"bash","status":"completed","arguments":"{\"command\": \"echo hi\"}"},"model":"tiny-bridge"}

data: {"type":"response.output_text.done","item_id":"msg_x2","output_index":1,"content_index":0,"text":"Running the command now.","sequence_number":23,"model":"tiny-bridge"}

data: {"type":"response.content_part.done","item_id":"msg_x2","output_index":1,"content_index":0,"part":{"type":"output_text","text":"Running the command now.","annotations":[]},"sequence_number":24,"model":"tiny-bridge"}

data: {"type":"response.output_item.done","output_index":1,"sequence_number":25,"item":{"id":"msg_x2","status":"completed","type":"message","role":"assistant","content":[{"type":"output_text","text":"Running the command now.","annotations":[]}]},"model":"tiny-bridge"}

data: {"type":"response.completed","response":{"id":"resp_1","created_at":1796010036,"instructions":"You are a terminal agent.","metadata":{},"model":"tiny","object":"response","output":[{"type":"reasoning","id":"rs_x1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"I should just run it.","annotations":[]}]},{"type":"message","id":"msg_x2","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Running the command now.","annotations":[]}]},{"arguments":"{\"command\": \"echo hi\"}","call_id":"x3","name":"bash","type":"function_call","id":"fc_x3","status":"completed"}],"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"status":"completed","text":{},"usage":{"input_tokens":396,"input_tokens_details":{"cached_tokens":395},"output_tokens":17,"output_tokens_details":{"reasoning_tokens":6,"text_tokens":11},"total_tokens":413},"store":false},"sequence_number":26,"model":"tiny-bridge"}

data: [DONE]

''',
    "litellm-pass-text": br'''data: {"type":"response.created","response":{"id":"resp_1","object":"response","status":"in_progress"},"model":"tiny-pass"}

data: {"type":"response.in_progress","response":{"id":"resp_1","object":"response","status":"in_progress"},"model":"tiny-pass"}

data: {"type":"response.output_item.added","item":{"content":[],"id":"msg_x1","role":"assistant","status":"in_progress","type":"message"},"model":"tiny-pass"}

data: {"type":"response.content_part.added","item_id":"msg_x1","part":{"type":"output_text","text":""},"model":"tiny-pass"}

data: {"type":"response.output_text.delta","item_id":"msg_x1","delta":"Two","model":"tiny-pass"}

data: {"type":"response.output_text.delta","item_id":"msg_x1","delta":" plus two","model":"tiny-pass"}

data: {"type":"response.output_text.delta","item_id":"msg_x1","delta":" is","model":"tiny-pass"}

data: {"type":"response.output_text.delta","item_id":"msg_x1","delta":" four.","model":"tiny-pass"}

data: {"type":"response.output_text.done","item_id":"msg_x1","text":"Two plus two is four.","model":"tiny-pass"}

data: {"type":"response.content_part.done","item_id":"msg_x1","part":{"type":"output_text","annotations":[],"logprobs":[],"text":"Two plus two is four."},"model":"tiny-pass"}

data: {"type":"response.output_item.done","item":{"type":"message","status":"completed","id":"msg_x1","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"Two plus two is four."}],"role":"assistant"},"model":"tiny-pass"}

data: {"type":"response.completed","response":{"id":"resp_1","created_at":1796010036,"model":"tiny-think.gguf","object":"response","output":[{"id":"msg_x1","content":[{"annotations":[],"text":"Two plus two is four.","type":"output_text","logprobs":[]}],"role":"assistant","status":"completed","type":"message"}],"status":"completed","usage":{"input_tokens":75,"input_tokens_details":{"cached_tokens":74},"output_tokens":5,"total_tokens":80}},"timings":{"cache_n":0},"model":"tiny-pass"}

data: [DONE]

''',
    "transformers-text": br'''data: {"response":{"id":"resp_1","created_at":1796010229.5,"model":"tiny-hf","object":"response","output":[],"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"status":"queued"},"sequence_number":0,"type":"response.created"}

data: {"response":{"id":"resp_1","created_at":1796010229.5,"model":"tiny-hf","object":"response","output":[],"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"status":"in_progress"},"sequence_number":1,"type":"response.in_progress"}

data: {"item":{"id":"msg_x1","content":[],"role":"assistant","status":"in_progress","type":"message"},"output_index":0,"sequence_number":2,"type":"response.output_item.added"}

data: {"content_index":0,"item_id":"msg_x1","output_index":0,"part":{"annotations":[],"text":"","type":"output_text"},"sequence_number":3,"type":"response.content_part.added"}

data: {"content_index":0,"delta":"Two","item_id":"msg_x1","logprobs":[],"output_index":0,"sequence_number":4,"type":"response.output_text.delta"}

data: {"content_index":0,"delta":" plus two","item_id":"msg_x1","logprobs":[],"output_index":0,"sequence_number":5,"type":"response.output_text.delta"}

data: {"content_index":0,"delta":" is","item_id":"msg_x1","logprobs":[],"output_index":0,"sequence_number":6,"type":"response.output_text.delta"}

data: {"content_index":0,"delta":" four.","item_id":"msg_x1","logprobs":[],"output_index":0,"sequence_number":7,"type":"response.output_text.delta"}

data: {"content_index":0,"item_id":"msg_x1","logprobs":[],"output_index":0,"sequence_number":8,"text":"Two plus two is four.","type":"response.output_text.done"}

data: {"content_index":0,"item_id":"msg_x1","output_index":0,"part":{"annotations":[],"text":"Two plus two is four.","type":"output_text"},"sequence_number":9,"type":"response.content_part.done"}

data: {"item":{"id":"msg_x1","content":[{"annotations":[],"text":"Two plus two is four.","type":"output_text"}],"role":"assistant","status":"completed","type":"message","annotations":[]},"output_index":0,"sequence_number":10,"type":"response.output_item.done"}

data: {"response":{"id":"resp_1","created_at":1796010229.5,"model":"tiny-hf","object":"response","output":[{"id":"msg_x1","content":[{"annotations":[],"text":"Two plus two is four.","type":"output_text"}],"role":"assistant","status":"completed","type":"message","annotations":[]}],"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"status":"completed","usage":{"input_tokens":75,"input_tokens_details":{"cache_write_tokens":0,"cached_tokens":0},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":80}},"sequence_number":11,"type":"response.completed"}

''',
    "transformers-tool": br'''data: {"response":{"id":"resp_1","created_at":1796010230.5,"model":"tiny-hf","object":"response","output":[],"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"status":"queued"},"sequence_number":0,"type":"response.created"}

data: {"response":{"id":"resp_1","created_at":1796010230.5,"model":"tiny-hf","object":"response","output":[],"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"status":"in_progress"},"sequence_number":1,"type":"response.in_progress"}

data: {"item":{"id":"rs_x1","summary":[],"type":"reasoning","content":[],"status":"in_progress"},"output_index":0,"sequence_number":2,"type":"response.output_item.added"}

data: {"content_index":0,"delta":"I should","item_id":"rs_x1","output_index":0,"sequence_number":3,"type":"response.reasoning_text.delta"}

data: {"content_index":0,"delta":" just","item_id":"rs_x1","output_index":0,"sequence_number":4,"type":"response.reasoning_text.delta"}

data: {"content_index":0,"delta":" run it.","item_id":"rs_x1","output_index":0,"sequence_number":5,"type":"response.reasoning_text.delta"}

data: {"content_index":0,"item_id":"rs_x1","output_index":0,"sequence_number":6,"text":"I should just run it.","type":"response.reasoning_text.done"}

data: {"item":{"id":"rs_x1","summary":[],"type":"reasoning","content":[{"text":"I should just run it.","type":"reasoning_text"}],"status":"completed"},"output_index":0,"sequence_number":7,"type":"response.output_item.done"}

data: {"item":{"id":"msg_x1","content":[],"role":"assistant","status":"in_progress","type":"message"},"output_index":1,"sequence_number":8,"type":"response.output_item.added"}

data: {"content_index":0,"item_id":"msg_x1","output_index":1,"part":{"annotations":[],"text":"","type":"output_text"},"sequence_number":9,"type":"response.content_part.added"}

data: {"content_index":0,"delta":"Running","item_id":"msg_x1","logprobs":[],"output_index":1,"sequence_number":10,"type":"response.output_text.delta"}

data: {"content_index":0,"delta":" the","item_id":"msg_x1","logprobs":[],"output_index":1,"sequence_number":11,"type":"response.output_text.delta"}

data: {"content_index":0,"delta":" command","item_id":"msg_x1","logprobs":[],"output_index":1,"sequence_number":12,"type":"response.output_text.delta"}

data: {"content_index":0,"delta":" now.","item_id":"msg_x1","logprobs":[],"output_index":1,"sequence_number":13,"type":"response.output_text.delta"}

data: {"content_index":0,"item_id":"msg_x1","logprobs":[],"output_index":1,"sequence_number":14,"text":"Running the command now.","type":"response.output_text.done"}

data: {"content_index":0,"item_id":"msg_x1","output_index":1,"part":{"annotations":[],"text":"Running the command now.","type":"output_text"},"sequence_number":15,"type":"response.content_part.done"}

data: {"item":{"id":"msg_x1","content":[{"annotations":[],"text":"Running the command now.","type":"output_text"}],"role":"assistant","status":"completed","type":"message","annotations":[]},"output_index":1,"sequence_number":16,"type":"response.output_item.done"}

data: {"item":{"arguments":"{\"command\": \"echo hi\"}","call_id":"x1_tool_call_0","name":"bash","type":"function_call","id":"x1_tool_call_0","status":"completed"},"output_index":2,"sequence_number":17,"type":"response.output_item.added"}

data: {"arguments":"{\"command\": \"echo hi\"}","item_id":"x1_tool_call_0","output_index":2,"sequence_number":18,"type":"response.function_call_arguments.done","name":"bash"}

data: {"item":{"arguments":"{\"command\": \"echo hi\"}","call_id":"x1_tool_call_0","name":"bash","type":"function_call","id":"x1_tool_call_0","status":"completed"},"output_index":2,"sequence_number":19,"type":"response.output_item.done"}

data: {"item":{"id":"msg_x1","content":[],"role":"assistant","status":"in_progress","type":"message"},"output_index":2,"sequence_number":20,"type":"response.output_item.added"}

data: {"content_index":0,"item_id":"msg_x1","output_index":2,"part":{"annotations":[],"text":"","type":"output_text"},"sequence_number":21,"type":"response.content_part.added"}

data: {"content_index":0,"item_id":"msg_x1","logprobs":[],"output_index":2,"sequence_number":22,"text":"Running the command now.","type":"response.output_text.done"}

data: {"content_index":0,"item_id":"msg_x1","output_index":2,"part":{"annotations":[],"text":"Running the command now.","type":"output_text"},"sequence_number":23,"type":"response.content_part.done"}

data: {"item":{"id":"msg_x1","content":[{"annotations":[],"text":"Running the command now.","type":"output_text"}],"role":"assistant","status":"completed","type":"message","annotations":[]},"output_index":2,"sequence_number":24,"type":"response.output_item.done"}

data: {"response":{"id":"resp_1","created_at":1796010230.5,"model":"tiny-hf","object":"response","output":[{"id":"rs_x1","summary":[],"type":"reasoning","content":[{"text":"I should just run it.","type":"reasoning_text"}],"status":"completed"},{"id":"msg_x1","content":[{"annotations":[],"text":"Running the command now.","type":"output_text"}],"role":"assistant","status":"completed","type":"message","annotations":[]},{"arguments":"{\"command\": \"echo hi\"}","call_id":"x1_tool_call_0","name":"bash","type":"function_call","id":"x1_tool_call_0","status":"completed"}],"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"status":"completed","usage":{"input_tokens":412,"input_tokens_details":{"cache_write_tokens":0,"cached_tokens":0},"output_tokens":17,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":429}},"sequence_number":25,"type":"response.completed"}

''',
}

# ---- 7. The practice model ----------------------------------------------------------------------------------------
# A stand-in for a model: a table of patterns, each with the function that answers. It knows nothing but the context
# in the request, so that what it recalls, Mino has sent. It streams word by word, asks for bash when told to run
# something, and says what a result says. English, and a little Chinese.

PACE = 0.02  # seconds between two words
COUNT_PACE = 0.15  # seconds between two numbers, for who wants to interrupt
CRASH_SECONDS = 25  # how long the slow command takes; Mino ends a command after 30


class Told(NamedTuple):
    """What a request tells the model."""

    question: str  # the last one
    earlier: List[str]  # the questions before it
    results: List[Tuple[str, Dict[str, Any]]]  # each command with its result, in order
    pid: int  # Mino's


class Says(NamedTuple):
    """What the model has to say, and perhaps the command it asks for."""

    text: str
    command: Optional[str] = None
    pace: float = PACE


MENU = """Things to try:
- My favorite color is blue.
    then /exit, start again, and ask: What is my favorite color?
- Run ls -l
    I ask for bash and you decide; try a no as well.
- Add bread to shopping.txt
- Add milk to shopping.txt slowly
    kill Mino in the middle, start again, and ask: Is milk in shopping.txt?
- Count to 100
    and press Ctrl+C before I am done.
Type help to see this again."""
INTRODUCTION = ("I am no real model, only a few rules in the practice service. I look\n"
                "for words and understand nothing. What I recall comes from the context\n"
                "that Mino sends.")
MENU_ZH = """可以试试：
- 我最喜欢的颜色是蓝色。
    然后 /exit，重新启动，再问：我最喜欢什么颜色？
- 运行 ls -l
    由你决定是否批准，也试试拒绝。
- 把面包加到 shopping.txt 里
- 把牛奶慢慢加到 shopping.txt 里
    中途结束 Mino，重新启动，再问：shopping.txt 里有牛奶了吗？
- 数到 100
    中途按 Ctrl+C。
输入“帮助”可再看一遍。"""
INTRODUCTION_ZH = ("我不是真正的模型，只是练习服务里的几条规则：我只找关键词，什么都不理解。\n"
                   "我记得的，都来自 Mino 送来的上下文。")
COLOR = re.compile(r"(?i)favou?rite\s+colou?r\s+is\s+(?!what\b)(?P<color>[^.!?,;\n]+)"
                   r"|最喜欢的颜色是\s*(?!什么|啥|哪)(?P<颜色>[^。！？，.!?,\s]+)")


def chinese(text: str) -> bool:
    """Whether a question is to be answered in Chinese."""
    return bool(re.search("[\u4e00-\u9fff]", text))


def menu(told: Told) -> str:
    """What this is, and what can be tried."""
    return f"{INTRODUCTION_ZH}\n\n{MENU_ZH}" if chinese(told.question) else f"{INTRODUCTION}\n\n{MENU}"


def give_help(match: Match[str], told: Told) -> Says:
    """Say what can be tried."""
    return Says(menu(told))


def run(match: Match[str], told: Told) -> Says:
    """Ask for the command as it was given."""
    command = match["exact"] or re.sub(r"(?<=\w)[.。]$|^`|`[.。]?$", "", match["loose"])
    text = "我需要 bash，请你决定。" if chinese(told.question) else "I need bash for that; you decide."
    return Says(text, command.strip())


def hear_color(match: Match[str], told: Told) -> Says:
    """Say the color back."""
    color = (match["color"] or match["颜色"]).strip()
    return Says(f"你最喜欢的颜色是{color}。" if chinese(told.question) else f"Your favorite color is {color}.")


def recall_color(match: Match[str], told: Told) -> Says:
    """Find the color in the context, the last word on it first."""
    for found in filter(None, map(COLOR.search, reversed(told.earlier))):
        return hear_color(found, told)
    return Says("我收到的上下文里没有提到颜色。" if chinese(told.question) else "I see no color in the context I was given.")


def add(match: Match[str], told: Told) -> Says:
    """Ask for an append to a list."""
    command = f"echo {shlex.quote(match['thing'])} >> {shlex.quote(match['list'])}"
    return Says("我可以把它加进去，请你批准。" if chinese(told.question) else "I can append it, if you approve.", command)


def add_slowly(match: Match[str], told: Told) -> Says:
    """Ask for an append that leaves time to kill Mino, and say how."""
    found = match.groupdict()
    thing, path = found.get("thing") or "milk", found.get("list") or "shopping.txt"
    command = f"echo {shlex.quote(thing)} >> {shlex.quote(path)}; sleep {CRASH_SECONDS}"
    if chinese(told.question):
        return Says(f"这条命令先追加，再等 {CRASH_SECONDS} 秒。批准之后，在另一个终端里输入：\n\n    kill -9 {told.pid}\n\n"
                    f"然后重新启动，再问我：{path} 里有{thing}了吗？", command)
    return Says(f"This command appends at once and then waits {CRASH_SECONDS} s.\nApprove it, and while it runs, type "
                f"this in a second terminal:\n\n    kill -9 {told.pid}\n\nThen start the practice again, and ask me: "
                f"Is {thing} in {path}?", command)


def look(match: Match[str], told: Told) -> Says:
    """Tell of unknown results about a list, and ask to read it."""
    path = match.groupdict().get("list") or "shopping.txt"
    unknown = [command for command, outcome in told.results if outcome["status"] == "unknown" and path in command]
    if chinese(told.question):
        return Says((f"之前的命令 {unknown[-1]} 可能已经执行，但结果没有保存下来。\n" if unknown else "我不看就不知道。")
                    + f"如果你批准，我可以读取 {path} 确认一下。", f"cat {shlex.quote(path)}")
    return Says((f"An earlier command, {unknown[-1]}, may have run: its result was not saved.\n" if unknown else
                 "I can't know without looking. ") + f"I can read {path}, if you approve.", f"cat {shlex.quote(path)}")


def count(match: Match[str], told: Told) -> Says:
    """Count, slowly."""
    return Says(" ".join(str(number) for number in range(1, min(int(match["last"]), 1000) + 1)), pace=COUNT_PACE)


def echo(match: Match[str], told: Told) -> Says:
    """Say what was heard, where nothing else fits."""
    heard = told.question.strip()[:200]
    return Says(f"我没有对应的规则：“{heard}”。输入“帮助”看看可以试什么。" if chinese(heard) else
                f"I have no rule for that: \"{heard}\" Type help to see what I can do.")


RULES: List[Tuple[str, Callable[[Match[str], Told], Says]]] = [  # the first that is found in the question counts
    (r"^\s*(?:help|\?|what can (?:you|i) (?:do|try)|帮助|hello|hi|hey|你好)[\s!?.。！？]*$", give_help),
    (r"^\s*(?:please\s+)?(?:run|运行|执行)\s*(?:[:：]\s*(?P<exact>\S.*)|(?:\s|(?=`)|(?<=行))\s*(?P<loose>\S.*))", run),
    (r"slowly add (?P<thing>.+?) to (?P<list>[\w.-]+\.txt)", add_slowly),
    (r"add (?P<thing>.+?) (?:slowly )?to (?P<list>[\w.-]+\.txt)\W*slowly", add_slowly),
    (r"add (?P<thing>.+?) slowly to (?P<list>[\w.-]+\.txt)", add_slowly),
    (r"把\s*(?P<thing>.+?)\s*慢慢地?加[到进入]\s*(?P<list>[A-Za-z0-9_.-]+\.txt)", add_slowly),
    (r"\bcrash\b|\bkill\b|崩溃", add_slowly),
    (r"\badd (?P<thing>.+?) (?:in)?to (?:the |my )?(?P<list>[\w.-]+\.txt)", add),
    (r"把\s*(?P<thing>.+?)\s*加[到进入]\s*(?P<list>[A-Za-z0-9_.-]+\.txt)", add),
    (COLOR.pattern, hear_color),
    (r"colou?r|颜色", recall_color),
    (r"(?:\bis|\bare|what|read|show|look|有|看).*?(?P<list>[A-Za-z0-9_-][A-Za-z0-9_.-]*\.txt)", look),
    (r"(?:\bis|\bare|what).*\b(?:list|milk)\b|清单|牛奶|milk", look),
    (r"(?:\bcount(?:ing)? (?:slowly )?to|数到)\s*(?P<last>\d+)", count),
    (r"", echo),
]


def judge(told: Told) -> Says:
    """Say in words what the last result says."""
    command, outcome = told.results[-1]
    status, output = outcome["status"], outcome["output"].strip()
    if chinese(told.question):
        words = {"completed": "命令已完成。", "denied": "你拒绝了，什么都没有执行。", "unknown": "结果未知，命令可能已经执行。"}
        text = words.get(status, f"命令没有成功：{status}。")
    else:
        words = {"completed": "The command completed.", "denied": "You declined, so nothing ran.",
                 "unknown": "It may have run; its result is unknown.", "timed_out": "It took too long and was ended.",
                 "failed": f"The command failed, with exit code {outcome.get('exit_code')}."}
        text = words.get(status, f"It did not succeed: {status}.")
    if command.startswith("cat ") and status == "completed":
        lines = output.splitlines()
        counted = ", ".join(f"{line} ({lines.count(line)}x)" for line in dict.fromkeys(lines))
        return Says(f"{text}{'里面有：' if chinese(told.question) else ' It holds: '}{counted or '-'}")
    return Says(text)


def understand(body: Dict[str, Any], pid: int) -> Told:
    """The request as the model sees it."""
    questions = [item["content"] for item in body["input"] if item.get("role") == "user"]
    commands = {item["call_id"]: json.loads(item["arguments"]).get("command", "")
                for item in body["input"] if item.get("type") == "function_call"}
    results = [(commands[item["call_id"]], json.loads(item["output"]))
               for item in body["input"] if item.get("type") == "function_call_output"]
    return Told(questions[-1], questions[:-1], results, pid)


def think(body: Dict[str, Any], pid: int) -> Says:
    """What the model says to a request; the first answer of a conversation says what can be tried."""
    told = understand(body, pid)
    if body["input"][-1].get("type") == "function_call_output":
        says = judge(told)
    else:
        says = next(function(match, told) for pattern, function in RULES
                    for match in [re.search(pattern, told.question, re.IGNORECASE | re.DOTALL)] if match)
    if told.earlier or says.command or says.text == menu(told):
        return says
    return says._replace(text=f"{says.text}\n\n{menu(told)}")


class PracticeModel:
    """The reply to any request, word by word."""

    def __init__(self) -> None:
        """Begin without knowing Mino."""
        self.pid = 0
        self._never = threading.Event()

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        says = think(request.body, self.pid)
        items = [message_item(says.text, id=f"msg_{uuid.uuid4().hex}")]
        if says.command is not None:
            items.append(call_item(says.command, call_id=f"call_{uuid.uuid4().hex}", id=f"fc_{uuid.uuid4().hex}"))
        chunks = re.findall(r"\s*(?:[\u2e80-\uffef]|[^\s\u2e80-\uffef]+)", says.text)
        return Reply(self._paced(events(*items, chunks=chunks), says.pace))

    def _paced(self, found: List[Dict[str, Any]], pace: float) -> Iterator[bytes]:
        """The events, with time between the words."""
        for event in found:
            if event["type"] == "response.output_text.delta":
                self._never.wait(pace)
            yield sse(event)


# ---- 8. Tests: the helpers themselves -----------------------------------------------------------------------------
# A helper that is wrong makes tests that agree with it. These use a small program in place of Mino.

_PROGRAM = """
import os, readline, sys
print("ready", os.ttyname(0), *sys.argv[1:])
while True:
    line = input("You> ")
    if line == "/exit":
        sys.exit(3)
    if line == "secret":
        import getpass
        line = getpass.getpass("Key: ")
    print("got", repr(line), os.get_terminal_size().columns)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that prompts as Mino does."""
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM, encoding="utf-8")
    return script


def fetch(service: Service, body: bytes = b"{}") -> Tuple[socket.socket, bytes]:
    """Post a request by hand; returns the connection and all that came before the first pause or the end."""
    connection = socket.create_connection(("127.0.0.1", service.port), PATIENCE)
    connection.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    return connection, connection.recv(65536)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the service ends the connection."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_the_contents_list_is_that_of_the_banners() -> None:
    """Whoever adds a section adds it to the list at the top."""
    source = Path(__file__).read_text(encoding="utf-8")
    listed = re.findall(r"^ +(\d+\. .*)$", source.split('"""')[1], re.MULTILINE)
    assert listed == re.findall(r"^# ---- (\d+\. .*?) -+$", source, re.MULTILINE)


@pytest.mark.parametrize("framing, begins, ends", [
    ("chunked", b"2\r\nab\r\n", b"2\r\ncd\r\n0\r\n\r\n"), ("close", b"ab", b"cd"), ("length", b"ab", b"cd")])
def test_each_part_is_sent_at_once_in_every_framing(framing: str, begins: bytes, ends: bytes) -> None:
    """The second part comes only after the hold between them is released."""
    hold = Hold()
    with Service(Reply([b"ab", hold, b"cd", CUT], framing=framing)) as service:
        connection, head = fetch(service)
        hold.wait()
        while not head.endswith(b"\r\n\r\n" + begins):
            head += connection.recv(1)
        hold.release()
        assert (read_all(connection) + b"0\r\n\r\n" * (framing == "chunked")).startswith(ends)


def test_a_gzipped_part_can_be_read_at_once() -> None:
    """A reader need not wait for the end of the encoding."""
    hold = Hold()
    with Service(Reply([b"hello", hold], framing="close", gzip=True)) as service:
        connection, got = fetch(service)
        hold.wait()
        while b"\r\n\r\n" not in got or zlib.decompressobj(31).decompress(got.split(b"\r\n\r\n")[1]) != b"hello":
            got += connection.recv(1)
        connection.close()
        hold.wait_left()


def test_a_connection_can_be_reset() -> None:
    """A reset reaches the client as an error."""
    with Service(Reply([b"ab", RESET])) as service:
        with pytest.raises(ConnectionResetError):
            read_all(fetch(service)[0])


def test_a_request_without_a_reply_fails_the_test() -> None:
    """A test that asks more often than it says is wrong."""
    with pytest.raises(AssertionError, match="no reply scripted for request 1"):
        with Service() as service:
            connection, head = fetch(service)
            connection.close()
            assert b" 500 " in head


def test_an_answer_is_a_complete_stream() -> None:
    """Its deltas join to its text, and its items close before it completes."""
    found = events(reasoning_item(), message_item("Hi there."), call_item("ls"), chunks=["Hi ", "there."])
    assert "".join(e["delta"] for e in found if e["type"] == "response.output_text.delta") == "Hi there."
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert found[-1]["response"]["output"] == done and [item["type"] for item in done][1:] == [
        "message", "function_call"]
    assert sse(delta("\ud83d")).count(b"\\ud83d") == 1


@pytest.mark.parametrize("printed, shown", [
    ("ab\r\ncd", "ab\ncd"),
    ("abcde\r\nf", "abcde\nf"),  # a full line does not wrap before the next character
    ("abcdef", "abcde\nf"),
    ("abcde\b\bX", "abXde"),
    ("abcd牛", "abcd\n牛"),  # two columns do not fit into one
    ("a牛b\x1b[3GX", "a Xb"),  # half of a wide character blanks the other half
    ("abc牛\bX", "abcX"),
    ("e\u0301\U0001f44d\u200d!", "e\u0301\U0001f44d\u200d!"),
    ("ab\x1b[1;31mc\x1b[0m\x1b[?2004h\x1b]0;title\x07d", "abcd"),
    ("abcd\x1b[2D\x1b[K", "ab"),
    ("abcd\r\x1b[1P\x1b[2@", "  bcd"),
    ("abcd\r\x1b[C\x1b[X", "a cd"),
    ("1\r\n2\r\n3\r\n4\x1b[2AX", "1\n2X\n3\n4"),  # three rows: the first line has scrolled off
    ("1\r\n2\r\n3\r\n4\x1b[HX\x1b[J", "1\nX"),
    ("a\tb", "a   b"),
])
def test_the_screen_shows_what_an_xterm_would(printed: str, shown: str) -> None:
    """The cases are fed whole and byte by byte."""
    whole, bytewise = Screen(5, 3), Screen(5, 3)
    whole.feed(printed.encode())
    for byte in printed.encode():
        bytewise.feed(bytes([byte]))
    assert (whole.text(), bytewise.text(), whole.unknown) == (shown, shown, [])


def test_a_program_talks_to_a_terminal(tmp_path: Path, program: Path) -> None:
    """Keys go in, lines come out, and the screen shows both."""
    with Mino(Home(tmp_path), "--flag", launcher=program, cols=40) as mino:
        mino.expect("ready /dev/")
        mino.ask("牛奶")
        mino.expect("got '牛奶' 40")
        mino.resize(60, 10)
        mino.ask("again")
        mino.expect("got 'again' 60")
        assert mino.screen().splitlines()[1:] == ["You> 牛奶", "got '牛奶' 40", "You> again", "got 'again' 60", "You>"]
        mino.ask("/exit")
        assert mino.wait() == 3


def test_a_terminal_tells_of_echo_and_signals(tmp_path: Path, program: Path) -> None:
    """A hidden question turns echo off; Ctrl+C is a signal; so is the end of the window."""
    with Mino(Home(tmp_path), launcher=program) as mino:
        mino.ask("secret")
        mino.expect("Key: ")
        assert not mino.echo_is_on()
        mino.type("\x03")
        mino.expect("KeyboardInterrupt")
        assert mino.wait() == -signal.SIGINT and mino.echo_is_on()
    with Mino(Home(tmp_path), launcher=program) as mino:
        mino.expect("You> ")
        mino.close("pty")
        assert mino.wait() == -signal.SIGHUP


def test_a_wait_that_fails_shows_the_screen(tmp_path: Path, program: Path) -> None:
    """The message of the failure is where one looks first."""
    with Mino(Home(tmp_path), launcher=program) as mino:
        mino.ask("hello")
        with pytest.raises(AssertionError, match=r"(?s)passed without 'goodbye'.*the screen.*You> hello"):
            mino.expect("goodbye", timeout=0.3)


def test_descendants_and_orphans_do_not_outlive_the_block(tmp_path: Path) -> None:
    """Also those in a session of their own, and those whose parent has been killed."""
    script = tmp_path / "parent.py"
    script.write_text("import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)\n"
                      "print('on')\ninput()")
    for kill_first in (False, True):
        with Mino(Home(tmp_path), launcher=script) as mino:
            mino.expect("on")
            (child,) = mino.children()
            if kill_first:
                mino.signal(signal.SIGKILL)
                assert mino.wait() == -signal.SIGKILL
        until(lambda: child not in _processes(), "the child is gone")


def test_streams_can_be_pipes(tmp_path: Path) -> None:
    """Each on its own, closed when wanted, or all of them without any terminal."""
    script = tmp_path / "cat.py"
    script.write_text("import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)\n"
                      "print('done', file=sys.stderr)")
    with Mino(Home(tmp_path), launcher=script, stdin=b"a\n" * 50_000, stdout="pipe") as mino:
        assert mino.wait() == 0
        assert (mino.streams["stdout"], mino.screen()) == (b"A\n" * 50_000, "done")
    with Mino(Home(tmp_path), launcher=script, stdin="pipe", stdout="pipe", stderr="stdout") as mino:
        mino.line("b")
        mino.expect("B\n")
        mino.close("stdin")
        assert (mino.wait(), bytes(mino.output)) == (0, b"B\ndone\n")
    assert run_piped(Home(tmp_path), b"c\n", launcher=script) == (0, "C\n", "done\n")


def test_signals_can_be_ignored_from_the_start(tmp_path: Path) -> None:
    """As under `nohup`."""
    script = tmp_path / "signals.py"
    script.write_text("import signal\nprint([signal.getsignal(s) == signal.SIG_IGN for s in (1, 2, 15)])")
    with Mino(Home(tmp_path), launcher=script, ignore=["SIGHUP"]) as mino:
        mino.expect("[True, False, False]")


def test_records_are_written_and_read(home: Home) -> None:
    """What `numbered` makes is what `records` gives back."""
    made = numbered(*exchange("Hi?", "Hi."), user("ls", TURN_B), response(call_item("ls", call_id="c"), turn=TURN_B),
                    start("c", "ls", TURN_B), result("c", "completed", "x\n", TURN_B, exit_code=0), ack(TURN_B))
    path = home.write_session(made)
    assert (home.session, home.records()) == (path, made) and made[-1]["seq"] == 8
    assert home.kinds()[2:] == ["turn_end completed", "user_message", "model_response", "tool_start",
                                "tool_result completed", "recovery_ack"]


@pytest.mark.parametrize("name", sorted(CAPTURES))
def test_a_captured_stream_is_whole(name: str) -> None:
    """Each line of data is JSON, and the last event with a type completes the response."""
    data = [line[6:] for line in CAPTURES[name].split(b"\n") if line.startswith(b"data: {")]
    assert json.loads(data[-1])["type"] == "response.completed" and CAPTURES[name].endswith(b"\n\n")


@pytest.mark.parametrize("questions, said, command", [
    (["Help"], INTRODUCTION, None),
    (["你好"], INTRODUCTION_ZH, None),
    (["My favourite colour is dark blue.", "What did I say my favorite color is?"], "color is dark blue.", None),
    (["我最喜欢的颜色是蓝色。", "我刚才说最喜欢什么颜色？"], "你最喜欢的颜色是蓝色。", None),
    (["Hello", "What is my favorite color?"], "I see no color in the context", None),
    (["Run go version."], "I need bash", "go version"),
    (["run `ls -l | wc`."], "I need bash", "ls -l | wc"),
    (["run: echo add milk to a.txt ."], "I need bash", "echo add milk to a.txt ."),
    (["运行 date"], "我需要 bash", "date"),
    (["Please add oat milk to shopping.txt."], "I can append it", "echo 'oat milk' >> shopping.txt"),
    (["把 milk 加到 shopping.txt 里。"], "请你批准", "echo milk >> shopping.txt"),
    (["Add milk to shopping.txt slowly"], "kill -9 77\n", "echo milk >> shopping.txt; sleep 25"),
    (["把牛奶慢慢加到 shopping.txt 里"], "kill -9 77\n", "echo '牛奶' >> shopping.txt; sleep 25"),
    (["Show me a crash."], "kill -9 77\n", "echo milk >> shopping.txt; sleep 25"),
    (["Is milk in shopping.txt?"], "I can't know without looking.", "cat shopping.txt"),
    (["现在清单里有 milk 了吗？"], "我可以读取 shopping.txt", "cat shopping.txt"),
    (["Count to 5"], "1 2 3 4 5", None),
    (["Hello", "Sing."], 'I have no rule for that: "Sing."', None),
])
def test_the_practice_model_knows_what_it_was_told(questions: List[str], said: str, command: Optional[str]) -> None:
    """Its rules, with earlier questions as their only memory."""
    says = think({"input": [{"role": "user", "content": question} for question in questions]}, 77)
    assert said in says.text and says.command == command
    assert (menu(understand({"input": [{"role": "user", "content": questions[-1]}]}, 0)) in says.text) == (
        len(questions) == 1 and command is None)


@pytest.mark.parametrize("status, more, said", [
    ("completed", {"output": "milk\neggs\nmilk\n"}, "It holds: milk (2x), eggs (1x)"),
    ("failed", {"exit_code": 1}, "exit code 1"), ("denied", {}, "nothing ran"), ("cancelled", {}, "cancelled")])
def test_the_practice_model_says_what_became_of_a_command(status: str, more: Record, said: str) -> None:
    """And an unknown result is told when its file is asked about."""
    item, question = call_item("cat a.txt", call_id="c"), {"role": "user", "content": "Read a.txt"}
    output = {"type": "function_call_output", "call_id": "c"}
    ended = {**output, "output": json.dumps({"status": status, "output": "", **more})}
    assert said in think({"input": [question, question, item, ended]}, 77).text
    unknown = {**output, "output": json.dumps({"status": "unknown", "output": "?"})}
    assert "cat a.txt, may have run" in think({"input": [question, item, unknown, question]}, 77).text


@pytest.fixture
def practice(tmp_path: Path) -> Path:
    """This file and Mino in a directory of their own, so that the demo's files go there."""
    for path in (MINO, Path(__file__)):
        shutil.copy(path, tmp_path)
    return tmp_path / Path(__file__).name


def test_the_practice_mode_remembers_across_starts(tmp_path: Path, practice: Path) -> None:
    """The home stays, the port changes, the color is recalled from the context."""
    for question, said in (("My favorite color is teal.", "is teal."), ("What is my favorite color?", "is teal.")):
        with Mino(Home(tmp_path), launcher=practice) as mino:
            mino.ask(question)
            mino.expect("Assistant> ")
            mino.expect(said)
            mino.ask("/exit")
            assert mino.wait() == 0
    assert (tmp_path / ".demo" / "home" / ".mino" / "config.json").exists()


def test_the_practice_mode_shows_a_recovery(tmp_path: Path, practice: Path) -> None:
    """The kill -9 it proposes is that of Mino; the next start asks, and the model was told."""
    with Mino(Home(tmp_path), launcher=practice) as mino:
        mino.ask("Add milk to shopping.txt slowly")
        mino.expect("kill -9 ")
        pid = int(mino.expect("\n"))
        mino.expect("[y/N] ")
        mino.line("y")
        until((tmp_path / ".demo" / "work" / "shopping.txt").exists, "the command runs")
        assert pid in mino.children()
        os.kill(pid, signal.SIGKILL)
        assert mino.wait() == 128 + signal.SIGKILL
    with Mino(Home(tmp_path), launcher=practice) as mino:
        mino.expect("may already have run? [y/N] ")
        mino.line("y")
        mino.ask("Is milk in shopping.txt?")
        mino.expect("may have run: its result was not saved.")


@pytest.mark.parametrize("signum, status", [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_practice_mode_ends_with_mino(tmp_path: Path, practice: Path, signum: int, status: int) -> None:
    """A signal that would end the practice mode ends Mino first."""
    with Mino(Home(tmp_path), launcher=practice) as mino:
        mino.expect("You> ")
        mino.signal(signum)
        assert mino.wait() == status and not mino.children()


# ---- 9. The practice mode -----------------------------------------------------------------------------------------
# `python mino_test.py`: the practice service on this machine, and Mino with it, in a home that stays for next time.
# Signals reach Mino as they would without us; its exit status is ours.


def practise() -> int:
    """Run Mino against the practice model; returns its exit status, or 128 and the signal that ended it."""
    home, model = Home(HERE / ".demo"), PracticeModel()
    with Service(otherwise=model) as service:
        home.configure(service.url, key="", model="practice")
        print("Practice mode: the model is a small stand-in, and nothing leaves this machine.")
        print(f"Its files are in {home.path.parent}; type help to see what to try.\n", flush=True)
        status = _run_mino(home, model)
    if status == -signal.SIGKILL:
        print("\nMino was killed. Start the practice again to see what it remembers.")
    return status if status >= 0 else 128 - status


def _run_mino(home: Home, model: PracticeModel) -> int:
    """Run Mino in this terminal; signals that end us are passed on, Ctrl+C reaches it by itself."""
    children: List[subprocess.Popen[bytes]] = []

    def pass_on(signum: int, frame: Any) -> None:
        """Leave Ctrl+C to Mino, and give it what ends us."""
        for child in children if signum != signal.SIGINT else ():
            child.send_signal(signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, pass_on)  # no SIG_IGN, which Mino would inherit
    settings = termios.tcgetattr(0) if os.isatty(0) else None
    environment = {**os.environ, "HOME": str(home.path)}
    with subprocess.Popen([sys.executable, str(MINO)], cwd=home.work, env=environment) as process:
        children.append(process)
        model.pid = process.pid
        status = process.wait()
    if status < 0 and settings is not None:
        termios.tcsetattr(0, termios.TCSADRAIN, settings)
    return status


def main(arguments: List[str]) -> int:
    """The practice mode takes no arguments."""
    if arguments:
        print("usage: python mino_test.py", file=sys.stderr)
        return 2
    return practise()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
