#include "server/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobspec/jobspec.h"
#include "rpc/rpc.h"

#define EXIT_USAGE 2

static const char usage[] =
    "usage: cairnd [--listen ADDRESS:PORT [--tls-cert FILE --tls-key FILE --tls-ca FILE]]\n"
    "              [--advertise HOST:PORT]\n"
    "              [--paths DIR[:DIR...] [--commands]] [--beat S] [--lost-after S]\n"
    "       cairnd --backup FILE\n"
    "       cairnd --recover [--state DIR] STORE...\n"
    "\n"
    "The coordinator of the instance under CAIRN_HOME; `cairn up` starts it.\n"
    "\n"
    "  --listen ADDRESS:PORT  also serve TCP (port 0: any; the address is written to\n"
    "                         CAIRN_HOME/cairnd.addr). With the files of `cairn cert init` it is\n"
    "                         TLS, for callers with a certificate; without, a loopback address, "
    "for\n"
    "                         callers with the token in CAIRN_HOME/token\n"
    "  --tls-cert FILE        the coordinator's certificate,\n"
    "  --tls-key FILE         its key,\n"
    "  --tls-ca FILE          and the authority\n"
    "  --advertise HOST:PORT  where agents and people reach the listener, if it is another place;\n"
    "                         invites name it\n"
    "  --paths DIR[:DIR...]   of those who show a certificate, job files may name what is in "
    "these\n"
    "                         folders only (or in s3://BUCKET/PREFIX), and have no command and\n"
    "                         no library\n"
    "  --commands             with --paths: they may have a command or a library, which does what\n"
    "                         its account can\n"
    "  --beat S               seconds between two signs of life of a node (docs/machines.md)\n"
    "  --lost-after S         after so many without one it counts as silent\n"
    "  --backup FILE          copy the journal to FILE and end; the coordinator may be running. To "
    "go\n"
    "                         back to it: `cairn down`, put FILE in the place of\n"
    "                         CAIRN_HOME/state/cairnd.db, `cairn up`\n"
    "  --recover              make a journal that is lost or damaged anew from the checkpoints in "
    "all\n"
    "                         STOREs of its jobs (folders, s3://BUCKET/PREFIX), and end:\n"
    "                         docs/lost-journal.md\n"
    "  --state DIR            with --recover: instead of CAIRN_HOME/state\n";

/* Beyond this machine there is no plaintext. -1: it will do. */
static int check_listen(const struct options *o)
{
    const int files = (o->tls.cert != NULL) + (o->tls.key != NULL) + (o->tls.ca != NULL);
    if (files != 0 && (files != 3 || o->listen == NULL)) {
        (void)fputs("cairnd: --tls-cert, --tls-key and --tls-ca go together, with --listen\n",
                    stderr);
        return EXIT_USAGE;
    }
    if (o->listen != NULL && !rpc_address_is_served(o->listen)) {
        (void)fprintf(stderr,
                      "cairnd: --listen %s: ADDRESS:PORT, as 127.0.0.1:7000 or [::1]:7000; port 0 "
                      "is any\n",
                      o->listen);
        return EXIT_USAGE;
    }
    if (o->listen != NULL && files == 0 && !rpc_address_is_loopback(o->listen)) {
        (void)fprintf(
            stderr,
            "cairnd: %s: beyond loopback TLS is spoken: --tls-cert, --tls-key and --tls-ca, "
            "as made by 'cairn cert init'\n",
            o->listen);
        return EXIT_USAGE;
    }
    return -1;
}

/* Takes how jobs recover: for tests, and to compare. */
static bool take_recovery(struct options *o)
{
    const char *how = getenv("CAIRN_RECOVERY");
    o->restarts = how != NULL && strcmp(how, "restart") == 0;
    if (how == NULL || !how[0] || o->restarts || strcmp(how, "live") == 0)
        return true;
    (void)fprintf(stderr, "cairnd: CAIRN_RECOVERY is '%.40s': live, or restart\n", how);
    return false;
}

