"""
How the documentation is built: `sphinx-build -nW docs docs/_build/html`.

Nothing is fetched: a build without a network gives the same pages.
"""

from __future__ import annotations

import builtins
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

project = "anyio-toolbatch"
author = "anyio-toolbatch contributors"
copyright = author
# From where it is written, so that the pages of a checkout can be built without
# installing it.
release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "carrier_table",
    "case_table",
    "state_diagram",
    "unreleased",
]
exclude_patterns = [
    "_build",
    "_ext",
    "changelog.d",
    "examples",
    "explanation/comparison",  # what the page of that name includes
    "pictures",
]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = [("tables.js", {"defer": "defer"})]
html_title = f"{project} {release}"

# Docstrings write `name` for code, as Markdown does. What should be a link says
# so with a role; anything cleverer would guess, and -n would punish the guess.
default_role = "code"

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Cancellation", "Threads", "Source"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": True}
# The pages are built without the packages of the integrations.
autodoc_mock_imports = ["mcp", "opentelemetry"]
# Defaults as they are written: `()` and not the repr of what was imported.
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

# Without remote inventories, names from elsewhere cannot be links. They are
# listed by origin, so that a misspelt name of our own still fails the build.
nitpick_ignore_regex = [
    (r"py:.*", rf"({'|'.join(sorted(sys.stdlib_module_names))})(\..+)?"),
    (r"py:.*", "|".join(name for name in dir(builtins) if name[0] != "_")),
    (r"py:.*", r"(anyio|trio|typing_extensions)(\..+)?"),
    (r"py:.*", r"(mcp\..+|ClientSession|Client|MCPError)"),
    (r"py:.*", r"(rich\..+|Console)"),
    (r"py:.*", r"(opentelemetry\..+|TracerProvider|MeterProvider|trace\..+|metrics\..+)"),
    # Type variables are no objects of their own: T, T_Retval, PosArgsT, P.args.
    (r"py:.*", r"(\w+\.)*([A-Z]|Ts|T_\w+|[A-Z]\w*T|P\.(kw)?args)"),
]
