"""Engines, each started when a test first needs it, where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from anyio_toolbatch import ExecutorCarrier, Tool, ToolCall

IMPORTABLE = str(Path(__file__).resolve().parents[1] / "importable")
sys.path.append(IMPORTABLE)
engine_tools: Any = importlib.import_module("engine_tools")

MODULES = {"ray": "ray", "dask": "distributed"}
LIVENESS = 60.0  # seconds where milliseconds are meant
PLACES = 2
"""How many calls an engine runs at once here."""


@dataclass(frozen=True)
class Engine:
    name: str
    carrier: ExecutorCarrier
    connect: str
    """The source of a program's lines that define `carrier`."""

    def tool(self, func: Callable[..., Any], **options: Any) -> Tool:
        return Tool(func, runs_in=self.carrier, **options)

    def call(self, func: Callable[..., Any], **arguments: Any) -> ToolCall:
        return ToolCall("id", "tool", arguments, tool=self.tool(func))


@dataclass(frozen=True)
class Held:
    """A call of `engine_tools.holds`, seen from here."""

    folder: Path

    async def begun(self) -> int:
        """Wait for its first line, and return its process."""
        await until(self.folder.joinpath("pid").exists)
        return int(self.folder.joinpath("pid").read_text())

    def let_go(self) -> None:
        self.folder.joinpath("pipe").write_text("let go")

    @property
    def has_begun(self) -> bool:
        return self.folder.joinpath("pid").exists()

    @property
    def runs(self) -> list[str]:
        """One line for each."""
        return self.folder.joinpath("runs").read_text().splitlines()

    @property
    def is_done(self) -> bool:
        return self.folder.joinpath("done").exists()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    with anyio.fail_after(LIVENESS):
        while not condition():
            await anyio.sleep(0.005)


@pytest.fixture
def held(tmp_path: Path) -> Callable[[], Held]:
    """Make places where a call can be held."""
    made: list[Held] = []

    def make() -> Held:
        folder = tmp_path / f"held-{len(made)}"
        folder.mkdir()
        os.mkfifo(folder / "pipe")
        made.append(Held(folder))
        return made[-1]

    return make


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Any]:
    return until


@pytest.fixture(scope="session")
def workers_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # Absolute: workers may start in another folder.
        paths = [IMPORTABLE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        paths = [str(Path(path).resolve()) for path in paths if path]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield


@pytest.fixture(scope="session")
def _ray(workers_path: None) -> Iterator[Callable[[], None]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray = pytest.importorskip("ray")

        def start() -> None:
            if not ray.is_initialized():
                ray.init(
                    "local",  # not a cluster that the machine happens to have
                    num_cpus=PLACES,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                )

        yield start
        ray.shutdown()


@pytest.fixture
def ray_engine(_ray: Callable[[], None]) -> Engine:
    """A local node with so many cores."""
    import ray  # type: ignore[import-not-found,unused-ignore]

    from anyio_toolbatch.integrations.ray import ray_carrier

    _ray()  # anew if a test has shut it down
    address = ray.get_runtime_context().gcs_address
    connect = (
        f"import ray; ray.init({address!r}, log_to_driver=False, logging_level='ERROR')\n"
        "from anyio_toolbatch.integrations.ray import ray_carrier\n"
        "carrier = ray_carrier()\n"
    )
    return Engine("ray", ray_carrier(), connect)


@pytest.fixture(scope="session")
def dask_cluster(workers_path: None) -> Iterator[Any]:
    """A scheduler, and so many workers of one thread."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=PLACES, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster


@pytest.fixture
def dask_engine(dask_cluster: Any) -> Iterator[Engine]:
    from distributed import Client  # type: ignore[import-not-found,unused-ignore]

    from anyio_toolbatch.integrations.dask import dask_carrier

    with Client(dask_cluster, set_as_default=False) as client:
        client.wait_for_workers(PLACES)  # one that has died is being replaced
        connect = (
            f"from distributed import Client; client = Client({client.scheduler.address!r})\n"
            "from anyio_toolbatch.integrations.dask import dask_carrier\n"
            "carrier = dask_carrier(client)\n"
        )
        yield Engine("dask", dask_carrier(client), connect)


@pytest.fixture(
    params=[n for n, module in MODULES.items() if importlib.util.find_spec(module)]
)
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(f"{request.param}_engine")