/* -1, or the exit code of a program that has said all it has to. */
static int read_arguments(struct options *o, const char **beat, const char **lost_after, int argc,
                          char **argv)
{
    enum { HELP, VERSION, RECOVER, COMMANDS, FIRST };
    const char **const text[] = { &o->listen, &o->tls.cert, &o->tls.key, &o->tls.ca,    &o->paths,
                                  beat,       lost_after,   &o->backup,  &o->advertise, &o->state };
    static const struct option options[] = {
        { "listen", required_argument, NULL, FIRST },
        { "tls-cert", required_argument, NULL, FIRST + 1 },
        { "tls-key", required_argument, NULL, FIRST + 2 },
        { "tls-ca", required_argument, NULL, FIRST + 3 },
        { "paths", required_argument, NULL, FIRST + 4 },
        { "beat", required_argument, NULL, FIRST + 5 },
        { "lost-after", required_argument, NULL, FIRST + 6 },
        { "backup", required_argument, NULL, FIRST + 7 },
        { "advertise", required_argument, NULL, FIRST + 8 },
        { "state", required_argument, NULL, FIRST + 9 },
        { "recover", no_argument, NULL, RECOVER },
        { "commands", no_argument, NULL, COMMANDS },
        { "help", no_argument, NULL, HELP },
        { "version", no_argument, NULL, VERSION },
        { NULL, 0, NULL, 0 },
    };
    int option;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h' || option == HELP) {
            (void)fputs(usage, stdout);
            return 0;
        }
        if (option == VERSION) {
            (void)puts("cairnd " CAIRN_VERSION);
            return 0;
        }
        if (option == '?')
            return EXIT_USAGE;
        if (option == RECOVER) {
            o->recover = true;
        } else if (option == COMMANDS) {
            o->commands = true;
        } else {
            *text[option - FIRST] = optarg;
        }
    }
    o->stores = (const char *const *)&argv[optind];
    o->store_count = (size_t)(argc - optind);
    if (o->store_count > 0 && !o->recover)
        return EXIT_USAGE;
    return o->listen != NULL && strchr(o->listen, ':') == NULL ? EXIT_USAGE : -1;
}

/* Checks the options of --recover, which goes with few others. -1: they will do. */
static int check_recover(const struct options *o)
{
    if (o->state != NULL && !o->recover) {
        (void)fputs("cairnd: --state goes with --recover; else CAIRN_HOME says it\n", stderr);
        return EXIT_USAGE;
    }
    if (o->recover && (o->store_count == 0 || o->backup != NULL || o->listen != NULL)) {
        (void)fputs("cairnd: --recover takes the stores that the jobs' checkpoints are in, all of "
                    "them, and nothing else\n",
                    stderr);
        return EXIT_USAGE;
    }
    return -1;
}

int options_take(struct options *o, int argc, char **argv)
{
    const char *beat = NULL, *lost_after = NULL;
    struct reason reason = { "" };
    const int code = read_arguments(o, &beat, &lost_after, argc, argv);
    if (code == EXIT_USAGE)
        (void)fputs(usage, stderr);
    if (code != -1)
        return code;
    if (o->paths != NULL && o->tls.cert == NULL) {
        (void)fprintf(stderr,
                      "cairnd: --paths is for callers with certificates: with --tls-cert\n");
        return EXIT_USAGE;
    }
    if (o->commands && o->paths == NULL) {
        (void)fprintf(stderr,
                      "cairnd: --commands goes with --paths: without that, everybody's job files "
                      "may have commands\n");
        return EXIT_USAGE;
    }
    if (o->paths != NULL && !jobspec_allowed_valid(o->paths)) {
        (void)fprintf(stderr,
                      "cairnd: --paths %s: folders with their whole path, or s3://BUCKET/PREFIX, "
                      "separated by ':'\n",
                      o->paths);
        return EXIT_USAGE;
    }
    if (o->advertise != NULL && (o->tls.cert == NULL || !rpc_address_is_dialled(o->advertise))) {
        (void)fprintf(stderr, "cairnd: --advertise %s: HOST:PORT, with --tls-cert\n", o->advertise);
        return EXIT_USAGE;
    }
    if (times_read(beat, lost_after, &o->times, &reason) != ST_OK) {
        (void)fprintf(stderr, "cairnd: %s\n", reason.text);
        return EXIT_USAGE;
    }
    if (!take_recovery(o))
        return EXIT_USAGE;
    const int wrong = check_recover(o);
    return wrong == -1 ? check_listen(o) : wrong;
}
