#!/usr/bin/python3
"""pictures.py [FOLDER]: the pictures of the README, from a real run with kills in it. scripts/pictures calls it.

    jobs.png, curves.png, time.png, phone.png    the page, in Chromium
    watch.svg, why.svg                           the terminal, as it was

LeNet on Fashion-MNIST by two workers; a worker is killed, then the other, then both at once, then the coordinator.
"""
import html
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "e2e")]
from browser import Browser, missing  # noqa: E402
from home import BIN, Home, until  # noqa: E402

COLUMNS, ROWS = 104, 30
COLORS = {"31": "#d9534f", "32": "#3fa66a", "33": "#c9932b", "34": "#4a90d9", "36": "#3aa0a0"}


def kill(home, job, *ranks):
    """Workers of that rank; returns once the next generation has made some steps."""
    shown = home.show(job)
    for worker in shown["workers"]:
        if worker["rank"] in ranks:
            os.kill(worker["pid"], signal.SIGKILL)

    def goes_on():
        now = home.try_show(job)
        return now and now["generation"] > shown["generation"] and now["step"] > shown["step"] + 100
    until(goes_on, 120, "the next generation")


def last_frame(home, job, seconds=6):
    """What `cairn watch` shows on a terminal: lines with their colours, as (text, colour) parts."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(home.env, TERM="xterm-256color", LANG="C.UTF-8", LC_ALL="C.UTF-8")
        os.execv(BIN / "cairn", ["cairn", "watch", job])
    import fcntl  # pylint: disable=import-outside-toplevel
    import struct  # pylint: disable=import-outside-toplevel
    import termios  # pylint: disable=import-outside-toplevel
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    end, said = time.monotonic() + seconds, b""
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.2)[0]:
            said += os.read(fd, 65536)
    os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    frames = re.split(r"\x1b\[\d+A", said.decode(errors="replace"))
    return [line.rstrip("\r") for line in frames[-2].replace("\x1b[K", "").replace("\x1b[J", "").split("\n") if line.strip()]


def parts_of(line):
    """(text, colour) of a line with SGR escapes."""
    color, parts = None, []
    for piece in re.split(r"(\x1b\[[\d;]*m)", line.replace("\r", "")):
        code = re.fullmatch(r"\x1b\[([\d;]*)m", piece)
        if code:
            color = next((COLORS[c] for c in code.group(1).split(";") if c in COLORS), None)
        elif piece:
            parts.append((piece, color))
    return parts


def draw(command, lines, path):
    """A terminal's text as SVG."""
    height, rows = 19, [[(f"$ {command}", "#8a8f98")], *map(parts_of, lines)]
    width = 8.43 * max(sum(len(text) for text, _ in row) for row in rows) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height * len(rows) + 32}" '
           'font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="14">',
           f"<title>{html.escape(command)}</title>", '<rect width="100%" height="100%" rx="8" fill="#16181d"/>']
    for i, row in enumerate(rows):
        spans = "".join(f'<tspan fill="{color or "#d6d9de"}">{html.escape(text)}</tspan>' for text, color in row)
        out.append(f'<text x="20" y="{30 + i * height}" xml:space="preserve">{spans}</text>')
    path.write_text("\n".join([*out, "</svg>", ""]), encoding="utf-8")


def shoot(home, job, folder):
    link = home.cairn("open").stdout.strip()
    browser = Browser(1200, 900)
    try:
        browser.open(link)
        page = link.split("open?")[0]

        def take(name, route, ready, width=1200, height=900, scheme="light", whole=True):
            browser.size(width, height)
            browser.media(prefers_color_scheme=scheme)
            browser.open("about:blank")
            browser.open(f"{page}#/{route}")
            browser.until(ready, 60, name)
            time.sleep(2)
            browser.screenshot(folder / name, whole)

        take("jobs.png", "jobs", f"document.body.textContent.includes({json.dumps(job)})", whole=False, height=420)
        charts = "document.querySelectorAll('canvas').length > 3"
        take("curves.png", f"jobs/{job}", charts)
        take("phone.png", f"jobs/{job}", "document.querySelectorAll('canvas').length > 0", width=380,
             height=800, whole=False)
        take("time.png", f"jobs/{job}/time", "document.body.textContent.includes('Where the time went')", scheme="dark")
        assert not browser.errors, browser.errors
    finally:
        browser.close()


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    if missing():
        sys.exit(missing())
    folder.mkdir(parents=True, exist_ok=True)
    with Home() as home:
        short = home.submit((ROOT / "examples" / "mlp-fashion.yaml").read_text(encoding="utf-8"))
        text = (ROOT / "examples" / "lenet-fashion.yaml").read_text(encoding="utf-8")
        job = home.submit(text, train__duration="6 epochs", eval__every="400 steps", checkpoint__every="250 steps")
        until(lambda: home.show(job)["step"] > 900, 300, "steps")
        kill(home, job, 0)
        until(lambda: home.show(job)["step"] > 2000, 300, "steps")
        kill(home, job, 1)
        until(lambda: home.show(job)["step"] > 3000, 300, "steps")
        kill(home, job, 0, 1)
        home.kill("cairnd")
        until(lambda: (home.try_show(job) or {"step": 0})["step"] > 4000, 300, "steps")
        draw(f"cairn watch {home.show(job)['name']}", last_frame(home, job), folder / "watch.svg")
        home.wait_state(short, "SUCCEEDED", seconds=300)
        shoot(home, job, folder)
        why = subprocess.run([BIN / "cairn", "why", job], env=home.env, capture_output=True, text=True, check=True).stdout
        draw(f"cairn why {home.show(job)['name']}", [line[:COLUMNS + 40] for line in why.rstrip().split("\n")], folder / "why.svg")


main()
