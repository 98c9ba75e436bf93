"""Machines whose wall clock is wrong: good certificates count as expired or as not yet valid there, and they say why.

Only what is said is tried: a process whose clock is wrong by a library waits wrongly, too (gRPC's own waits go by the
kernel's wall clock), so that nothing more can be learned of it.
"""
import signal

import pytest

from faults import no_clock
from fleet import Fleet, until
from rooms import missing

REASON = missing() or no_clock()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
AHEAD, BEHIND = "+20000d", "-2d"  # also beyond the authority's end


def test_a_wrong_clock_is_what_is_said_of_a_good_certificate():
    with Fleet(1) as fleet:
        for off, words in ((BEHIND, "is this machine's clock right?"), (AHEAD, "or set this machine's clock")):
            fleet.clocks = {1: off, 2: off}
            said = fleet.cairn("--addr", "127.0.0.1:7000", *fleet.tls("coordinator"), "ps", check=False)
            assert said.returncode != 0 and words in said.stderr, said.stderr
            fleet.room[2].signal(signal.SIGTERM, "cairn-agent")
            until(lambda: not fleet.room[2].pids("cairn-agent"), 20, "the agent ends")
            fleet.start_agent(2)
            said = until(lambda: [line for line in fleet.log_of("cairn-agent", 2).splitlines() if words in line], 20,
                         "the agent says it")
            print(f"{off}: {said[0]}")
        fleet.clocks = {1: AHEAD}
        fleet.room[1].signal(signal.SIGTERM, "cairnd")
        until(lambda: not fleet.room[1].pids("cairnd"), 20, "the coordinator ends")
        fleet.start_coordinator(serves=False)
        assert fleet.cairnd.wait(20) != 0
        assert "or set this machine's clock" in fleet.log_of("cairnd", 1)
