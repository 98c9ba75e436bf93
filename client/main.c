/* Program `cairn`: from the arguments to a command of the table, and its exit code. */
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/store/store.h"
#include "client/ask/recorded.h"
#include "client/base/client.h"
#include "client/commands.h"
#include "client/context/choose.h"
#include "client/help.h"
#include "client/print/output.h"
#include "rpc/client.h"

static void look_at_terminal(struct client *client)
{
    const char *term = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    bool dumb = term == NULL || strcmp(term, "dumb") == 0;
    (void)setlocale(LC_CTYPE, ""); /* not LC_NUMERIC: numbers are written with a point */
    client->utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    client->terminal = isatty(STDOUT_FILENO) == 1 && !dumb;
    client->plain = isatty(STDOUT_FILENO) == 1 && !output_is_json(client);
    client->color = client->terminal && !client->args.no_color &&
                    (no_color == NULL || no_color[0] == '\0') && client->args.output <= OUTPUT_WIDE;
}

static enum exit_code show_help(const struct client *client)
{
    if (client->command != NULL) {
        help_command(client->table, client->command);
    } else if (client->args.operand_count > 0) {
        help_noun(client->table, client->args.operands[0]);
    } else {
        help_all(client->table);
    }
    return EXIT_DONE;
}

/* A reader that left, as `head` does, is no failure; a full disk is. */
static enum exit_code finish(enum exit_code code)
{
    if (code == EXIT_INTERNAL && output_unread())
        return EXIT_DONE; /* cairn ps | head */
    errno = 0;
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return code;
    /* The call that failed is long past, and what it had to write is gone: another one says why. */
    const int error = errno != 0 || write(STDOUT_FILENO, "\n", 1) < 0 ? errno : 0;
    if (output_unread())
        return code;
    client_error("can't write to standard output%s%s", error != 0 ? ": " : "",
                 error != 0 ? strerror(error) : "");
    return EXIT_INTERNAL;
}

int main(int argc, char **argv)
{
    struct client client = { .table = &commands, .signal_fd = -1 };
    struct reason reason;
    (void)signal(SIGPIPE, SIG_IGN);
    if (arguments_parse(client.table, argc - 1, argv + 1, &client.args, &client.command, &reason) !=
        ST_OK) {
        client_error("%s", reason.text);
        return EXIT_USAGE;
    }
    look_at_terminal(&client);
    if (client.args.help)
        return (int)finish(show_help(&client));
    if (client.command == NULL) {
        (void)show_help(&client);
        return EXIT_USAGE;
    }
    const enum exit_code chosen = context_apply(&client);
    if (chosen != EXIT_DONE)
        return (int)chosen;
    enum status st = paths_open(&client.paths);
    if (st != ST_OK) {
        client_error("there is no place for state; set CAIRN_HOME");
        return EXIT_USAGE;
    }
    if (ckpt_store_new(&client.store) != ST_OK) {
        client_error("%s", status_string(ST_NO_MEMORY));
        return EXIT_INTERNAL;
    }
    enum exit_code code = finish(client.command->run(&client));
    ckpt_store_free(client.store);
    recorded_free(client.recorded);
    if (client.channel != NULL) {
        rpc_channel_free(client.channel);
        rpc_shutdown();
    }
    if (client.signal_fd >= 0)
        (void)close(client.signal_fd);
    return (int)code;
}
