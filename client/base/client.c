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
