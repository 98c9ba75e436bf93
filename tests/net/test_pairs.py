"""`cairn node check --pairs` on machines of which some pairs don't reach each other."""
import json
import os
import subprocess

import pytest

from fleet import Fleet, until
from rooms import missing

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
full = pytest.mark.skipif(not os.environ.get("CAIRN_TEST_FULL"), reason="in a full run")
PORTS = "21000-21099"


def check(fleet, *args):
    done = fleet.cairn("node", "check", "--pairs", *args, "-o", "json", check=False)
    rows = json.loads(done.stdout) if done.stdout else []
    return done, {(row["from"], row["to"]): row for row in rows}


def close_ports(machine):
    """Its firewall lets nobody in at the range, without a word; what it connects to itself works."""
    machine.in_net("nft", "add", "table", "inet", "closed")
    machine.in_net("nft", "add chain inet closed in { type filter hook input priority 0; }")
    machine.in_net("nft", f"add rule inet closed in tcp dport {PORTS} tcp flags & (syn|ack) == syn drop")


def test_the_table_says_which_pairs_fail_and_what_to_do():
    with Fleet(3, agent=("--ports", PORTS)) as fleet:
        done, rows = check(fleet)
        assert done.returncode == 0, done.stderr
        assert len(rows) == 6 and all(row["ok"] for row in rows.values()), rows
        assert all(row["reach_ms"] > 0 and row["megabytes_per_s"] > 1 and row["way_out"] == "" for row in rows.values())
        assert "3 pairs of 3 nodes" in done.stderr

        fleet.room.cut(2, 3)
        close_ports(fleet.room[4])
        done, rows = check(fleet)
        assert done.returncode == 4
        good = {pair for pair, row in rows.items() if row["ok"]}
        assert good == {("node4", "node2"), ("node4", "node3")}
        cut, closed = rows["node2", "node3"], rows["node2", "node4"]
        assert "no answer within 1000 ms" in cut["saw"] and fleet.room[3].address in cut["saw"]
        assert "--interface" in cut["way_out"] and "firewall" in cut["way_out"]
        assert cut["reach_ms"] is None and cut["megabytes_per_s"] is None
        assert "no answer" in closed["saw"] and "node4 reaches node2" in closed["way_out"]
        assert "--ports" in closed["way_out"]
        assert "node2 to node3: " in done.stderr and "node2 to node4: " in done.stderr

        table = fleet.cairn("node", "check", "--pairs", "node4,node2", check=False)
        assert table.returncode == 4 and "FAILED" in table.stdout and " ms" in table.stdout and " MB/s" in table.stdout
        assert len(table.stdout.splitlines()) == 3

        refused, _ = check(fleet, "node2", "node9")
        assert refused.returncode == 3 and "node9" in refused.stderr
        fleet.room.heal()
        fleet.room[3].power_off()
        until(lambda: "node3" not in fleet.ready(), 20, "node3 is lost")
        done, rows = check(fleet)
        assert "not tried: node3: its agent isn't heard now" in done.stderr and len(rows) == 2
        refused, _ = check(fleet, "node2", "node3")
        assert refused.returncode == 4 and "node3 can't be tried" in refused.stderr
        assert check(fleet, "node2")[0].returncode == 4


@full
def test_data_that_get_stuck_are_a_failure_of_the_path():
    """Small packets pass, large ones don't: what a wrong MTU does."""
    with Fleet(2) as fleet:
        fleet.room.in_net("nft", "add", "rule", "bridge", "faults", "passing", "ip", "length", ">", "1000", "ip", "daddr",
                          fleet.room[3].address, "tcp", "dport", "!=", "7000", "drop")
        done, rows = check(fleet)
        assert done.returncode == 4
        assert rows["node3", "node2"]["ok"]
        stuck = rows["node2", "node3"]
        assert not stuck["ok"] and stuck["reach_ms"] > 0 and "MTU" in stuck["way_out"], stuck


@full
def test_two_checks_at_once_are_one_too_many():
    with Fleet(2) as fleet:
        fleet.room.cut(2, 3)  # so that it takes a while
        first = subprocess.Popen(fleet.room[1].command("/run/bin/cairn", "node", "check", "--pairs"), env=fleet.env_of(1),
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert "1 pair of 2 nodes" in first.stderr.readline()
        second, _ = check(fleet)
        assert second.returncode == 4 and "somebody else" in second.stderr, second.stderr
        first.communicate()
        assert first.returncode == 4
        fleet.room.heal()
        assert check(fleet)[0].returncode == 0
