"""The MCP format against the types of its SDK."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import types

from anyio_toolbatch.formats import mcp


def test_requests_parse(fixtures: Any) -> None:
    """The SDK's requests and params give the calls that the plain dicts give."""
    for case in fixtures("mcp").values():
        for request in case["requests"]:
            (expected,) = mcp.parse_calls(request)
            typed = types.JSONRPCRequest.model_validate(request)
            assert mcp.parse_calls([typed]) == [expected]
            params = types.CallToolRequestParams.model_validate(request["params"])
            (call,) = mcp.parse_calls(params)
            assert (call.name, call.arguments) == (expected.name, expected.arguments)
            (call,) = mcp.parse_calls(types.CallToolRequest(params=params))
            assert (call.name, call.arguments) == (expected.name, expected.arguments)


def test_results_are_tool_results(fixtures: Any, endings: Any, budget: Any) -> None:
    """Every ending of every call is a result as the protocol has it."""
    for case in fixtures("mcp").values():
        for call in mcp.parse_calls(case["requests"]):
            for result in mcp.render_results(endings(call), **budget):
                known = types.CallToolResult.model_validate(result)
                assert known.is_error == result["isError"]
                assert known.structured_content == result.get("structuredContent")
            for response in mcp.render_responses(endings(call), **budget):
                types.JSONRPCResponse.model_validate(response)


def test_repaired_log(fixtures: Any) -> None:
    """What is made for a lost response is one; the SDK's objects stay."""
    for case in fixtures("mcp").values():
        requests = [types.JSONRPCRequest.model_validate(r) for r in case["requests"]]
        repaired = mcp.repair(requests)
        assert all(a is b for a, b in zip(repaired, requests, strict=False))
        for response in repaired[len(requests) :]:
            known = types.JSONRPCResponse.model_validate(response)
            types.CallToolResult.model_validate(known.result)
