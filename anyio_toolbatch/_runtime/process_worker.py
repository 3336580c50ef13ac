"""
What runs in a worker process.

Two steps per call: *load* (unpickle the function and its arguments, and so import
what they need), which may be slow or fail, and after which nothing has begun; then *go*,
which comes when the call's start is certain. Until then the worker can be given
another call.

The main thread calls one function after the other and tells what comes of it. A
second thread reads the requests; it notices when the program that has started
us is gone, however that came about, and ends the process with what it has started.

A message is its kind, a length, and so many bytes. A value, an item or an error is
pickled by itself, so that one that can't be is the failure of that call, not of
the worker.

This file is loaded alone, without its package, which would take several times as
long to import: it imports little, and what is seldom needed only then.
"""

from __future__ import annotations

import contextvars
import importlib
import io
import os
import pickle
import signal
import struct
import sys
import threading
from queue import SimpleQueue
from types import GeneratorType, ModuleType

TYPE_CHECKING = False  # `typing` itself takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = (
    "ERROR",
    "GO",
    "ITEM",
    "LOAD",
    "LOADED",
    "PARTIAL",
    "PREPARE",
    "PROGRESS",
    "VALUE",
    "FunctionName",
    "bootstrap",
    "can_travel",
    "in_worker",
    "main",
    "read_message",
    "refuse_recursion",
    "sendable",
    "speaker",
    "text_of",
    "unpickled",
    "write_message",
)

PREPARE, LOAD, GO = b"P", b"L", b"G"
"""What the program asks for."""
LOADED, VALUE, ERROR, ITEM, PARTIAL, PROGRESS = b"l", b"v", b"e", b"i", b"p", b"r"
"""What a worker answers: it is ready to go, or how the call ended; and what comes before."""

_HEAD = struct.Struct("!cQ")
_SMALL = 32_768  # bytes; up to there a copy costs less than a second write


# -- messages ------------------------------------------------------------------


def write_message(stream: io.FileIO, kind: bytes, body: bytes = b"") -> None:
    """
    Write a message.

    Raises:
        OSError: Nobody reads.
    """
    head = _HEAD.pack(kind, len(body))
    for part in (head + body,) if len(body) <= _SMALL else (head, body):
        rest = memoryview(part)
        while rest:
            rest = rest[stream.write(rest) or 0 :]


def read_message(stream: io.FileIO) -> tuple[bytes, bytearray]:
    """
    Return a message's kind and body.

    Raises:
        EOFError: There are no more.
    """
    kind, length = _HEAD.unpack(_read_exactly(stream, _HEAD.size))
    return kind, _read_exactly(stream, length)


