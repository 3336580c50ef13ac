"""
Turns for several users at once, each with a stop button, over HTTP.

    pip install starlette uvicorn
    uvicorn --app-dir examples server:app
    curl -N -d 'search Bern' localhost:8000/turns/ada     # events, as they come
    curl -X POST localhost:8000/turns/ada/stop            # in another terminal

One runner serves them all: its limits are the server's, its batches take turns. A
turn runs in a task of the application and tells its user what happens; when the user
goes away it is stopped, too. Whatever stops it, each call in the user's history has its
result, so that the next turn can begin.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import anyio
import script
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from anyio_toolbatch import CallSettled, CallStarted, Event, ToolBatch, ToolRunner
from anyio_toolbatch.formats import openai_chat


class User:
    def __init__(self) -> None:
        self.history: list[dict] = []
        self.is_busy = False
        self.batch: ToolBatch | None = None  # the one that is open


users: dict[str, User] = {}


async def turn(user: User, text: str, out: ObjectSendStream[str]) -> None:
    """Work on what the user says, until the model asks for nothing more."""
    user.history.append({"role": "user", "content": text})
    try:
        async with out:
            while await step(user, out):
                pass
    except anyio.BrokenResourceError:
        pass  # the user has gone away
    finally:
        user.is_busy = False


async def step(user: User, out: ObjectSendStream[str]) -> bool:
    """One message of the model, with the results of its calls; is there more to do?"""
    stream = openai_chat.CallStream()
    try:
        async with runner.open_batch() as user.batch:
            async for chunk in script.model(user.history):
                for call in stream.feed(chunk):
                    user.batch.submit(call)
                if user.batch.reason:
                    break
            for call in stream.close():
                user.batch.submit(call)
            user.batch.seal()
            async for event in user.batch.events():
                await tell(event, out)
    finally:  # also if the user has gone away: those who come back go on from here
        batch, user.batch = user.batch, None
        user.history.append(stream.message)
        user.history += openai_chat.render_results(batch.results)
    await out.send(as_event("message", stream.message["content"] or ""))
    return bool(batch.calls) and not batch.interrupted


async def tell(event: Event, out: ObjectSendStream[str]) -> None:
    if isinstance(event, CallStarted):
        await out.send(as_event("started", event.call.name))
    elif isinstance(event, CallSettled):
        await out.send(as_event("result", event.result.text))


def as_event(kind: str, data: str) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


async def start_turn(request: Request) -> Response:
    user = users.setdefault(request.path_params["user"], User())
    text = (await request.body()).decode()
    if user.is_busy:
        return JSONResponse({"error": "a turn is going on; stop it first"}, 409)
    user.is_busy = True
    send, receive = anyio.create_memory_object_stream[str](100)
    request.app.state.tasks.start_soon(turn, user, text, send)
    return StreamingResponse(body(user, receive), media_type="text/event-stream")


async def body(user: User, receive: ObjectReceiveStream[str]) -> AsyncIterator[str]:
    try:
        async with receive:
            async for event in receive:
                yield event
    finally:  # all has been told; or the user has gone away
        if user.batch is not None:
            user.batch.interrupt("the user has gone away")


async def stop_turn(request: Request) -> Response:
    user = users.get(request.path_params["user"])
    is_open = user is not None and user.batch is not None
    return JSONResponse({"stopped": is_open and user.batch.interrupt("stopped by the user")})


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    global runner  # its limits are the server's
    async with (
        anyio.create_task_group() as app.state.tasks,
        ToolRunner(script.TOOLS, max_concurrency=100) as runner,
    ):
        yield
        app.state.tasks.cancel_scope.cancel()


app = Starlette(
    routes=[
        Route("/turns/{user}", start_turn, methods=["POST"]),
        Route("/turns/{user}/stop", stop_turn, methods=["POST"]),
    ],
    lifespan=lifespan,
)
