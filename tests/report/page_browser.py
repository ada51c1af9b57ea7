"""A headless browser for tests of pages: Chromium, controlled by the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_TIMEOUT = 60  # seconds for an answer on a loaded machine


def find_browser() -> str | None:
    """The path of a browser, if one is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. `complaints` has the page's log entries and exceptions, `requests` its network requests."""

    def __init__(self, program: str, folder: Path) -> None:
        """Start the browser with its profile in `folder`."""
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        # The browser reads from file descriptor 3 and writes to 4; move ours out of the way first.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        command += [
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "browser", *command],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (read, write, *theirs):
            os.close(end)
        self._last, self._pending, self._session = 0, b"", ""
        self._loaded = False
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        self._process.terminate()
        self._process.wait(_TIMEOUT)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol. Raises RuntimeError with the browser's error message."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, page: Path | str, width: int = 1280, *, dark: bool = False, height: int = 900) -> None:
        """Open a file or a URL in a window of that many pixels, and wait until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.point(0, 0)
        self._loaded = False
        self.complaints.clear()
        self.requests.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not self._loaded:
            self._note(self._next())

    def ask(self, expression: str) -> Any:
        """Evaluate a JavaScript expression on the page; the page's policy does not apply to it."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(
                result["exceptionDetails"].get("exception", result["exceptionDetails"]).get("description")
            )
        return result["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Move the pointer to a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Press a key that has a name, such as ArrowRight."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, file: Path, *, whole: bool = True) -> None:
        """Write a PNG of the whole page, or of its visible part."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _TIMEOUT
        while b"\0" not in self._pending:
            remaining = until - time.monotonic()
            if remaining <= 0 or not select.select([self._read], [], [], remaining)[0]:
                raise TimeoutError(f"no answer from the browser for {_TIMEOUT} s")
            result = os.read(self._read, 1 << 20)
            if not result:
                raise RuntimeError(f"the browser has ended, with code {self._process.wait(_TIMEOUT)}")
            self._pending += result
        message, self._pending = self._pending.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
