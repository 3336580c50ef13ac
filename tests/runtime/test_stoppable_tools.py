"""
§3.3: blocking calls of real libraries, stopped when their call is cut.

The tools are those of the documentation's cookbook, so that what its readers
copy is what is tested. Nothing here is waited for by time: a deaf server says
when it is asked and when it is left, a query when it runs.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.util
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
import pytest

from anyio_toolbatch import (
    CallStarted,
    LateResult,
    Status,
    Tool,
    ToolBatch,
    ToolCall,
    ToolRunner,
    current_call,
    on_cancel,
    run_batch,
)
from anyio_toolbatch.testing import PromiseObserver

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "stoppable_tools.py"
LIVENESS = 20.0  # seconds where milliseconds are meant


def _cookbook() -> Any:
    spec = importlib.util.spec_from_file_location("stoppable_tools", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cookbook = _cookbook()


# -- the other side --------------------------------------------------------------


class DeafServer:
    """Accepts one connection, says when it is asked something, and never answers."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._context = context
        self.port = self._listener.getsockname()[1]
        self.accepted = threading.Event()
        self.asked = threading.Event()
        self.left = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self.accepted.is_set():  # wake it
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(LIVENESS)
        self._listener.close()
        assert not self._thread.is_alive(), "somebody still has the connection"

    def is_left(self) -> bool:
        """Tell whether nobody has the connection; wait for the news of it."""
        # A tool that was cut very early may never have come here.
        return not self.accepted.is_set() or self.left.wait(LIVENESS)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            self.accepted.set()
            with contextlib.suppress(OSError):  # a reset is a way to leave, too
                if self._context is not None:
                    connection = self._context.wrap_socket(connection, server_side=True)
                with connection:
                    while connection.recv(65536):
                        self.asked.set()
        self.left.set()


class Kind:
    """One kind of blocking call: a tool, its arguments, and how to watch it."""

    def __init__(
        self,
        func: Callable[..., Any],
        arguments: dict[str, Any] | None = None,
        *,
        blocks: threading.Event | None = None,
        is_clean: Callable[[], bool] = lambda: True,
    ) -> None:
        self.func = func
        self.arguments = arguments or {}
        self.blocks = blocks
        """Set when it is in its blocking call, or about to be; None: from its start."""
        self.is_clean = is_clean
        """Whether all that it has opened is closed, once it has ended."""

    def call(self, **options: Any) -> ToolCall:
        tool = Tool(self.func, name="blocking", **options)
        return ToolCall("id", "blocking", self.arguments, tool=tool)

    async def blocking(self, batch: ToolBatch) -> None:
        async for event in batch.events():
            if isinstance(event, CallStarted):
                break
        if self.blocks is not None:
            assert await anyio.to_thread.run_sync(self.blocks.wait, LIVENESS)


Setup = Callable[[pytest.MonkeyPatch, Path], contextlib.AbstractContextManager[Kind]]


@contextlib.contextmanager
def a_query(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
    runs = threading.Event()
    connections: list[sqlite3.Connection] = []

    class Marked(sqlite3.Connection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            connections.append(self)
            self.create_function("mark", 0, runs.set)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Marked))
    sql = (
        "with recursive n(i) as (select coalesce(mark(), 1) union all"
        " select i + 1 from n) select count(*) from n"
    )
    arguments = {"path": str(folder / "shop.db"), "sql": sql}
    yield Kind(
        cookbook.query,
        arguments,
        blocks=runs,
        is_clean=lambda: all(is_closed(connection) for connection in connections),
    )


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes
    except sqlite3.ProgrammingError:
        return True
    return False


