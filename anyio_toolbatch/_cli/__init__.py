"""
The command line: arguments in, exit status out.

The order of the work keeps one rule: whatever can be found wrong is found
before the first tool runs, for a tool's effects cannot be taken back.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Sequence
from typing import NoReturn

from .errors import UnusableInputError
from .inputs import FORMATS, read_turn
from .output import FileTarget, Stdout, Target
from .progress import say
from .run import BACKENDS, RunOptions, check_backend, run_turn
from .toolbox import load_tools

__all__ = ("main",)

EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130

_EPILOG = """\
exit status: 0 every call completed; 1 some did not (--interrupt-after included);
2 the input cannot be used; 130 interrupted by the user; 143 told to terminate.
The first Ctrl-C interrupts the batch and prints all results, the second leaves
at once.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run the command line and return its exit status.

    Args:
        argv: The arguments without the program's name. None: those of the
            process, which then is this command's own. It ends within about a
            second of the answer, even if a tool refuses to.
    """
    if argv is None:
        _let_warnings_through()
    try:
        options = _parser().parse_args(argv)
        return _run(options, owns_process=argv is None)
    except UnusableInputError as exc:
        say(f"anyio-toolbatch: {exc}")
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        # Once the batch runs, Ctrl-C goes another way; see `signals`.
        say("anyio-toolbatch: interrupted before any tool was run")
        return EXIT_INTERRUPTED
    except SystemExit as exc:  # argparse, after it has printed its help
        return exc.code if isinstance(exc.code, int) else 0


def _let_warnings_through() -> None:
    """Here it is the program, not the library, that decides: warnings go to stderr."""
    logger = logging.getLogger("anyio_toolbatch")
    for handler in list(logger.handlers):
        if isinstance(handler, logging.NullHandler):
            logger.removeHandler(handler)


def _run(options: argparse.Namespace, *, owns_process: bool) -> int:
    check_backend(options.backend)
    turn = read_turn(options.calls, options.format)
    with Stdout() as stdout:
        tools = load_tools(options.tools)
        to_stdout = options.output in {None, "-"}
        target: Target = stdout if to_stdout else FileTarget(options.output)
        target.check()
        trace = None
        if options.trace is not None:
            trace = FileTarget(options.trace, "--trace")
            trace.check()
            if isinstance(target, FileTarget) and trace.path == target.path:
                msg = "--output and --trace name the same file; expected two"
                raise UnusableInputError(msg)
        how = RunOptions(
            backend=options.backend,
            timeout=options.timeout,
            grace=options.grace,
            max_threads=options.max_threads,
            interrupt_after=options.interrupt_after,
            trace=trace,
        )
        return run_turn(turn, tools, how, stdout, target, owns_process=owns_process)


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence, as all others here are."""

    def error(self, message: str) -> NoReturn:
        msg = f"{message} (see {self.prog} --help)"
        raise UnusableInputError(msg)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="anyio-toolbatch",
        description="Run the tool calls of one model turn; be able to stop it at any moment.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    run = commands.add_parser(
        "run",
        help="run the tool calls of one assistant message",
        description=(
            "Run the tool calls of one assistant message and print, as JSON, exactly "
            "the messages to append to the next request."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "calls",
        metavar="CALLS.json",
        help="the assistant message: the message, the whole response, or the bare "
        "list of its calls; '-' reads standard input",
    )
    run.add_argument(
        "--tools",
        required=True,
        metavar="FILE_OR_MODULE",
        help="where the tools are: a Python file, or a module's name; its TOOLS, or "
        "else its Tool objects and public functions",
    )
    run.add_argument(
        "--format",
        choices=sorted(FORMATS),
        help="the message's format; found out from the message if not given",
    )
    run.add_argument(
        "--backend",
        choices=BACKENDS,
        default="asyncio",
        help="the event loop to run on (default: %(default)s)",
    )
    run.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="the time limit of the whole batch",
    )
    run.add_argument(
        "--grace",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long an interrupt waits for running calls to give their own answer "
        "(default: not at all)",
    )
    run.add_argument(
        "--max-threads",
        type=_count,
        default=32,
        metavar="N",
        help="how many blocking calls may run at once (default: %(default)s)",
    )
    run.add_argument(
        "--interrupt-after",
        type=_seconds,
        metavar="SECONDS",
        help="interrupt the batch by itself, for trying it",
    )
    run.add_argument(
        "--output",
        metavar="FILE",
        help="write there instead of to standard output; an existing file is replaced "
        "only when the new content is complete",
    )
    run.add_argument(
        "--trace",
        metavar="FILE",
        help="also write a timeline of the calls there, for https://ui.perfetto.dev",
    )
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        msg = f"expected a number of seconds, 0 or more, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return value


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        msg = f"expected a whole number, 1 or more, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return value
