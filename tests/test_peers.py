"""The benchmarks against peers: the harness, and that the page shows what was measured."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHOWN = ROOT / "docs" / "explanation" / "comparison"

OURS = ["toolbatch", "toolbatch-trio"]
OTHERS = ["gather", "executor", "anyio", "trio"]
"""Those of the peers that need no package of their own."""


def ask(name, measure, **options):
    """Have one order carried out in a process of its own, as the benchmarks do."""
    order = {"measure": measure, "options": options, "last": True}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.host", name],
        input=json.dumps(order) + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    gone = time.monotonic()
    answer, returned = map(json.loads, done.stdout.splitlines())
    assert "error" not in answer, answer
    return {**answer, **returned, "gone": gone}


@pytest.mark.parametrize("name", OURS)
def test_our_stop_keeps_answers_and_lets_nothing_late_in(name):
    """P1, P3, P5: the harness sees of this library what it promises."""
    found = ask(name, "stop", left=50.0)
    assert found.pop("back") < 20
    for unneeded in ("returned", "gone"):
        found.pop(unneeded)
    assert found == {
        "kept": 7,
        "answered": True,
        "waited": False,
        "returns": False,
        "writes": False,
    }


@pytest.mark.parametrize(
    ("name", "kept", "returns"),
    [("gather", 0, False), ("executor", 7, True), ("anyio", 7, False), ("trio", 7, False)],
)
def test_what_a_bare_stop_loses_and_lets_in_is_seen(name, kept, returns):
    """The harness can tell: none of these answers the call that was at work."""
    found = ask(name, "stop", left=50.0)
    assert (found["kept"], found["returns"]) == (kept, returns)
    assert (found["answered"], found["waited"], found["writes"]) == (False, False, True)


def test_who_waits_for_the_last_tool_is_seen():
    """The harness can tell a result that came late from one that was waited for."""
    found = ask("anyio-waiting", "stop", left=0.5)
    assert (found["kept"], found["answered"], found["waited"]) == (7, True, True)
    assert (found["returns"], found["writes"]) == (False, False)


@pytest.mark.parametrize("name", OURS)
def test_the_process_leaves_while_a_tool_is_at_work(name):
    """P7, as the benchmarks measure it."""
    found = ask(name, "leaving", left=50.0)
    assert found["stopped"] <= found["back"] <= found["returned"] <= found["gone"]
    assert found["gone"] - found["stopped"] < 20


@pytest.mark.parametrize("name", [*OURS, "gather", "anyio", "trio"])
@pytest.mark.parametrize("stops", [True, False])
def test_a_stall_is_timed_with_all_calls_told(name, stops):
    """The measure ends, and gives figures, for each of them."""
    found = ask(name, "stall", count=20, stops=stops)
    assert found["longest"] > 0
    assert (found["back"] > 0) is stops


@pytest.mark.parametrize("name", [*OURS, *OTHERS])
@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_cost_is_timed_with_all_answers_there(name, kind):
    """Who does not do the work is not quick, but an error."""
    if (name, kind) == ("executor", "async"):
        pytest.skip("it runs no async tools")
    assert ask(name, "cost", kind=kind, count=3, at_least=0.0001)["wall"] > 0


def test_the_page_shows_what_was_measured(tmp_path):
    """The tables in the docs are those of the figures beside them."""
    shutil.copy(SHOWN / "figures.json", tmp_path)
    subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.page", str(tmp_path)], check=True, cwd=ROOT
    )
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == sorted(p.name for p in SHOWN.iterdir() if p.suffix != ".svg")
    for name in written:
        assert (tmp_path / name).read_text("utf-8") == (SHOWN / name).read_text("utf-8")


def test_who_was_not_there_is_said_to_be_missing(tmp_path):
    """No row is made up, and none is dropped."""
    figures = json.loads((SHOWN / "figures.json").read_text("utf-8"))
    figures["missing"]["langgraph"] = "langgraph is not installed"
    for measure in ("stop", "leaving", "stall"):
        figures[measure].pop("langgraph", None)
    for counts in figures["cost"].values():
        for found in counts.values():
            found.pop("langgraph", None)
    (tmp_path / "figures.json").write_text(json.dumps(figures), "utf-8")
    subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.page", str(tmp_path)], check=True, cwd=ROOT
    )
    for name in ("stop", "leaving", "stall", "cost-async", "cost-blocking", "readme"):
        rows = (tmp_path / f"{name}.md").read_text("utf-8").splitlines()
        (row,) = (row for row in rows if row.startswith("| LangGraph"))
        assert "langgraph is not installed" in row


def test_one_measure_alone_is_written_without_the_others(tmp_path):
    """A table can be measured anew; what was not measured is not written."""
    figures = json.loads((SHOWN / "figures.json").read_text("utf-8"))
    for measure in ("stop", "leaving", "cost"):
        del figures[measure]
    (tmp_path / "figures.json").write_text(json.dumps(figures), "utf-8")
    subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.page", str(tmp_path)], check=True, cwd=ROOT
    )
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["figures.json", "how.md", "machine.md", "stall.md"]


def test_rough_figures_are_not_written_down(tmp_path):
    """They are refused before anything is measured."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--docs", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 2
    assert "--docs is for whole runs" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_readme_shows_what_was_measured():
    """Its table is the one that the page's figures give."""
    readme = (ROOT / "README.md").read_text("utf-8")
    block = readme.split("<!-- figures:begin -->\n")[1].split("<!-- figures:end -->")[0]
    assert block == (SHOWN / "readme.md").read_text("utf-8")


def test_a_wrong_answer_is_an_error():
    """A peer that answers wrongly is refused, with what it answered."""
    order = {"measure": "cost", "options": {"kind": "async", "count": 3, "at_least": 1}}
    done = subprocess.run(
        [sys.executable, "-c", WRONG],
        input=json.dumps({**order, "last": True}) + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert "3 calls, and 2 answers" in json.loads(done.stdout.splitlines()[0])["error"]


def test_a_process_that_has_ended_is_an_error():
    """Whoever asks a peer that has died hears of it, and does not wait."""
    script = """if True:
        from benchmarks.peers.crew import Crew, PeerError
        with Crew({}).host("nobody") as host:
            try:
                host.ask("cost")
            except PeerError as exc:
                print(exc)
        """
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=True,
    )
    assert done.stdout == "nobody: it has ended\n"


WRONG = """
from benchmarks.peers import host
from benchmarks.peers.ways.gather import Gather

results = Gather.results

async def two_of_three(self):
    return (await results(self))[:2]

Gather.results = two_of_three
host.sys.argv = ["host", "gather"]
host.main()
"""
