"""The Gemini format against the types of its own package, which refuse unknown fields."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.genai")

from google.genai import types

from anyio_toolbatch.formats import gemini


def test_responses_parse(fixtures: Any) -> None:
    """The SDK's response, content and parts give the calls that the plain dicts give."""
    for case in fixtures("gemini").values():
        expected = gemini.parse_calls(case["model"])
        response = types.GenerateContentResponse.model_validate(
            {"candidates": [{"content": case["model"]}]}
        )
        content = response.candidates[0].content
        for given in (response, content, content.parts, content.model_dump()):
            assert gemini.parse_calls(given) == expected


def test_results_are_a_content(fixtures: Any, endings: Any, budget: Any) -> None:
    """Every ending of every call is a part that the request takes."""
    for case in fixtures("gemini").values():
        for call in gemini.parse_calls(types.Content.model_validate(case["model"])):
            for declared in ((), (call.name,)):
                rendered = gemini.render_results(
                    endings(call), non_blocking=declared, **budget
                )
                content = types.Content.model_validate(rendered)
                assert all(part.function_response.response for part in content.parts)


def test_late_responses_and_own_parts(fixtures: Any, lates: Any, endings: Any) -> None:
    """What comes later, and pictures beside a text."""
    (call, *_) = gemini.parse_calls(fixtures("gemini")["parallel"]["model"])
    for late in lates(call):
        types.Content.model_validate(gemini.render_late(late, scheduling="SILENT"))
    image = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    rendered = gemini.render_results(endings(call), content=lambda _: [{"text": "see"}, image])
    types.Content.model_validate(rendered)


def test_repaired_history(fixtures: Any) -> None:
    """The model's content stays the SDK's object, with its thought signatures."""
    for case in fixtures("gemini").values():
        content = types.Content.model_validate(case["model"])
        text = types.Content.model_validate(case["history"][0])
        repaired = gemini.repair([text, content, text])
        assert repaired[0] is text and repaired[1] is content and repaired[3] is text
        made = types.Content.model_validate(repaired[2])
        names = [part.function_response.name for part in made.parts]
        assert names == [call.name for call in gemini.parse_calls(content)]
