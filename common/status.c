#include "common/status.h"

#include <errno.h>

enum status_scope status_scope(enum status st)
{
    if (st == ST_OK)
        return SCOPE_NONE;
    if (st > ST_CORRUPT)
        return SCOPE_CALL;
    if (st > ST_PEER)
        return SCOPE_CHECKPOINT;
    if (st > ST_DEVICE)
        return SCOPE_GENERATION;
    if (st > ST_CONFIG)
        return SCOPE_WORKER;
    return SCOPE_JOB;
}

const char *status_string(enum status st)
{
    switch (st) {
    case ST_OK:
        return "success";
    case ST_AGAIN:
        return "try again";
    case ST_TIMED_OUT:
        return "timed out";
    case ST_INVALID:
        return "invalid argument";
    case ST_NO_MEMORY:
        return "out of memory";
    case ST_IO:
        return "input/output error";
    case ST_FULL:
        return "no space left";
    case ST_NOT_FOUND:
        return "not found";
    case ST_EXISTS:
        return "exists already";
    case ST_REFUSED:
        return "refused";
    case ST_CLOSED:
        return "closed";
    case ST_UNREACHABLE:
        return "unreachable";
    case ST_AWAY:
        return "the file server is away or failed";
    case ST_FORGOTTEN:
        return "stale handle: the file server does not know the file any more";
    case ST_CORRUPT:
        return "checkpoint is corrupt";
    case ST_INCOMPLETE:
        return "checkpoint is incomplete";
    case ST_PEER:
        return "a peer failed";
    case ST_STALE:
        return "this generation is over";
    case ST_CHANGED:
        return "not what it was";
    case ST_WRONG:
        return "computed wrongly";
    case ST_DEVICE:
        return "device failed";
    case ST_CONFIG:
        return "invalid configuration";
    case ST_NUMERIC:
        return "a number is not finite";
    case ST_VERSION:
        return "of another version than this build";
    case ST_TOO_LONG:
        return "the path is too long";
    }
    return "unknown status";
}

enum status status_from_errno(int error)
{
    switch (error) {
    case 0:
        return ST_OK;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return ST_FULL;
    case ENOENT:
        return ST_NOT_FOUND;
    case EEXIST:
        return ST_EXISTS;
    case EACCES:
    case EPERM:
    case EROFS:
        return ST_REFUSED;
    case ENOMEM:
        return ST_NO_MEMORY;
    case ETIMEDOUT:
        return ST_TIMED_OUT;
    case ENAMETOOLONG:
        return ST_TOO_LONG;
    case EINTR:
    case EAGAIN:
        return ST_AGAIN;
    case ESTALE:
        return ST_FORGOTTEN;
    case EREMOTEIO:
    case ENOTCONN: /* whose FUSE server has ended, too */
    case ESHUTDOWN:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
    case ECONNABORTED:
    case ECONNREFUSED:
    case ECONNRESET:
        return ST_AWAY;
    default:
        return ST_IO;
    }
}
