#include "client/base/exit.h"

#include "common/check.h"

enum exit_code exit_of_code(enum rpc_code code)
{
    switch (code) {
    case RPC_OK:
        return EXIT_DONE;
    case RPC_INVALID_ARGUMENT:
    case RPC_OUT_OF_RANGE:
        return EXIT_USAGE;
    case RPC_NOT_FOUND:
        return EXIT_NOT_FOUND;
    case RPC_FAILED_PRECONDITION:
    case RPC_PERMISSION_DENIED:
    case RPC_UNAUTHENTICATED:
    case RPC_RESOURCE_EXHAUSTED:
    case RPC_ALREADY_EXISTS:
    case RPC_ABORTED:
        return EXIT_REFUSED;
    case RPC_UNAVAILABLE:
    case RPC_DEADLINE_EXCEEDED:
        return EXIT_UNREACHABLE;
    case RPC_DATA_LOSS:
        return EXIT_DAMAGED;
    case RPC_CANCELLED:
    case RPC_UNKNOWN:
    case RPC_UNIMPLEMENTED:
    case RPC_INTERNAL:
        return EXIT_INTERNAL;
    }
    return EXIT_INTERNAL;
}

enum exit_code exit_of_status(enum status st)
{
    switch (st) {
    case ST_OK:
        return EXIT_DONE;
    case ST_INVALID:
    case ST_CONFIG:
    case ST_TOO_LONG:
        return EXIT_USAGE;
    case ST_NOT_FOUND:
        return EXIT_NOT_FOUND;
    case ST_REFUSED:
    case ST_EXISTS:
    case ST_VERSION:
        return EXIT_REFUSED;
    case ST_UNREACHABLE:
        return EXIT_UNREACHABLE;
    case ST_CORRUPT:
    case ST_INCOMPLETE:
        return EXIT_DAMAGED;
    case ST_AGAIN:
    case ST_TIMED_OUT:
    case ST_NO_MEMORY:
    case ST_IO:
    case ST_AWAY:
    case ST_FORGOTTEN:
    case ST_FULL:
    case ST_CLOSED:
    case ST_PEER:
    case ST_STALE:
    case ST_WRONG:
    case ST_CHANGED:
    case ST_DEVICE:
    case ST_NUMERIC:
        return EXIT_INTERNAL;
    }
    CHECK(false);
    return EXIT_INTERNAL;
}
