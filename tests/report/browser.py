"""A real browser, driven over the Chrome DevTools protocol with the websocket client that is there anyway."""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import time

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0",
)  # fmt: skip


def find_browser():
    """Path of an installed Chromium or Chrome; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in one browser process. `console` and `requests` collect what the page says and asks a network for."""

    def __init__(self, path, profile):
        self.process = subprocess.Popen(
            [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.stack = contextlib.ExitStack()
        try:
            port = self._wait(lambda: _port(profile / "DevToolsActivePort"), 30)
            self.browser = self.stack.enter_context(
                connect(f"ws://127.0.0.1:{port[0]}{port[1]}", max_size=None, compression=None, proxy=None)
            )
            self.numbers = itertools.count(1)
            self.console, self.requests, self.session = [], [], None
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.process.kill()
            raise

    def close(self):
        self.stack.close()
        self.process.kill()
        self.process.wait()

    def _wait(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < end, f"nothing came within {seconds} s"
            time.sleep(0.02)
        return found

    def call(self, method, **params):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        self.browser.send(json.dumps({**message, "sessionId": self.session} if self.session else message))
        while (answer := json.loads(self.browser.recv(timeout=30))).get("id") != number:
            self._note(answer)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _note(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.console.append(params["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(params["args"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(params["entry"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith("data:"):
            self.requests.append(params["request"]["url"])

    def js(self, expression):
        """The value of an expression in the page; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression):
        """Wait until an expression is true in the page."""
        return self._wait(lambda: self.js(expression))

    def open(self, path, width=1280, height=900, dark=False):
        """Open a file at this size in CSS pixels; returns the milliseconds until it was drawn."""
        self.console, self.requests = [], []
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.readyState == 'complete' && !!document.querySelector('#viewer > *')")
        return self.js("performance.getEntriesByType('navigation')[0].loadEventEnd")

    def resize(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def click(self, selector, number=0):
        """A real click in the middle of the element."""
        x, y = self.js(
            f"""(() => {{
            const one = document.querySelectorAll({json.dumps(selector)})[{number}];
            one.scrollIntoView({{block: "center"}});
            const box = one.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2]; }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "ArrowUp": 38, "Enter": 13, "Tab": 9, "End": 35}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def choose(self, label, text):
        """Choose an option by the text of its label and its own."""
        self.js(
            f"""(() => {{
            const labels = [...document.querySelectorAll('label')];
            const label = labels.find((one) => one.firstChild.textContent == {json.dumps(label)});
            const select = label.querySelector('select');
            select.value = [...select.options].find((one) => one.text == {json.dumps(text)}).value;
            select.dispatchEvent(new Event('change')); }})()"""
        )

    def screenshot(self):
        """PNG of what is on the screen."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


def _port(path):
    """Port and path that Chromium wrote; None until both lines are there."""
    try:
        lines = path.read_text().split("\n")
    except OSError:
        return None
    return lines if len(lines) == 2 else None