def _read_exactly(stream: io.FileIO, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = stream.readinto(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return data


class _Unpickler(pickle.Unpickler):
    """Remembers what it was about to make, to name it where that fails."""

    found = "a builtin"

    def find_class(self, module: str, name: str) -> Any:
        self.found = f"{module}.{name}"
        return super().find_class(_present(module), name)


def unpickled(body: bytes | bytearray) -> Any:
    """
    Return what was pickled.

    Raises:
        TypeError: It can't be read here; the message names the type.
    """
    unpickler = _Unpickler(io.BytesIO(body))
    try:
        return unpickler.load()
    except Exception as exc:
        msg = f"{unpickler.found} can't be unpickled: {text_of(exc)}"
        raise TypeError(msg) from exc


def text_of(error: BaseException) -> str:
    """Render an error as ``Type: message``; never raises."""
    try:
        return f"{type(error).__qualname__}: {error}"
    except Exception:  # noqa: BLE001 - whatever its __str__ may raise
        return type(error).__qualname__


class FunctionName:
    """
    Where a decorated function can be found.

    ``@tool`` puts a `Tool` in the place of the function, and what is not
    found under its own name can't be pickled.
    """

    def __init__(self, module: str, qualname: str) -> None:
        self.module = module
        self._qualname = qualname

    @classmethod
    def of(cls, tool: Any) -> FunctionName | None:
        """Return the name of a tool's function, if the tool is found under it."""
        module = getattr(tool.func, "__module__", None)
        qualname = getattr(tool.func, "__qualname__", None)
        if not module or not qualname or "<" in qualname:
            return None
        name = cls(module, qualname)
        try:
            return name if name.resolve() is tool.func else None
        except (ImportError, AttributeError):
            return None

    def resolve(self) -> Any:
        found: Any = importlib.import_module(_present(self.module))
        for part in self._qualname.split("."):
            found = getattr(found, part)
        return found.func


# -- the main module of the program ------------------------------------------

_MAIN_NAME = "__mp_main__"
"""What it is called here, so that ``if __name__ == "__main__"`` is false; as
`multiprocessing` has it."""
_main: tuple[str | None, str | None] | None = None
"""Its name, if it has one, and its path; None once it has been imported."""
_is_importing_main = False


def _present(module: str) -> str:
    """Return the name of a module in this process; the main one is imported."""
    if module in {"__main__", _MAIN_NAME}:
        _import_main()
        return "__main__"
    return module


def _import_main() -> None:
    """
    Import the program's main module under its other name; once, when it is needed.

    Not from the start: it may take long, and without a guard it runs the program.
    """
    global _main, _is_importing_main  # noqa: PLW0603 - the ones of this process
    if _main is None or _is_importing_main:
        return
    import runpy  # here, since it is seldom needed

    name, path = _main
    _is_importing_main = True
    try:
        # A package's __main__ rarely has a guard; `multiprocessing` leaves it out, too.
        if name is not None and name.rpartition(".")[2] != "__main__":
            found = runpy.run_module(name, run_name=_MAIN_NAME, alter_sys=True)
        elif name is None and path is not None:
            found = runpy.run_path(path, run_name=_MAIN_NAME)
        else:
            found = {}
    finally:
        _is_importing_main = False
    _main = None
    module = ModuleType(_MAIN_NAME)
    module.__dict__.update(found)
    sys.modules["__main__"] = sys.modules[_MAIN_NAME] = module


def refuse_recursion() -> None:
    """
    End the worker if a process call is made while it imports the main module.

    Without a guard the main module runs the program again, here: a worker in a
    worker in a worker.
    """
    if _is_importing_main:
        assert _channel is not None
        msg = (
            "the main module makes tool calls when it is imported, as a worker process must "
            'do; put what runs the program below `if __name__ == "__main__":`'
        )
        _channel.send(ERROR, RuntimeError(msg))
        _kill_group()


# -- what a tool says ----------------------------------------------------------


class _Channel:
    """Where this process's answers go."""

    def __init__(self, stream: io.FileIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, kind: bytes, value: Any = None, speaker: Speaker | None = None) -> None:
        """
        Tell something.

        Args:
            kind: VALUE and ERROR are a call's last.
            value: What there is to tell.
            speaker: The call; what it says after its last goes nowhere.

        Raises:
            TypeError: The value can't be pickled, and nothing was sent.
            OSError: Nobody reads.
        """
        try:
            body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except BaseException as exc:  # the value's own code; a SystemExit ends no worker
            name = type(value).__qualname__
            msg = f"a value of type {name} can't be pickled: {text_of(exc)}"
            raise TypeError(msg) from exc
        with self._lock:
            if speaker is not None:
                if speaker.is_over:
                    return
                speaker.is_over = kind in {VALUE, ERROR}
            write_message(self._stream, kind, body)


class Speaker:
    """One call, as its tool speaks through it."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self.is_over = False

    def send(self, kind: bytes, value: Any) -> None:
        self._channel.send(kind, value, self)


speaker: contextvars.ContextVar[Speaker] = contextvars.ContextVar("anyio_toolbatch_speaker")
"""Set while a worker process runs a tool. By context: a thread that a tool has left
behind must not speak for the next call."""

_channel: _Channel | None = None


def in_worker() -> bool:
    """Tell whether this is a worker process."""
    return _channel is not None


# -- the process ---------------------------------------------------------------


def main(request_fd: int, answer_fd: int) -> None:
    """Serve until the requests end."""
    global _channel, _main  # noqa: PLW0603 - the ones of this process
    requests = io.FileIO(request_fd, "r")
    answers = io.FileIO(answer_fd, "w")
    channel = _channel = _Channel(answers)
    if hasattr(os, "register_at_fork"):
        # A child of the tool's must not keep a pipe open that ends with us.
        os.register_at_fork(after_in_child=requests.close)
        os.register_at_fork(after_in_child=answers.close)
    _, preparation = read_message(requests)
    sys.path[:], sys.argv[:], _main = pickle.loads(preparation)
    waiting: SimpleQueue[tuple[bytes, bytearray] | None] = SimpleQueue()
    threading.Thread(target=_read, args=(requests, waiting), daemon=True).start()
    death = _Death(requests)
    call: tuple[Any, dict[str, Any]] | None = None
    while (request := waiting.get()) is not None:
        kind, body = request
        if kind == LOAD:
            call = None
            call = _load(channel, body)
        else:
            assert call is not None, "not loaded"
            (function, arguments), call = call, None
            directory, streams = pickle.loads(body)
            try:
                _serve(Speaker(channel), death, function, arguments, directory, streams)
            except OSError:
                # No way back is left: the tool has closed it, or nobody reads. Our end says so.
                os._exit(1)
            del function, arguments
            if _has_left_something():
                _kill_group()
    os._exit(1)


def _read(requests: io.FileIO, waiting: SimpleQueue[tuple[bytes, bytearray] | None]) -> None:
    try:
        while True:
            waiting.put(read_message(requests))
    except EOFError:
        _kill_group()
    except OSError:
        waiting.put(None)  # the tool has closed it, and is still at work


def _kill_group() -> None:
    """End this process, with all that it has started."""
    if hasattr(os, "killpg"):
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


class _Death:
    """
    While it is entered, the end of the requests kills the process group at once.

    By the kernel's own hand: `_read` needs the interpreter's lock for it, and
    a tool in C code may keep that for long. Linux only. To be left before the last
    answer: the next request would kill, too.
    """

    def __init__(self, requests: io.FileIO) -> None:
        self._fd = requests.fileno()
        self._fcntl: Any = None
        try:
            import fcntl

            fcntl.fcntl(self._fd, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(self._fd, fcntl.F_SETSIG, signal.SIGKILL)
        except (ImportError, AttributeError, OSError):
            pass  # another system
        else:
            self._fcntl = fcntl

    def __enter__(self) -> None:
        self._set(os.O_ASYNC)

    def __exit__(self, *exc: object) -> None:
        self._set(0)

    def _set(self, flags: int) -> None:
        if self._fcntl is not None:
            self._fcntl.fcntl(self._fd, self._fcntl.F_SETFL, flags)


def _load(channel: _Channel, request: bytearray) -> tuple[Any, dict[str, Any]] | None:
    try:
        function, arguments = unpickled(request)
        if isinstance(function, FunctionName):
            function = function.resolve()
    except BaseException as exc:  # noqa: BLE001 - whatever an import may raise
        error = TypeError(f"it can't be loaded in a worker process: {text_of(exc)}")
        error.add_note(_traceback_of(exc))
        channel.send(ERROR, error)
        return None
    channel.send(LOADED)
    return function, arguments


def _serve(
    call: Speaker,
    death: _Death,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    directory: str | None,
    streams: bool,
) -> None:
    kind = VALUE
    try:
        if directory is not None:  # a tool before may have left it
            os.chdir(directory)
        context = contextvars.copy_context()
        context.run(speaker.set, call)
        run = _stream if streams else _run
        with death:
            value = context.run(run, call, function, arguments)
    except BaseException as exc:  # noqa: BLE001 - the call's failure, whatever it is
        kind, value = ERROR, sendable(exc)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # the tool has closed it, or nobody reads it
    try:
        call.send(kind, value)
    except TypeError as exc:
        call.send(ERROR, sendable(exc))


def _run(call: Speaker, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return function(**arguments)


def _stream(call: Speaker, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    last = None
    generator: GeneratorType[Any, Any, Any] = function(**arguments)
    try:
        for last in generator:
            call.send(ITEM, last)
    finally:
        generator.close()
    return last


def _has_left_something() -> bool:
    """Tell whether a tool has left threads or processes, which would go on in the next call."""
    if threading.active_count() > 2:
        return True
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def sendable(error: BaseException) -> BaseException:
    """Return the error, with its traceback as a note, or one that says what it was."""
    note = _traceback_of(error)
    try:
        error.add_note(note)
    except Exception:  # noqa: BLE001 - whatever its methods may raise
        pass
    else:
        if can_travel(error):
            return error
    other = RuntimeError(f"the tool raised what can't be pickled: {text_of(error)}")
    other.add_note(note)
    return other


def can_travel(error: BaseException) -> bool:
    """Tell whether it can be pickled and read again; many can't be read."""
    try:
        pickle.loads(pickle.dumps(error))
    except BaseException:  # noqa: BLE001 - whatever its methods may raise
        return False
    return True


def _traceback_of(error: BaseException) -> str:
    import traceback  # here, since it is seldom needed

    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # noqa: BLE001 - whatever its methods may raise
        return "(its traceback can't be shown)"


def bootstrap() -> str:
    """Return the program of a worker; standard input and output are its channel."""
    return (
        "import os, sys\n"
        "requests, answers = os.dup(0), os.dup(1)\n"
        # The tool's own: there is nothing to read, and what it prints must not
        # get among the answers.
        "null = os.open(os.devnull, os.O_RDONLY)\n"
        "os.dup2(null, 0); os.dup2(2, 1); os.close(null)\n"
        # The folder that we happen to be in comes first here, with its own `queue.py`.
        "sys.path[:] = filter(None, sys.path)\n"
        # Under its own name, so that a tool that imports the package finds this module.
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        f"spec = spec_from_file_location({__name__!r}, {__file__!r})\n"
        "module = sys.modules[spec.name] = module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "module.main(requests, answers)\n"
    )
