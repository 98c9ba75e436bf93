"""When which fault happens: a function of the seed, the time, the rate and the kinds, and of nothing else.

An event doesn't name a process (there is none yet) but where to look for its victim: `slot`, which of the jobs, `pick`
and `other`, numbers in [0, 1) that choose from a list in a stable order.
"""
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    number: int
    at: float  # seconds from the begin
    kind: str
    slot: int
    pick: float
    other: float
    seconds: float  # how long it holds

    def choose(self, things):
        """One of a list in a stable order."""
        return things[int(self.pick * len(things))]

    def choose_other(self, things):
        """Another draw."""
        return things[int(self.other * len(things))]


def schedule(seed, minutes, rate, kinds, slots):
    """Events in the order of their times; kinds: in the order of their table, with weights and bounds of seconds."""
    draw = random.Random(f"cairn-chaos-{seed}")
    times = sorted(draw.uniform(0, minutes * 60) for _ in range(round(minutes * rate)))
    events = []
    for number, at in enumerate(times, 1):
        kind = draw.choices(kinds, [kind.weight for kind in kinds])[0]
        events.append(Event(number, at, kind.name, draw.randrange(slots), draw.random(), draw.random(),
                            draw.uniform(*kind.seconds)))
    return events
