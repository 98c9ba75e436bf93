#include "client/base/client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/base/plain.h"
#include "common/cleanup.h"

/* In one piece, and so that no text in it steers a terminal. */
static void write_error(const char *before, const char *format, va_list list, const char *after)
{
    auto_free char *text = NULL;
    (void)fflush(stdout);
    if (vasprintf(&text, format, list) < 0)
        text = NULL;
    auto_free char *plain = text == NULL ? NULL : plain_text(text);
    const char *said = plain == NULL ? status_string(ST_NO_MEMORY) : plain;
    const size_t size = strlen(said);
    const bool ended = size > 0 && said[size - 1] == '\n'; /* as mistakes of a job file are */
    (void)fprintf(stderr, "%s%s%s", before, said, ended ? "" : after);
}

void client_error(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    write_error("cairn: ", format, list, "\n");
    va_end(list);
}

enum exit_code client_needs_home(const struct client *client)
{
    const char *noun = client->command->noun;
    if (!client->elsewhere)
        return EXIT_DONE;
    client_error("'cairn %s%s%s' is about a home of this machine, and the context '%s' is a "
                 "coordinator with an address: run it on that machine, or say --context - for the "
                 "home here",
                 noun == NULL ? "" : noun, noun == NULL ? "" : " ", client->command->verb,
                 client->context);
    return EXIT_REFUSED;
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
    va_start(list, format);
    write_error("", format, list, "");
    va_end(list);
}
