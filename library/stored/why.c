#include "library/stored/why.h"

#include "common/reason.h"

static __thread struct reason said;

int library_say(int status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    reason_set_list(&said, format, list);
    va_end(list);
    return status;
}

const char *library_why(void)
{
    return said.text;
}

int library_status(enum status st)
{
    switch (st) {
    case ST_OK:
    case ST_AGAIN:
    case ST_TIMED_OUT:
    case ST_INVALID:
    case ST_NO_MEMORY:
    case ST_IO:
    case ST_FULL:
    case ST_NOT_FOUND:
    case ST_REFUSED:
    case ST_CLOSED:
    case ST_CORRUPT:
    case ST_STALE:
    case ST_CHANGED:
    case ST_VERSION:
        return (int)st; /* the same numbers */
    case ST_INCOMPLETE:
        return CAIRN_CORRUPT;
    case ST_TOO_LONG:
    case ST_CONFIG:
    case ST_EXISTS:
        return CAIRN_INVALID;
    case ST_UNREACHABLE:
    case ST_AWAY:
    case ST_FORGOTTEN:
    case ST_PEER:
    case ST_WRONG:
    case ST_DEVICE:
    case ST_NUMERIC:
        break;
    }
    return CAIRN_IO;
}
