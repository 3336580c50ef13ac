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
        self.turn: Turn | None = None  # the one that is going on


users: dict[str, User] = {}


class Turn:
    """Work on what a user says, until the model asks for nothing more."""

    def __init__(self, user: User, text: str) -> None:
        self.user = user
        self.batch: ToolBatch | None = None  # the one that is open
        self.is_stopped = False
        user.turn = self
        user.history.append({"role": "user", "content": text})

    def stop(self, message: str) -> None:
        self.is_stopped = True
        if self.batch is not None:
            self.batch.interrupt(message)

    async def run(self, out: ObjectSendStream[str]) -> None:
        try:
            async with out:
                try:
                    while not self.is_stopped and await self.step(out):
                        pass
                except OSError as error:  # the model's server; no fault of other users
                    await out.send(as_event("error", str(error)))
        except anyio.BrokenResourceError:
            pass  # the user has gone away
        finally:
            self.user.turn = None

    async def step(self, out: ObjectSendStream[str]) -> bool:
        """One message of the model, with the results of its calls; is there more to do?"""
        history = self.user.history
        stream = openai_chat.CallStream()
        try:
            async with runner.open_batch() as self.batch:
                try:
                    async for chunk in script.model(history):
                        for call in stream.feed(chunk):
                            self.batch.submit(call)
                        if self.batch.reason:
                            break
                finally:  # what was cut off is answered, never run
                    for call in stream.close():
                        self.batch.submit(call)
                self.batch.seal()
                async for event in self.batch.events():
                    await tell(event, out)
        finally:  # also if the user has gone away: who comes back goes on from here
            batch, self.batch = self.batch, None
            if message := stream.message:  # the model may have said nothing
                history.append(message)
                history += openai_chat.render_results(batch.results)
        await out.send(as_event("message", message["content"] or "" if message else ""))
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
    if user.turn is not None:
        return JSONResponse({"error": "a turn is going on; stop it first"}, 409)
    turn = Turn(user, text)
    send, receive = anyio.create_memory_object_stream[str](100)
    request.app.state.tasks.start_soon(turn.run, send)
    return StreamingResponse(body(turn, receive), media_type="text/event-stream")


async def body(turn: Turn, receive: ObjectReceiveStream[str]) -> AsyncIterator[str]:
    try:
        async with receive:
            async for event in receive:
                yield event
    finally:  # all has been told; or the user has gone away
        turn.stop("the user has gone away")


async def stop_turn(request: Request) -> Response:
    user = users.get(request.path_params["user"])
    turn = None if user is None else user.turn
    if turn is not None:
        turn.stop("stopped by the user")
    return JSONResponse({"stopped": turn is not None})


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
