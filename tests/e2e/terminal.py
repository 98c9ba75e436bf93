"""A program on a pseudo terminal, and what a person would see of it."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

from home import BIN, PATIENCE

SEQUENCE = re.compile(r"\x1b(?:\[([?\d;]*)([@-~])|[^\[])")


class Screen:
    """What stands on a terminal: the sequences that `cairn` writes, and no others."""

    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.lines, self.row, self.column = [""] * rows, 0, 0
        self.below = ([""] * rows, 0, 0)  # the usual buffer, while the other one is seen
        self.other = self.hidden = False  # in the other buffer; no cursor
        self.wraps = True
        self.widest = 0  # that was ever written to
        self.frames, self.whole = 0, ""  # pictures so far, and the last of them
        self.styles = set()
        self.rest = ""

    def put(self, text):
        text, at = self.rest + text, 0
        self.rest = ""
        while at < len(text):
            if text[at] == "\x1b":
                found = SEQUENCE.match(text, at)
                if not found:
                    self.rest = text[at:]
                    return
                self.sequence(found.group(1) or "", found.group(2) or "")
                at = found.end()
                continue
            self.character(text[at])
            at += 1

    def character(self, one):
        if one == "\r":
            self.column = 0
        elif one == "\n":
            self.row += 1
            if self.row == self.rows:
                self.lines, self.row = self.lines[1:] + [""], self.rows - 1
        elif one >= " ":
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[:self.column] + one + line[self.column + 1:]
            self.column += 1
            self.widest = max(self.widest, self.column)

    def sequence(self, words, last):
        if last == "H":
            self.row = self.column = 0
        elif last == "A":
            self.row = max(0, self.row - int(words or 1))
        elif last == "K":
            self.lines[self.row] = self.lines[self.row][:self.column]
        elif last == "J":
            first = 0 if words == "2" else self.row + 1
            if words != "2":
                self.lines[self.row] = self.lines[self.row][:self.column]
                self.frames += 1
            self.lines[first:] = [""] * (self.rows - first)
            self.whole = self.written()
        elif last == "m":
            self.styles.add(words)
        elif words in ("?1049", "?25", "?7") and last in "hl":
            on = last == "h"
            if words == "?1049":
                self.change_buffer(on)
            elif words == "?25":
                self.hidden = not on
            else:
                self.wraps = on
        else:
            raise AssertionError(f"a sequence that isn't known: {words}{last}")

    def change_buffer(self, on):
        if on and not self.other:
            self.below = (self.lines, self.row, self.column)
            self.lines, self.row, self.column = [""] * self.rows, 0, 0
        elif self.other and not on:
            self.lines, self.row, self.column = self.below
        self.other, self.whole = on, ""

    def written(self):
        return "\n".join(line.rstrip() for line in self.lines)

    def text(self):
        """Of what repaints the whole screen no half of a picture."""
        return self.whole if self.other else self.written()


class Terminal:
    """A program that has a terminal for itself, in a session of its own."""

    def __init__(self, home, *words, rows=24, columns=80, program=None, env=None):
        self.screen = Screen(rows, columns)
        self.raw = b""
        waits, go = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.read(waits, 1)  # the size is set, and what the terminal was like is known
            environ = dict(home.env, TERM="xterm-256color", LC_ALL="C.UTF-8", **(env or {}))
            os.execve(program or BIN / "cairn", [program or "cairn", *words], environ)
        self.resize(rows, columns, new=False)
        self.before = termios.tcgetattr(self.fd)
        os.write(go, b"g")
        os.close(waits)
        os.close(go)
        self.status = None

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(f"--- the terminal\n{self.screen.text()}")
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def resize(self, rows, columns, new=True):
        if new:
            self.screen = Screen(rows, columns)
            self.screen.other = self.screen.hidden = True
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def read(self, seconds):
        """What came within that time; False: the other side is closed."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.raw += data
        self.screen.put(data.decode(errors="replace"))
        return bool(data)

    def until(self, condition, seconds=15):
        """The first true condition(text on the screen), within PATIENCE times so many seconds."""
        end = time.monotonic() + PATIENCE * seconds
        while True:
            value = condition(self.screen.text())
            if value:
                return value
            assert time.monotonic() < end, f"not within {PATIENCE} * {seconds} s; the screen:\n{self.screen.text()}"
            self.read(0.1)

    def settle(self, seconds=10):
        """The text after another whole picture."""
        frames = self.screen.frames
        self.until(lambda text: self.screen.frames > frames, seconds)
        return self.screen.text()

    def wait(self, seconds=10):
        """Its exit status, after all that it wrote."""
        end = time.monotonic() + seconds
        while self.status is None and time.monotonic() < end:
            self.read(0.05)
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.status = os.waitstatus_to_exitcode(status)
        assert self.status is not None, f"it goes on; the screen:\n{self.screen.text()}"
        while select.select([self.fd], [], [], 0)[0] and self.read(0):
            pass
        return self.status

    def is_as_before(self):
        """Are keys, buffer, cursor and wrapping what they were?"""
        now = termios.tcgetattr(self.fd)
        return now == self.before and self.screen.wraps and not self.screen.other and not self.screen.hidden
