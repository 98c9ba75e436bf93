"""Which address and ports workers use: firewalls that open a range only, names that mislead, networks without IPv4.

A sample of them without CAIRN_TEST_FULL.
"""
import os
import subprocess
import sys

import pytest

from fleet import Fleet, until
from rooms import missing

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
full = pytest.mark.skipif(not os.environ.get("CAIRN_TEST_FULL"), reason="in a full run")
STEPS = 500
LONG = 10_000_000


@pytest.fixture(scope="module")
def quiet():
    """The digest of a run on one machine."""
    with Fleet(1, slots=4) as fleet:
        return fleet.digest(fleet.submit(4, STEPS, 200), 120)


def close_all_but(first, last):
    """A firewall: what comes in is dropped, but for answers and these ports; what is dropped is counted."""
    def prepare(machine):
        machine.in_net("nft", "add", "table", "inet", "wall")
        machine.in_net("nft", "add chain inet wall inwards { type filter hook input priority 0; policy accept; }")
        for rule in ("iifname lo accept", "ct state established,related accept", "meta l4proto ipv6-icmp accept",
                     f"tcp dport {first}-{last} accept", "counter drop"):
            machine.in_net("nft", f"add rule inet wall inwards {rule}")
    return prepare


def hosts_file(machine):
    """As many systems are installed."""
    machine.run("sh", "-c", "echo 127.0.0.1 localhost >/run/hosts; echo 127.0.1.1 $(hostname) >>/run/hosts;"
                            "mount --bind /run/hosts /etc/hosts")
    assert machine.run("sh", "-c", "getent ahostsv4 $(hostname)").startswith("127.0.1.1")


def hosts_of(fleet):
    return sorted(row["host"] for row in fleet.json_lines("node", "ls"))


def test_a_range_of_ports_is_all_that_a_firewall_has_to_open(quiet):
    # two of four workers on each node, and one of the agent's own
    with Fleet(2, slots=2, agent=("--ports", "21000-21002"), prepare=close_all_but(21000, 21002)) as fleet:
        job = fleet.submit(4, STEPS, 200)
        assert fleet.digest(job, 120) == quiet
        shown = fleet.show(job)
        assert shown["generation"] == 1, [event["message"] for event in shown["events"]]
        assert sorted(fleet.nodes_of(job)) == [2, 2, 3, 3]
        for number in (2, 3):
            assert "packets 0 " in fleet.room[number].in_net("nft", "list", "chain", "inet", "wall", "inwards")


def test_too_few_ports_are_said_with_the_number_needed():
    with Fleet(2, slots=2, agent=("--ports", "21000-21001")) as fleet:
        job = fleet.submit(4, STEPS, 200)
        shown = fleet.wait(job, lambda shown: "--ports" in shown["reason"], 20, "it says why it waits")
        assert shown["state"] == "QUEUED" or shown["generation"] == 0, shown
        assert "needs 2 and has 1" in shown["reason"]
        fleet.wait_step(fleet.submit(2, STEPS, 200), 100) # on one node none are needed; nor does the other hold it up


# To each port of each host as often as it goes: one after the other says nothing, noise, and a hello as of a worker.
# Prints how often somebody was there, once its input ends.
STRANGER = """
import os, select, socket, sys
hosts, first, last = sys.argv[3:], int(sys.argv[1]), int(sys.argv[2])
said = (b"", b"GET / HTTP/1.1", b"CairnP2P" + bytes(48), b"Cairn")
held, met = [], 0
while not select.select([sys.stdin], [], [], 0)[0]:
    for host in hosts:
        for port in range(first, last + 1):
            try:
                held.append(socket.create_connection((host, port), 1))
                held[-1].sendall(said[met % len(said)])
                met += 1
            except OSError:
                pass
    held = held[-100:]
print(met)
"""


def test_strangers_at_the_ports_of_workers_disturb_nothing(quiet):
    with Fleet(2, slots=2, agent=("--ports", "21000-21002"), env={"CAIRN_LOG": "info"}) as fleet:
        hosts = [fleet.room[number].address for number in (2, 3)]
        stranger = fleet.room[1].popen(sys.executable, "-c", STRANGER, "21000", "21001", *hosts, text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        job = fleet.submit(4, STEPS, 200)
        assert fleet.digest(job, 120) == quiet
        met = int(stranger.communicate("\n", timeout=30)[0])
        shown = fleet.show(job)
        assert shown["generation"] == 1, [event["message"] for event in shown["events"]]
        assert sorted(fleet.nodes_of(job)) == [2, 2, 3, 3]
        assert met >= 4, "nobody listened when the stranger came"
        assert "a stranger at 10.77.0.1:" in fleet.cairn("logs", job).stdout


def test_a_name_that_means_loopback_disturbs_nothing(quiet):
    with Fleet(2, slots=2, prepare=hosts_file) as fleet:
        assert hosts_of(fleet) == [fleet.room[2].address, fleet.room[3].address]
        assert fleet.digest(fleet.submit(4, STEPS, 200), 120) == quiet


def test_loopback_is_for_jobs_of_one_machine():
    with Fleet(2, slots=2, agent=("--interface", "lo")) as fleet:
        job = fleet.submit(4, STEPS, 200)
        shown = fleet.wait(job, lambda shown: "127.0.0.1" in shown["reason"], 20, "it says why it waits")
        assert "start its agent with --interface" in shown["reason"]
        fleet.wait_step(fleet.submit(2, STEPS, 200), 100)


@full
def test_a_network_names_the_interface(quiet):
    with Fleet(2, slots=2, agent=("--interface", "fd77::/64")) as fleet:
        assert hosts_of(fleet) == [fleet.room[2].address6, fleet.room[3].address6]
        assert fleet.digest(fleet.submit(4, STEPS, 200), 120) == quiet


def test_nodes_without_ipv4_train(quiet):
    with Fleet(2, slots=2, ipv6=True, agent=("--ports", "21000-21002"),
               prepare=close_all_but(21000, 21002)) as fleet:
        assert hosts_of(fleet) == [fleet.room[2].address6, fleet.room[3].address6]
        assert fleet.digest(fleet.submit(4, STEPS, 200), 120) == quiet


@full
def test_a_silent_peer_is_an_error_that_names_it():
    with Fleet(2, env={"CAIRN_HANG_MS": "600000"}) as fleet: # that rule would come too late
        job = fleet.submit(2, LONG, 10000)
        fleet.wait_step(job, 100)
        fleet.room.cut(*fleet.nodes_of(job))

        def named():
            return [event["message"] for event in fleet.show(job)["events"] if "timed out" in event["message"].lower()]

        assert "rank" in until(named, 30, "a rank is named")[0]
