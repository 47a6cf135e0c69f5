"""A headless Chromium that a test talks with, over pipes: nothing listens for it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Without a window, and without anything that it would do by itself."""
OPTIONS = (
    *QUIET,
    "--window-size=1300,900",
    "--remote-debugging-pipe",
)


class Tab:
    """One page in the browser."""

    def __init__(self, orders: IO[bytes], told: IO[bytes]) -> None:
        self._orders, self._told, self._count = orders, told, 0
        self._session: dict[str, Any] = {}
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        self.said: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        order = {"id": self._count, "method": method, "params": parameters, **self._session}
        self._orders.write(json.dumps(order).encode() + b"\0")
        self._orders.flush()
        while True:
            found = json.loads(self._read())
            if found.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown"}:
                self.said.append(json.dumps(found["params"]))
            if found.get("id") == self._count:
                assert "error" not in found, found
                return dict(found["result"])

    def _read(self) -> bytes:
        text = b""
        while (byte := self._told.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        return text

    def open(self, address: str) -> None:
        """Goes to a page, and waits until its script could have run."""
        self._ask("Page.navigate", url=address)
        self.run("new Promise(done => document.readyState === 'complete' ? done() : (onload = () => done()))")

    def run(self, script: str) -> Any:
        """Returns what a script in the page comes to; waits for what it promises."""
        found = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Waits until an expression is true in the page, however the page comes to that."""
        self.run(
            f"new Promise(done => {{ const look = () => {condition} && (watcher.disconnect(), done());"
            "const watcher = new MutationObserver(look);"
            "watcher.observe(document, {subtree: true, childList: true, attributes: true});"
            "look(); })"
        )

    def picture(self, file: Path) -> None:
        """Writes what is seen as a PNG."""
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))


@contextmanager
def browsing(folder: Path) -> Iterator[Tab]:
    """Starts a browser with an empty profile in a folder, and ends it."""
    (to_browser, orders), (told, from_browser) = os.pipe(), os.pipe()
    start = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
    command = ["bash", "-c", start, "bash", str(CHROMIUM), *OPTIONS, f"--user-data-dir={folder / 'profile'}"]
    process = subprocess.Popen(command, pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL)
    os.close(to_browser)
    os.close(from_browser)
    try:
        with os.fdopen(orders, "wb") as writing, os.fdopen(told, "rb") as reading:
            yield Tab(writing, reading)
    finally:
        process.kill()
        process.wait()
