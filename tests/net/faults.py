"""What fails in a room: pairs that don't hear each other, lost packets, slow and long wires, no route; a wrong clock.

Those of the network are methods of the room. Each holds until heal(), which ends all of them but isolate(). A machine that boots anew has neither a slow wire, nor a
long one, nor a missing route.
"""
import glob
import os
import re
import shutil
import signal
import subprocess

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
WIRE_DELAY = os.environ.get("CAIRN_WIRE_DELAY", "")
IPTABLES = ("iptables-legacy", "ip6tables-legacy")  # nft's own `queue` is missing in many kernels


def no_delay():
    """Why there is no Faults.delay() here; None: there is."""
    if not WIRE_DELAY or not os.path.exists(WIRE_DELAY):
        return "wire_delay was not built: libnetfilter-queue-dev is missing"
    for tool in IPTABLES:
        if shutil.which(tool, path=PATH) is None:
            return f"{tool} is not installed"
    return None


def _libfaketime():
    return next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)


def no_clock():
    """Why there is no clock() here; None: there is."""
    return None if _libfaketime() else "libfaketime is not installed"


def clock(off):
    """The environment of programs whose wall clock is off by so much: "+400d", "-2d"; None: it is right."""
    if off is None:
        return {}
    return {"LD_PRELOAD": _libfaketime(), "FAKETIME": off, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}


class Faults:
    """Of a Room, whose machines and network it uses."""

    def _drop(self, a, b, *when):
        for family, of in (("ip", "address"), ("ip6", "address6")):
            self.in_net("nft", "add", "rule", "bridge", "faults", "passing", family, "saddr", getattr(self[a], of),
                        family, "daddr", getattr(self[b], of), *when, "drop")

    def oneway(self, a, b):
        """Nothing of a reaches b."""
        self._drop(a, b)

    def cut(self, a, b):
        self._drop(a, b)
        self._drop(b, a)

    def loss(self, a, b, percent):
        """So many of a's packets don't reach b."""
        self._drop(a, b, "numgen", "random", "mod", "100", "<", str(percent))

    def slow(self, a, rate):
        """No more than so much passes a's wire, each way: "10mbit"."""
        shape = ["root", "tbf", "rate", rate, "burst", "32kb", "latency", "200ms"]
        self.in_net("tc", "qdisc", "replace", "dev", f"m{a}", *shape)
        self[a].in_net("tc", "qdisc", "replace", "dev", "eth0", *shape)

    def delay(self, a, ms, jitter_ms=0):
        """What a receives comes so much later, each packet up to jitter_ms more, in order."""
        machine = self[a]
        self._end_delay(machine)
        enter = self.enter(machine.init, "-n", "-p")  # not its files: a build in /tmp isn't there
        machine.relay = subprocess.Popen([*enter, WIRE_DELAY, str(ms), str(jitter_ms)], stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, text=True)
        if machine.relay.stdout.readline() != "ready\n":
            raise OSError("wire_delay doesn't start")
        for tool in IPTABLES:
            machine.run(tool, "-w", "-t", "raw", "-A", "PREROUTING", "-i", "eth0",
                        "-j", "NFQUEUE", "--queue-num", "0", "--queue-bypass")

    @staticmethod
    def _end_delay(machine):
        if machine.relay is None:
            return
        for tool in IPTABLES:
            machine.run(tool, "-w", "-t", "raw", "-F", "PREROUTING")
        machine.signal(signal.SIGTERM, os.path.basename(WIRE_DELAY))
        machine.relay.wait()
        machine.relay = None

    def no_route(self, a, b):
        """a has no way to b: calls fail at once."""
        self[a].in_net("ip", "route", "add", "blackhole", self[b].address)
        self[a].in_net("ip", "-6", "route", "add", "blackhole", self[b].address6)

    def heal(self):
        self.in_net("nft", "flush", "chain", "bridge", "faults", "passing")
        for number, machine in self.machines.items():
            if machine.init is None:
                continue
            self._end_delay(machine)
            if "tbf" in machine.in_net("tc", "qdisc", "show", "dev", "eth0"):
                machine.in_net("tc", "qdisc", "del", "dev", "eth0", "root")
                self.in_net("tc", "qdisc", "del", "dev", f"m{number}", "root")
            for family in ("-4", "-6"):
                machine.in_net("ip", family, "route", "flush", "type", "blackhole")

    def isolate(self, a):
        """The switch is dead: the carrier stays, nothing passes, until join(a)."""
        self.in_net("ip", "link", "set", f"m{a}", "nomaster")

    def join(self, a):
        self.in_net("ip", "link", "set", f"m{a}", "master", "br0")

    def dropped(self):
        """Rules that stand."""
        return len(re.findall(r"\bdrop\b", self.in_net("nft", "list", "chain", "bridge", "faults", "passing")))