@contextlib.contextmanager
def a_read(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
    with DeafServer() as server:
        yield Kind(
            cookbook.receive,
            {"host": "127.0.0.1", "port": server.port},
            blocks=server.accepted,
            is_clean=server.is_left,
        )


def a_request(recipe: str) -> Setup:
    @contextlib.contextmanager
    def setup(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
        with DeafServer() as server:
            yield Kind(
                getattr(cookbook, recipe),
                {"url": f"http://127.0.0.1:{server.port}/slow?page=1"},
                blocks=server.asked,
                is_clean=server.is_left,
            )

    return setup


def a_request_over_tls(recipe: str) -> Setup:
    @contextlib.contextmanager
    def setup(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
        certificate, key = certified(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with DeafServer(context) as server:
            yield Kind(
                getattr(cookbook, recipe),
                {"url": f"https://127.0.0.1:{server.port}/"},
                blocks=server.asked,
                is_clean=server.is_left,
            )

    return setup


def certified(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this machine, as nobody else should have its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    options = [
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"),
        *("-addext", "keyUsage=critical,keyCertSign,digitalSignature"),
    ]
    subprocess.run(
        [openssl, *options, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    return certificate, key


@contextlib.contextmanager
def a_program(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
    processes: list[subprocess.Popen[Any]] = []

    class Kept(subprocess.Popen[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            processes.append(self)
            super().__init__(*args, **kwargs)

    def reaped() -> bool:
        # Killed, waited for, its pipe closed, and really gone.
        ends = [p.returncode for p in processes]
        assert all(p.stdout is None or p.stdout.closed for p in processes)
        return ends in ([], [-signal.SIGKILL]) and server.is_left()

    with DeafServer() as server:
        monkeypatch.setattr(subprocess, "Popen", Kept)
        talk = f"import socket; socket.create_connection(('127.0.0.1', {server.port})).recv(1)"
        command = [sys.executable, "-I", "-c", talk]
        yield Kind(
            cookbook.convert, {"command": command}, blocks=server.accepted, is_clean=reaped
        )


@contextlib.contextmanager
def a_file_that_never_comes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
    yield Kind(cookbook.wait_for_file, {"path": str(folder / "no such file")})


@contextlib.contextmanager
def an_empty_queue(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
    yield Kind(cookbook.next_message)


@contextlib.contextmanager
def a_condition(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
    def is_free() -> bool:
        if free := cookbook.door.acquire(timeout=LIVENESS):
            cookbook.door.release()
        return bool(free)

    yield Kind(cookbook.wait_for_visitor, is_clean=is_free)


@contextlib.contextmanager
def a_visit(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
    asked, gone = threading.Event(), threading.Event()

    async def question(text: str) -> None:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            gone.set()

    def is_gone() -> bool:
        return not asked.is_set() or gone.wait(LIVENESS)

    monkeypatch.setattr(cookbook, "question", question)
    yield Kind(cookbook.ask, {"text": "why?"}, blocks=asked, is_clean=is_gone)


@contextlib.contextmanager
def a_long_file(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
    yield Kind(cookbook.checksum, {"path": "/dev/zero"})


@contextlib.contextmanager
def a_computation(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Kind]:
    has_partial = threading.Event()
    keep = cookbook.keep_partial

    def keep_partial(value: Any) -> None:
        keep(value)
        has_partial.set()

    monkeypatch.setattr(cookbook, "keep_partial", keep_partial)
    arguments = {"number": 3 * (2**127 - 1)}
    yield Kind(cookbook.factorise, arguments, blocks=has_partial)


KINDS: dict[str, Setup] = {
    "sqlite": a_query,
    "socket": a_read,
    "http.client": a_request("fetch"),
    "http.client, TLS": a_request_over_tls("fetch"),
    "urllib": a_request("download"),
    "urllib, TLS": a_request_over_tls("download"),
    "Popen": a_program,
    "polling": a_file_that_never_comes,
    "queue": an_empty_queue,
    "condition": a_condition,
    "from_thread": a_visit,
    "file": a_long_file,
    "computation": a_computation,
}
if sys.platform == "win32":  # no such signal, no such file
    del KINDS["Popen"], KINDS["file"]


@pytest.fixture(params=KINDS)
def kind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Kind]:
    with KINDS[request.param](monkeypatch, tmp_path) as made:
        yield made


# -- stopped -----------------------------------------------------------------------


@pytest.mark.parametrize("way", ["interrupt", "cancel", "caller", "timeout"])
async def test_blocking_call_is_stopped_and_leaves_nothing(
    kind: Kind, way: str, promises: PromiseObserver
) -> None:
    """P2, P6, P10: the turn is back, the thread really ends, no late result, nothing open."""
    late: list[LateResult] = []
    options: dict[str, Any] = {"observers": [promises], "on_late": late.append}
    timeout = 0.1 if way == "timeout" else None  # wherever it finds the tool
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(**options) as runner:
            with anyio.CancelScope() as scope:
                async with runner.open_batch() as batch:
                    handle = batch.submit(kind.call(timeout=timeout))
                    if way != "timeout":
                        await kind.blocking(batch)
                    match way:
                        case "interrupt":
                            assert batch.interrupt()
                        case "cancel":
                            assert handle.cancel()
                        case "caller":
                            scope.cancel()
                        case _:
                            pass
            (result,) = batch.results
            assert await runner.wait_detached(LIVENESS)
            statistics = runner.statistics()
    assert (result.started, result.detached, result.effects) == (True, True, "unknown")
    assert result.reason is not None
    assert (result.status, result.reason.kind) == {
        "interrupt": (Status.INTERRUPTED, "user_interrupt"),
        "cancel": (Status.INTERRUPTED, "call_cancelled"),
        "caller": (Status.INTERRUPTED, "caller_cancelled"),
        "timeout": (Status.TIMED_OUT, "call_timeout"),
    }[way]
    if kind.func is cookbook.factorise:
        assert result.partial == [3]
    assert (statistics.detached, late, statistics.late_results) == ((), [], 0)
    assert kind.is_clean()
    promises.check(batch.id, batch.results)


async def test_within_a_grace_it_is_stopped_and_not_let_go(kind: Kind) -> None:
    """P6: a call that its own callback has unblocked was interrupted; it has not failed."""
    with anyio.fail_after(LIVENESS):
        async with ToolRunner(interrupt_grace=LIVENESS) as runner:
            async with runner.open_batch() as batch:
                batch.submit(kind.call())
                await kind.blocking(batch)
                batch.interrupt()
            assert runner.statistics().detached == ()
    (result,) = batch.results
    assert (result.status, result.error) == (Status.INTERRUPTED, None)
    assert (result.started, result.detached, result.effects) == (True, False, "unknown")
    assert kind.is_clean()


# -- where a cut could be missed ---------------------------------------------------


async def test_cut_before_the_statement_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """§3.3: `Connection.interrupt` finds nothing to stop then; the handler does."""
    reached = threading.Event()
    with a_query(monkeypatch, tmp_path) as kind:
        connect: Any = sqlite3.connect
        marked = connect.keywords["factory"]

        def execute(self: sqlite3.Connection, *args: Any) -> Any:
            reached.set()
            assert current_call().cancelled.wait(LIVENESS)
            interrupted.wait(LIVENESS)  # its callback has been and gone
            return sqlite3.Connection.execute(self, *args)

        def interrupt(self: sqlite3.Connection) -> None:
            sqlite3.Connection.interrupt(self)
            interrupted.set()

        interrupted = threading.Event()
        monkeypatch.setattr(marked, "execute", execute)
        monkeypatch.setattr(marked, "interrupt", interrupt)
        async with ToolRunner() as runner:
            async with runner.open_batch([kind.call()]) as batch:
                assert await anyio.to_thread.run_sync(reached.wait, LIVENESS)
                batch.interrupt()
            assert await runner.wait_detached(LIVENESS)
            assert runner.statistics().late_results == 0
        assert kind.is_clean()


@pytest.mark.parametrize("recipe", ["receive", "fetch", "download"])
async def test_cut_before_there_is_a_connection(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§3.3: a callback that is registered after the cut is called at once."""
    connecting = threading.Event()
    connect = socket.socket.connect

    def late_connect(self: socket.socket, address: Any) -> None:
        connecting.set()
        assert current_call().cancelled.wait(LIVENESS)
        connect(self, address)

    with DeafServer() as server:
        url = {"url": f"http://127.0.0.1:{server.port}/"}
        arguments = {"host": "127.0.0.1", "port": server.port} if recipe == "receive" else url
        kind = Kind(getattr(cookbook, recipe), arguments)
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "connect", late_connect)
            async with ToolRunner() as runner:
                async with runner.open_batch([kind.call()]) as batch:
                    assert await anyio.to_thread.run_sync(connecting.wait, LIVENESS)
                    batch.interrupt()
                assert await runner.wait_detached(LIVENESS)
                assert runner.statistics().late_results == 0
        assert not server.asked.is_set()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc; others were not tested")
async def test_connecting_is_stopped_where_the_socket_is_there() -> None:
    """§3.3: on Linux `shutdown` also ends a connect that nobody answers."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [stack.enter_context(socket.socket()) for _ in range(4)]
        for filler in fillers:  # until its line is full: what comes then is not answered
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        own = {filler.getsockname()[1] for filler in fillers}
        kind = Kind(cookbook.receive, {"host": "127.0.0.1", "port": port})
        async with ToolRunner() as runner:
            async with runner.open_batch([kind.call()]) as batch:
                with anyio.fail_after(LIVENESS):
                    while not connecting_to(port) - own:
                        await anyio.sleep(0.001)
                batch.interrupt()
            assert await runner.wait_detached(LIVENESS)
            assert runner.statistics().late_results == 0
        assert not connecting_to(port) - own


def connecting_to(port: int) -> set[int]:
    """Return the ports from which somebody waits for this one to answer."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, state, *_ = line.split()
        if (there, state) == (f"0100007F:{port:04X}", "02"):  # SYN sent
            found.add(int(here.partition(":")[2], 16))
    return found


async def test_without_a_look_at_the_flag_the_error_is_late_or_a_failure() -> None:
    """P5, P6: what `unblocked_by` is for; within a grace a tool's error is its answer."""
    waiting = threading.Event()

    def read() -> bytes:
        here, there = socket.socketpair()
        with here, there, on_cancel(lambda: here.shutdown(socket.SHUT_RDWR)):
            waiting.set()
            if not (got := here.recv(1)):
                raise ConnectionError("closed")
            return got

    late: list[LateResult] = []
    async with ToolRunner([read], on_late=late.append) as runner:
        for grace in (0.0, LIVENESS):
            waiting.clear()
            async with runner.open_batch([ToolCall("0", "read")]) as batch:
                assert await anyio.to_thread.run_sync(waiting.wait, LIVENESS)
                batch.interrupt(grace=grace)
            assert await runner.wait_detached(LIVENESS)
    assert [type(result.error) for result in late] == [ConnectionError]
    assert (batch.results[0].status, batch.results[0].reason) == (Status.FAILED, None)


# -- not stopped -------------------------------------------------------------------


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...


async def test_recipes_give_their_values_when_nobody_cuts_them(tmp_path: Path) -> None:
    """§3.3: a tool that can be stopped is a tool that works."""
    (tmp_path / "note").write_text("here")
    cookbook.inbox.put("hello")
    cookbook.visitors.append("Ada")
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server,
        socket.create_server(("127.0.0.1", 0)) as greeter,
    ):
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        greeting = threading.Thread(target=greet, args=[greeter])
        greeting.start()
        page = f"http://127.0.0.1:{server.server_port}/page?a=1"
        wanted: list[tuple[Callable[..., Any], dict[str, Any], Any]] = [
            (cookbook.query, {"path": ":memory:", "sql": "select 1, 2"}, [(1, 2)]),
            (
                cookbook.receive,
                {"host": "localhost", "port": greeter.getsockname()[1]},
                "hello",
            ),
            (cookbook.fetch, {"url": page}, "/page?a=1"),
            (cookbook.download, {"url": page}, "/page?a=1"),
            (cookbook.convert, {"command": [sys.executable, "-c", "print('done')"]}, "done\n"),
            (cookbook.wait_for_file, {"path": str(tmp_path / "note")}, "here"),
            (cookbook.next_message, {}, "hello"),
            (cookbook.wait_for_visitor, {}, "Ada"),
            (cookbook.factorise, {"number": 2001}, [3, 23, 29]),
        ]
        try:
            results = await run_batch(
                [ToolCall("id", "t", args, tool=func) for func, args, _ in wanted]
            )
        finally:
            server.shutdown()
            serving.join(LIVENESS)
            greeting.join(LIVENESS)
    assert [result.unwrap() for result in results] == [value for *_, value in wanted]


def greet(listener: socket.socket) -> None:
    listener.settimeout(LIVENESS)
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"hello")


async def test_errors_of_their_own_are_failures() -> None:
    """P6: what nobody has stopped has failed, with the error that the library raised."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = {"url": f"http://127.0.0.1:{port}/"}
    cases: list[tuple[Callable[..., Any], dict[str, Any], type[BaseException]]] = [
        (cookbook.query, {"path": ":memory:", "sql": "nonsense"}, sqlite3.OperationalError),
        (cookbook.receive, {"host": "127.0.0.1", "port": port}, ConnectionRefusedError),
        (cookbook.fetch, url, ConnectionRefusedError),
        (cookbook.download, url, OSError),
        (
            cookbook.convert,
            {"command": [sys.executable, "-c", "raise SystemExit(3)"]},
            subprocess.CalledProcessError,
        ),
    ]
    results = await run_batch(
        [ToolCall("id", "t", arguments, tool=func) for func, arguments, _ in cases]
    )
    for result, (_, _, error) in zip(results, cases, strict=True):
        assert result.status is Status.FAILED and isinstance(result.error, error)
