"""What a trace must be like, whatever is in it."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "b": {"name", "cat", "id2", "ts", "pid", "tid"},
    "n": {"name", "cat", "id2", "ts", "pid", "tid"},
    "e": {"name", "cat", "id2", "ts", "pid", "tid"},
    "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
    "i": {"name", "s", "ts", "pid", "tid"},
}
"""Kind of event → the fields that Perfetto needs to show it."""
OPTIONAL = {"args", "cat"}


def check(trace: dict[str, Any]) -> None:
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    tracks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    rows: dict[int, list[tuple[float, float]]] = defaultdict(list)
    names = {}
    for event in trace["traceEvents"]:
        kind = event["ph"]
        fields = set(event) - {"ph"}
        assert REQUIRED[kind] <= fields <= REQUIRED[kind] | OPTIONAL, event
        assert event["name"] and isinstance(event["name"], str)
        assert event["name"].isprintable(), "Perfetto shows escapes as they are"
        assert type(event["pid"]) is type(event["tid"]) is int
        if kind == "M":
            names[event["name"], event["tid"]] = event["args"]["name"]
        else:
            assert type(event["ts"]) in {int, float} and event["ts"] >= 0
        if "id2" in event:
            assert list(event["id2"]) == ["local"] and int(event["id2"]["local"], 16) > 0
            tracks[event["id2"]["local"]].append(event)
        if kind == "X":
            assert event["dur"] >= 0
            rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for events in tracks.values():
        times = [event["ts"] for event in events]
        assert times == sorted(times), "within a track, time goes on"
        open_slices: list[str] = []
        for event in events:
            if event["ph"] == "b":
                open_slices.append(event["name"])
            elif event["ph"] == "e":
                assert open_slices.pop() == event["name"], "slices are nested"
            else:
                assert open_slices, "a mark lies in a slice"
    for tid, slices in rows.items():
        assert ("thread_name", tid) in names
        slices.sort()
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(slices)), (
            "a thread has one call at a time"
        )


@pytest.fixture
def checked() -> Callable[[Any], dict[str, Any]]:
    """Check a recorder's trace, and return it as a reader of the file would have it."""

    def read(recorder: Any) -> dict[str, Any]:
        text = recorder.to_json()
        text.encode("utf-8")
        trace: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
        check(trace)
        return trace

    return read
