"""Headless Chromium over its debugging pipe: open a page as a phone or a desktop would, ask it, take its picture.

No driver and no package is needed: requests and answers are JSON, ended by a zero byte, on two inherited pipes.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from patience import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
OPTIONS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run", "hide-scrollbars"),
    *(
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "disable-extensions",
        "disable-quic",
    ),
    "remote-debugging-pipe",
)


class Browser:
    """A browser with one page, which keeps what the page complained about and what it asked the network for."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory()
        self._number, self._session = 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        # Chromium reads requests from descriptor 3 and answers on descriptor 4.
        read_requests, self._requests = os.pipe()
        self._answers, write_answers = os.pipe()
        shell = f'exec "$0" "$@" 3<&{read_requests} 4>&{write_answers}'
        options = [f"--{option}" for option in (*OPTIONS, f"user-data-dir={self._profile.name}")]
        command = ["bash", "-c", shell, CHROMIUM, *options, "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=(read_requests, write_answers), stderr=subprocess.DEVNULL)
        os.close(read_requests)
        os.close(write_answers)
        self._unread = b""
        self._attach()

    def _attach(self) -> None:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, page: Path, width: int, height: int, *, phone: bool) -> None:
        """Load a page in a window of this size and wait until it has loaded."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self._ask("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.complaints.clear()
        self.requests.clear()
        self._ask("Page.navigate", url=page.as_uri())
        while self._read().get("method") != "Page.loadEventFired":
            pass
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def evaluate(self, script: str) -> Any:
        """What an expression of JavaScript gives, after waiting for a promise."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a picture, also what is beyond the window."""
        picture = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        with contextlib.suppress(OSError):
            self._ask("Browser.close")
        self._process.wait(timeout=PATIENCE)
        self._profile.cleanup()

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._requests, json.dumps(request).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            piece = os.read(self._answers, 1 << 20)
            if not piece:
                raise OSError("Chromium has ended")
            self._unread += piece
        first, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, details: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(details["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(details["args"]))
        elif event == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(details["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
