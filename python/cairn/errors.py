"""What can go wrong, as classes: each is a `cairn.Error` and says what the library said.

`error.status` is the number of `library/cairn.h`. Most programs catch none of these: a failed process is started again, and goes on from
the newest state. `Stale` says that this start of the program is over: let it end.
"""
from __future__ import annotations


class Error(Exception):
    """What the library, or the worker's process, refused. `status` is its number."""

    status: int = -102


class Again(Error):
    """Not now; the same call may be made again."""

    status = -100


class TimedOut(Error, TimeoutError):
    """The worker's process does not answer."""

    status = -101


class Invalid(Error, ValueError):
    """An argument is wrong, or the call comes at the wrong time."""

    status = -102


class NoMemory(Error, MemoryError):
    """There is no memory for it."""

    status = -103


class StorageError(Error, OSError):
    """Reading or writing failed."""

    status = -104


class Full(Error):
    """There is no room, or more came than was announced."""

    status = -105


class NotFound(Error, LookupError):
    """There is no such thing."""

    status = -106


class Refused(Error):
    """The worker's process does not allow it."""

    status = -108


class Closed(Error, ConnectionError):
    """The connection to the worker's process is gone, or belongs to the process that forked this one."""

    status = -109


class Corrupt(Error):
    """What was stored is damaged."""

    status = -200


class Stale(Error):
    """This start of the program is over: another one runs, or will."""

    status = -301


class Changed(Error):
    """The state isn't as it was described, or as it was saved."""

    status = -302


class Version(Error):
    """The package and the worker's process, or what was stored, are of different versions."""

    status = -502


CLASSES = {kind.status: kind for kind in
           (Again, TimedOut, Invalid, NoMemory, StorageError, Full, NotFound, Refused, Closed, Corrupt, Stale, Changed, Version)}


def of(status: int, why: str) -> Error:
    """The exception of a status, with the library's words."""
    kind = CLASSES.get(status, Error)
    error = kind(why or f"{kind.__doc__} ({status})")
    error.status = status
    return error
