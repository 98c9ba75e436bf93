"""Debian's Chromium without a screen, driven over its DevTools protocol by what little of it the tests need."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_S, CALL_S = 60, 30  # a loaded machine is slow

KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowDown": (40, ""), "ArrowRight": (39, ""), " ": (32, " ")}


def missing():
    """Why there is no browser; "": there is one."""
    if CHROMIUM is None:
        return "no chromium: scripts/packages tests"
    try:
        import websocket  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        return "no python3-websocket: scripts/packages tests"
    return ""


class Browser:
    """One window. errors: what the console or an exception said; asked: every address that was asked for."""

    def __init__(self, width=1280, height=900):
        self.profile = tempfile.mkdtemp(prefix="cairn-page-")
        self.count, self.errors, self.asked = 0, [], []
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self.profile}", *sandbox,
             "--no-first-run", "--disable-gpu", "--disable-extensions", "--disable-background-networking", "--disable-sync",
             "--disable-component-update", "--hide-scrollbars", "--force-color-profile=srgb", "--disable-dev-shm-usage",
             f"--window-size={width},{height}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.socket = self.connect()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def connect(self):
        import websocket  # pylint: disable=import-outside-toplevel
        port_file, end = Path(self.profile, "DevToolsActivePort"), time.monotonic() + START_S
        while not (port_file.exists() and "\n" in port_file.read_text(encoding="utf-8")):
            assert time.monotonic() < end and self.process.poll() is None, "chromium didn't start"
            time.sleep(0.05)
        port = port_file.read_text(encoding="utf-8").split("\n", maxsplit=1)[0]
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=CALL_S) as reply:
                pages = [one for one in json.load(reply) if one["type"] == "page"]
            if pages:
                return websocket.create_connection(pages[0]["webSocketDebuggerUrl"], timeout=CALL_S, suppress_origin=True)
            assert time.monotonic() < end, "chromium has no page"
            time.sleep(0.05)

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait(20)
        shutil.rmtree(self.profile, ignore_errors=True)

    # ---- the protocol ----

    def take(self, message):
        what, params = message.get("method"), message.get("params", {})
        if what == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif what == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in params["args"]))
        elif what == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif what == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])

    def call(self, method, **params):
        self.count += 1
        mine = self.count
        self.socket.send(json.dumps(dict(id=mine, method=method, params=params)))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == mine:
                assert "error" not in message, message
                return message["result"]
            self.take(message)

    # ---- what tests do ----

    def eval(self, script):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, script, seconds=10, what=""):
        """After how many seconds the script was true."""
        begin = time.monotonic()
        while True:
            value, spent = self.eval(f"Boolean({script})"), time.monotonic() - begin
            if value:
                return spent
            assert spent < seconds, f"not within {seconds} s: {what or script}; errors: {self.errors}"
            time.sleep(0.05)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'", 30)

    def size(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features):
        self.call("Emulation.setEmulatedMedia",
                  features=[dict(name=name.replace("_", "-"), value=value) for name, value in features.items()])

    def press(self, key):
        code, text = KEYS.get(key, (0, key))
        props = dict(key=key, windowsVirtualKeyCode=code or ord(key.upper()[0]))
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **props)
        self.call("Input.dispatchKeyEvent", type="keyUp", **props)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self, path, whole=True):
        if whole:
            height = self.eval("document.documentElement.scrollHeight")
            width = self.eval("innerWidth")
            before = self.eval("innerHeight")
            self.size(width, max(height, before))
            time.sleep(1)
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        if whole:
            self.size(width, before)
