"""What flight recorders of a job's workers hold (common/flight.h)."""
import struct

MARKS_AT, MARK_BYTES, PHASE = 4096, 64, 1


def flights(home, job):
    """Of each process the phases that it began: (seconds, finished steps, phase), in the order of time."""
    found = []
    for path in sorted((home.home / f"jobs/{job}").glob("g*/r*.flight")):
        data = path.read_bytes()
        records = []
        for at in range(MARKS_AT, len(data) - MARK_BYTES + 1, MARK_BYTES):
            number, nanoseconds, step, kind, _, _, name = struct.unpack_from("<QqQIIQ24s", data, at)
            if number and kind == PHASE:
                records.append((nanoseconds / 1e9, step, name.split(b"\0")[0].decode()))
        found.append(sorted(records))
    return found
