"""Where the answer goes: whole or not at all, and never lost without a word."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX's files and descriptors")

TOOLS = """
from pathlib import Path
def mark():
    Path("ran").touch()
    return "done"
def large():
    return "x" * 1_000_000
def active():
    return "\\x1b[31m \\x9b31m \\x7f \\u202e \\u2028 ünïcode 😀"
"""


@pytest.fixture
def run(desk: Any, main: Any) -> Any:
    desk.turn(desk.openai(("mark", {})))
    desk.write("tools.py", TOOLS)
    return lambda *args: main("run", "turn.json", "--tools", "tools.py", *args)


def contents(path: Path) -> list[str]:
    return [message["content"] for message in json.loads(path.read_text(encoding="utf-8"))]


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(".tmp")]


def test_output_takes_the_place_of_standard_output(desk: Any, run: Any) -> None:
    """The file holds what would have been printed; nothing else is left beside it."""
    code, out, _ = run("--output", "answers.json")
    assert (code, out) == (0, "")
    assert contents(desk.folder / "answers.json") == ["done"]
    assert leftovers(desk.folder) == []


def test_nothing_in_the_answer_is_active(desk: Any, run: Any) -> None:
    """What a tool has read somewhere commands no terminal and turns no line; the rest is as is."""
    desk.turn(desk.openai(("active", {})))
    _, out, _ = run()
    assert [char for char in out if not char.isprintable()] == ["\n"] * out.count("\n")
    assert "ünïcode 😀" in out
    (message,) = json.loads(out)
    assert message["content"] == "\x1b[31m \x9b31m \x7f \u202e \u2028 ünïcode 😀"


@posix
def test_an_existing_file_keeps_its_permissions_and_a_new_one_gets_the_usual(
    desk: Any, run: Any
) -> None:
    """A file that was shared, or private, is so afterwards; a new one obeys the umask."""
    old = desk.write("old.json", "old")
    old.chmod(0o604)
    umask = os.umask(0o027)
    try:
        run("--output", "old.json")
        run("--output", "new.json")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(old.stat().st_mode) == 0o604
    assert stat.S_IMODE((desk.folder / "new.json").stat().st_mode) == 0o640
    assert contents(old) == ["done"]


@posix
def test_a_link_stays_a_link(desk: Any, run: Any) -> None:
    """The file behind a link is replaced, not the link."""
    (desk.folder / "real").mkdir()
    target = desk.write("real/answers.json", "old")
    link = desk.folder / "link.json"
    link.symlink_to(target)
    run("--output", "link.json")
    assert link.is_symlink()
    assert contents(target) == ["done"]


@posix
def test_what_is_no_ordinary_file_is_written_to_not_replaced(desk: Any, run: Any) -> None:
    """A named pipe (or /dev/null!) is still there afterwards."""
    pipe = desk.folder / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    code, _, _ = run("--output", "pipe")
    reader.join()
    assert code == 0
    assert json.loads(got[0])[0]["content"] == "done"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (".", ["--output . is a directory"]),
        ("no_folder/answers.json", ["--output no_folder/answers.json", "there is no folder"]),
        ("turn.json/answers.json", ["there is no folder"]),
    ],
)
def test_an_impossible_output_is_found_before_any_tool_runs(
    desk: Any, run: Any, target: str, words: list[str]
) -> None:
    """Tools have effects: what cannot be written is refused before them."""
    code, out, err = run("--output", target)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err
    assert not (desk.folder / "ran").exists()


@posix
@pytest.mark.skipif(sys.platform != "win32" and os.geteuid() == 0, reason="root may write all")
def test_an_output_without_permission_is_found_before_any_tool_runs(
    desk: Any, run: Any
) -> None:
    """A read-only file and a read-only folder are refused, both."""
    (desk.folder / "closed").mkdir(mode=0o555)
    desk.write("old.json", "old").chmod(0o444)
    for target in ("old.json", "closed/answers.json"):
        code, _, err = run("--output", target)
        assert code == 2 and "cannot be written" in err
    assert not (desk.folder / "ran").exists()


def test_a_disk_that_is_full_at_the_end_loses_nothing(
    desk: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file stays, and the answer goes to standard output: tools have run."""

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    old = desk.write("answers.json", "old")
    monkeypatch.setattr(os, "fsync", full)
    code, out, err = run("--output", "answers.json")
    assert code == 2
    assert old.read_text() == "old"
    assert leftovers(desk.folder) == []
    assert "answers.json could not be written: No space left" in err
    assert json.loads(out)[0]["content"] == "done"


@posix
def test_a_reader_that_has_gone_is_no_traceback(desk: Any) -> None:
    """``… | head -1`` ends quietly."""
    command = desk.start(desk.openai(("large", {})), TOOLS)
    command.process.stdout.read(1)
    command.process.stdout.close()
    command.process.stdout = None
    code, _, err = command.end()
    assert code == 0
    assert "Traceback" not in err and "Broken pipe" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_standard_output_that_is_full_is_told(desk: Any) -> None:
    """An answer that could not be written is no success."""
    with open("/dev/full", "wb") as full:
        command = desk.start(desk.openai(("mark", {})), TOOLS, stdout=full)
        code, _, err = command.end()
    assert code == 2
    assert "standard output could not be written: No space left" in err
    assert "Traceback" not in err


@posix
def test_a_standard_output_that_is_closed_is_found_before_any_tool_runs(desk: Any) -> None:
    """There is nowhere to print to, so nothing is run; with `--output` all is well."""
    desk.turn(desk.openai(("mark", {})))
    desk.write("tools.py", TOOLS)
    closed = ["sh", "-c", 'exec "$@" >&-', "sh"]
    args = ("run", "turn.json", "--tools", "tools.py")
    code, _, err = desk.start_raw(*args, prefix=closed).end()
    assert code == 2 and "standard output is closed" in err
    assert not (desk.folder / "ran").exists()
    code, _, _ = desk.start_raw(*args, "--output", "answers.json", prefix=closed).end()
    assert code == 0
    assert contents(desk.folder / "answers.json") == ["done"]


@posix
def test_a_standard_error_that_is_closed_costs_only_the_progress(desk: Any) -> None:
    """Without standard error the answer comes all the same, and nothing else with it."""
    desk.turn(desk.openai(("mark", {})))
    desk.write("tools.py", TOOLS + "print('at import')\n")
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh"]
    command = desk.start_raw("run", "turn.json", "--tools", "tools.py", prefix=closed)
    code, out, _ = command.end()
    assert (code, json.loads(out)[0]["content"]) == (0, "done")
