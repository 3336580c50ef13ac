"""Values do not change under their users; they copy and pickle."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from anyio_toolbatch import LateResult, Reason, Status, Tool, ToolCall, ToolResult
from anyio_toolbatch._model.frozen import Frozen, slots_of
from anyio_toolbatch._model.results import make_result


class Point(Frozen):
    __slots__ = ("_hidden", "x", "y")

    x: int
    y: int

    def __init__(self, x: int, y: int) -> None:
        for name, value in (("x", x), ("y", y), ("_hidden", "secret")):
            object.__setattr__(self, name, value)


def a_tool() -> None: ...


CALL = ToolCall("id", "name", {"a": 1})

VALUES = [
    Point(1, 2),
    CALL,
    Reason("user_interrupt", "enough"),
    ToolResult(CALL, 0, Status.COMPLETED, value="v"),
    pytest.param(
        make_result(
            *(CALL, 0, Status.FAILED, None, ValueError("x"), None),
            *(True, False, True, None, 1.0, 2.0),
        ),
        id="drafted",
    ),
    LateResult("batch", CALL, 0, "value", None, 1.5),
    Tool(a_tool),
]

each_value = pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)


@each_value
def test_fields_cannot_be_set(value: Frozen) -> None:
    """Assignment names the type and the field."""
    for name in [*value.__slots__, "anything_else"]:
        with pytest.raises(AttributeError) as caught:
            setattr(value, name, None)
        assert str(caught.value) == f"{type(value).__name__} is immutable: cannot set {name!r}"


@each_value
def test_fields_cannot_be_deleted(value: Frozen) -> None:
    """Deletion is refused as assignment is."""
    for name in value.__slots__:
        with pytest.raises(AttributeError, match=f"is immutable: cannot delete '{name}'"):
            delattr(value, name)
        assert hasattr(value, name)


@each_value
def test_values_have_no_dict(value: Frozen) -> None:
    """P10: 1,000 values make no 1,000 dicts."""
    assert not hasattr(value, "__dict__")


def fields(value: Any) -> dict[str, str]:
    # By their text: errors are equal only to themselves.
    return {n: repr(getattr(value, n)) for n in slots_of(type(value)) if n != "_binder"}


@each_value
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_values_are_pickled(value: Frozen, protocol: int) -> None:
    """A value survives a trip to another process, and is as frozen there."""
    again = pickle.loads(pickle.dumps(value, protocol))
    assert type(again) is type(value)
    assert fields(again) == fields(value)
    with pytest.raises(AttributeError):
        setattr(again, slots_of(type(value))[0], None)


@each_value
@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_values_are_copied(value: Frozen, copier: Any) -> None:
    """A copy is another object with the same fields."""
    again = copier(value)
    assert again is not value
    assert type(again) is type(value)
    assert fields(again) == fields(value)


def test_repr_shows_the_public_fields() -> None:
    """What starts with an underscore is nobody's business."""
    assert repr(Point(1, 2)) == "Point(x=1, y=2)"


def test_drafted_result_is_an_ordinary_result() -> None:
    """The quick way of making results leaves no trace on them."""
    drafted = make_result(
        *(CALL, 3, Status.COMPLETED, "v", None, None, True, False, False, None, 1.0, 2.0)
    )
    assert type(drafted) is ToolResult
    assert drafted == ToolResult(CALL, 3, Status.COMPLETED, value="v")
    assert (drafted.wait_time, drafted.run_time) == (1.0, 2.0)
