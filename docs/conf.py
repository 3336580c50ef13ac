"""
How the documentation is built: `sphinx-build -nW docs docs/_build/html`.

Nothing is fetched: a build without a network gives the same pages.
"""

from __future__ import annotations

import builtins
import importlib.metadata
import sys

project = "anyio-toolbatch"
author = "anyio-toolbatch contributors"
copyright = author
release = importlib.metadata.version(project)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "changelog.d"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

html_theme = "furo"
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
    # Type variables are no objects of their own: T, T_Retval, PosArgsT, P.args.
    (r"py:.*", r"(\w+\.)*([A-Z]|Ts|T_\w+|[A-Z]\w*T|P\.(kw)?args)"),
]
