"""The table of faults. A new kind is one function and one row of KINDS.

A function gets the run (`world`, `keepers`: slots of jobs, in order) and the event, does it, and returns a Done;
NOBODY: there was nobody to do it to. It must not wait: what comes later it leaves in Done.undo, called when
event.seconds have passed. Rows:

  weight   how often, compared with others
  seconds  least and most that it holds, in seconds
  needs    what it can't do without: a key of World.lacks; where that is lacking the kind is skipped, by name
  holds    what two faults can't have at once: the second one waits
"""
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Callable

from world import POINTS, worker_at

STOP, CONT, KILL, TERM, SEGV = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV


@dataclass
class Done:
    victim: str
    job: object = None  # of jobs.Job: whose it is
    undo: Callable = None  # returns the victim, where that is known only then


NOBODY = None


@dataclass(frozen=True)
class Kind:
    name: str
    weight: float
    does: Callable
    seconds: tuple = (0, 0)
    needs: str = ""
    holds: tuple = field(default=())


def pidfd(pid):
    """A descriptor: a pid may be another process's a moment later. None: it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def send(pid, *signals):
    fd = pidfd(pid)
    if fd is None:
        return False
    try:
        for sig in signals:
            signal.pidfd_send_signal(fd, sig)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


# ---- workers ----

def job_with_workers(run, event):
    """The event's slot, or the next one where workers run: its job and they."""
    workers = run.world.workers()
    for turn in range(len(run.keepers)):
        job = run.keepers[(event.slot + turn) % len(run.keepers)].job
        own = [worker for worker in workers if job and worker.job == job.id]
        if own:
            return job, own
    return None, []


def signalled(*signals, everybody=False):
    """Signals to one worker of a job, or to all."""
    def does(run, event):
        job, workers = job_with_workers(run, event)
        if job is None:
            return NOBODY
        victims = workers if everybody else [event.choose(workers)]
        hit = [victim for victim in victims if worker_at(victim.pid, 0) and send(victim.pid, *signals)]
        if not hit:
            return NOBODY
        ranks = ",".join(str(victim.rank) for victim in hit)
        return Done(f"rank {ranks} of generation {hit[0].generation}, machine {hit[0].machine}", job)
    return does


def stopped(then):
    """SIGSTOP; after a while another signal."""
    def does(run, event):
        job, workers = job_with_workers(run, event)
        if job is None:
            return NOBODY
        victim = event.choose(workers)
        fd = pidfd(victim.pid)
        if fd is None:
            return NOBODY
        signal.pidfd_send_signal(fd, STOP)

        def undo():
            try:
                signal.pidfd_send_signal(fd, then)
            except ProcessLookupError:
                pass
            os.close(fd)
        return Done(f"rank {victim.rank} of generation {victim.generation}, machine {victim.machine}, "
                    f"{event.seconds:.1f} s", job, undo)
    return does


def exits(run, event):
    """The first worker of that rank that reaches a point of the program exits there by itself."""
    point, rank = event.choose(POINTS)
    before = [worker for worker in run.world.workers() if worker.rank == rank]
    run.world.arm(point)

    def undo():
        inner = run.world.fired(point)
        run.world.disarm(point)
        if inner is None:
            return None
        alive = {worker.pid for worker in run.world.workers()}
        gone = [worker.job for worker in before if worker.inner == inner and worker.pid not in alive]
        job = next((keeper.job for keeper in run.keepers if keeper.job and keeper.job.id in gone), None)
        return f"rank {rank} in {point}, pid {inner}" + (f", of {job.name}" if job else "")
    return Done("", None, undo)


# ---- coordinator, agents ----

def kill_daemons(run, event, coordinator, agent):
    """They start again after event.seconds (by a supervisor: when it does)."""
    world, said, again = run.world, [], []
    if coordinator:
        for pid, machine in world.pids("cairnd").items():
            run.expect_end(pid)
            if send(pid, KILL):
                said.append(f"cairnd, machine {machine}")
                again.append((world.start_coordinator, ()))
    agents = list(world.pids("cairn-agent").items())
    if agent and agents:
        pid, machine = event.choose(agents)
        run.expect_end(pid)
        if send(pid, KILL):
            said.append(f"agent, machine {machine}")
            again.append((world.start_agent, (machine,)))

    def undo():
        for function, words in again:
            function(*words)
    return Done(" and ".join(said), None, undo) if said else NOBODY


def kill_coordinator(run, event):
    return kill_daemons(run, event, True, False)


def kill_agent(run, event):
    return kill_daemons(run, event, False, True)


def kill_both(run, event):
    return kill_daemons(run, event, True, True)


def stop_daemon(program):
    def does(run, event):
        found = list(run.world.pids(program).items())
        if not found:
            return NOBODY
        pid, machine = event.choose(found)
        if not send(pid, STOP):
            return NOBODY

        def undo():
            send(pid, CONT)
        return Done(f"{program}, machine {machine}, {event.seconds:.1f} s", None, undo)
    return does


# ---- the network between machines ----

def two_machines(run, event):
    """Any two, the coordinator's among them."""
    first = event.choose(run.world.machines)
    return first, event.choose_other([number for number in run.world.machines if number != first])


def network(method):
    """A pair's fault, by its name in tests/net/faults.py."""
    def does(run, event):
        pair = two_machines(run, event)
        getattr(run.world.room, method)(*pair)
        return Done(f"machines {pair[0]} and {pair[1]}, {event.seconds:.1f} s", None, run.world.room.heal)
    return does


