#include "client/base/client.h"

#include <stdarg.h>
#include <stdio.h>

void client_error(const char *format, ...)
{
    va_list list;
    (void)fflush(stdout);
    (void)fputs("cairn: ", stderr);
    va_start(list, format);
    (void)vfprintf(stderr, format, list);
    va_end(list);
    (void)fputc('\n', stderr);
}

const char *client_file_status(enum status st)
{
    if (st == ST_REFUSED)
        return "permission denied, or a read-only file system";
    return st == ST_NOT_FOUND ? "no such file or folder" : status_string(st);
}

void client_note(const struct client *client, const char *format, ...)
{
    va_list list;
    if (client->args.quiet)
        return;
    (void)fflush(stdout);
    va_start(list, format);
    (void)vfprintf(stderr, format, list);
    va_end(list);
}