def lossy(run, event):
    for a in run.world.machines:
        for b in run.world.machines:
            if a != b:
                run.world.room.loss(a, b, 5)
    return Done(f"all machines, 5 %, {event.seconds:.1f} s", None, run.world.room.heal)


def slow_wire(run, event):
    machine = event.choose(run.world.machines)
    run.world.room.slow(machine, "10mbit")
    return Done(f"machine {machine}, 10 Mbit/s, {event.seconds:.1f} s", None, run.world.room.heal)


def long_wire(run, event):
    machine = event.choose(run.world.machines)
    run.world.room.delay(machine, 50)
    return Done(f"machine {machine}, 50 ms, {event.seconds:.1f} s", None, run.world.room.heal)


def isolated(run, event):
    machine = event.choose(run.world.nodes)
    run.world.room.isolate(machine)

    def undo():
        run.world.room.join(machine)
    return Done(f"machine {machine}, {event.seconds:.1f} s", None, undo)


def spare_kill(run, event):
    """One that starts, waits for a seat, or is about to take it."""
    there = run.world.workers()
    for turn in range(len(run.keepers)):
        job = run.keepers[(event.slot + turn) % len(run.keepers)].job
        numbers = [one["number"] for one in job.shown.get("spares", ())] if job and job.shown else []
        for spare in there:  # not by the pid that is shown: it is one of its own machine
            if spare.rank in numbers and spare.job == job.id and send(spare.pid, KILL):
                return Done(f"worker {spare.rank}, machine {spare.machine}", job)
    return NOBODY


# ---- the store ----

def disk(*rules):
    """What one machine's view of the store does wrong (tests/e2e/faulty_fs.c)."""
    def does(run, event):
        machine = event.choose(run.world.machines)
        run.world.disk(machine, *rules)

        def undo():
            run.world.disk(machine)
        return Done(f"machine {machine}, {event.seconds:.1f} s", None, undo)
    return does


def disk_full(run, event):
    run.world.fill()
    return Done(f"the store, {event.seconds:.1f} s", None, run.world.unfill)


# ---- people ----

def running_job(run, event):
    for turn in range(len(run.keepers)):
        job = run.keepers[(event.slot + turn) % len(run.keepers)].job
        if job and job.state in ("RUNNING", "RECOVERING", "FORMING", "QUEUED"):
            return job
    return None


def pause(run, event):
    """The job's keeper resumes it."""
    job = running_job(run, event)
    if job is None:
        return NOBODY
    job.resume_at = time.monotonic() + event.seconds
    run.ask("pause", job.id)
    return Done(f"{event.seconds:.1f} s", job)


def save(run, event):
    job = running_job(run, event)
    if job is None:
        return NOBODY
    run.ask("save", job.id, "--timeout", "60s")
    return Done("-", job)


def set_workers(run, event):
    """Another number of them, while it trains."""
    job = running_job(run, event)
    if job is None:
        return NOBODY
    count = event.choose((2, 3, 4))  # no job's min is more, and there are four lanes
    run.ask("set", job.id, f"workers.count={count}")
    return Done(f"{count} workers", job)


KINDS = [
    Kind("worker-kill", 6, signalled(KILL)),
    Kind("worker-segv", 2, signalled(SEGV)),
    Kind("worker-term", 2, signalled(TERM)),
    Kind("worker-exit", 3, exits, (6, 6), "points", ("points",)),
    Kind("worker-pause", 3, stopped(CONT), (0.5, 4)),
    Kind("worker-stop-kill", 2, stopped(KILL), (0.5, 4)),
    Kind("worker-hang", 1, stopped(CONT), (25, 35)),
    Kind("workers-kill", 2, signalled(KILL, everybody=True)),
    Kind("spare-kill", 1.5, spare_kill),
    Kind("coordinator-kill", 1.5, kill_coordinator, (0.2, 4), holds=("coordinator",)),
    Kind("coordinator-pause", 1, stop_daemon("cairnd"), (0.5, 5), holds=("coordinator",)),
    Kind("agent-kill", 2, kill_agent, (0.2, 4), holds=("agents",)),
    Kind("agent-pause", 1, stop_daemon("cairn-agent"), (0.5, 5), holds=("agents",)),
    Kind("coordinator-agent-kill", 1, kill_both, (0.2, 4), holds=("coordinator", "agents")),
    Kind("net-cut", 2, network("cut"), (2, 12), "network", ("network",)),
    Kind("net-oneway", 1, network("oneway"), (2, 12), "network", ("network",)),
    Kind("net-loss", 1, lossy, (4, 10), "network", ("network",)),
    Kind("net-slow", 1, slow_wire, (4, 10), "network", ("network",)),
    Kind("net-delay", 1, long_wire, (4, 10), "delay", ("network",)),
    Kind("machine-isolated", 1, isolated, (2, 12), "network", ("network",)),
    Kind("disk-slow", 2, disk("write - delay 100", "fsync - delay 1000"), (3, 10), "faulty store", ("disk",)),
    Kind("disk-hang", 1, disk("fsync - hang 60"), (2, 8), "faulty store", ("disk",)),
    Kind("disk-error", 1, disk("write - errno 5"), (1, 6), "faulty store", ("disk",)),
    Kind("disk-full", 1, disk_full, (3, 10), "small store", ("disk",)),
    Kind("job-pause", 2, pause, (1, 6)),
    Kind("job-save", 2, save),
    Kind("workers-set", 3, set_workers),
]
