/* Program cairn-agent: arguments, defaults, and the agent until it is told to end. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/join/join.h"
#include "agent/leave.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/io.h"
#include "common/own/home.h"
#include "common/own/private.h"
#include "common/port_range.h"
#include "identity/check.h"
#include "rpc/rpc.h"

enum { EXIT_DONE = 0, EXIT_INTERNAL = 1, EXIT_USAGE = 2, EXIT_REFUSED = 4 };

enum { SLOTS_MIN = 4, TOKEN_BYTES_MAX = 4096 };

static const char usage[] =
    "usage: cairn-agent [--coordinator ADDRESS] [--slots N] [--name NODE] [--host ADDRESS]\n"
    "                   [--tls-cert FILE --tls-key FILE --tls-ca FILE] [--token-file PATH]\n"
    "                   [--join FILE] [--interface NAME|NET] [--ports A-B]\n"
    "                   [--trainer PATH] [--nvml PATH]\n"
    "                   [--leave-on-term | --stay-on-term] [--grace SECONDS]\n"
    "\n"
    "Starts the trainers of this node for a coordinator, and watches them.\n"
    "\n"
    "  --coordinator ADDRESS  unix:/PATH or HOST:PORT; default: the socket of CAIRN_HOME\n"
    "  --slots N              trainers on CPUs at a time; default: the cores, at least 4; every "
    "GPU\n"
    "                         of this machine is one slot more\n"
    "  --name NODE            name among the agents; default: the certificate's, else the host's\n"
    "  --host ADDRESS         where trainers of other nodes reach those of this one; default: the\n"
    "                         address from which this machine reaches the coordinator\n"
    "  --interface NAME|NET   the same by an interface (eth1) or a network (10.1.0.0/16)\n"
    "  --ports A-B            where trainers listen for those of other nodes; default: any port\n"
    "  --tls-cert FILE        this node's certificate, its key and the authority, as made by\n"
    "  --tls-key FILE         `cairn cert node NAME`: for a coordinator on another machine;\n"
    "  --tls-ca FILE          default: CAIRN_TLS_CERT, CAIRN_TLS_KEY and CAIRN_TLS_CA\n"
    "  --join FILE            an invite, as made by `cairn node invite`: with the first start the "
    "node\n"
    "                         gets a certificate by it, kept in CAIRN_HOME/tls\n"
    "  --token-file PATH      bearer token for one on loopback; default: CAIRN_HOME/token\n"
    "  --trainer PATH         default: cairn-trainer beside this program\n"
    "  --nvml PATH            library that tells of GPUs; default: CAIRN_NVML, then the driver's\n"
    "\n"
    "  --leave-on-term        on SIGTERM: jobs that run here save and go on elsewhere, then it "
    "ends;\n"
    "                         default as process 1, in a container, a job of Slurm and in\n"
    "                         Kubernetes, unless `cairn up` supervises it. --stay-on-term: "
    "trainers\n"
    "                         run on\n"
    "  --grace SECONDS        how long that may take; then trainers are killed; default: 25\n"
    "\n"
    "Ends on SIGINT, and on SIGTERM unless `cairn up` supervises it; trainers run on, unless it\n"
    "leaves, and are taken over by the next agent of this name. On SIGUSR1 it leaves as above,\n"
    "and waits: SIGUSR1 again brings the node back.\n";

/* Files that are named and read at the start. */
struct given {
    const char *token_file;
    const char *invite;
};

struct agent_texts {
    char coordinator[LIMIT_PATH];
    char program[LIMIT_PATH];
    char node[LIMIT_NAME];
    char token_file[LIMIT_PATH];
    struct identity_cert own;
    struct join_files joined;
};

static enum status parse_slots(const char *text, uint32_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value < 1 ||
        value > LIMIT_SLOTS)
        return ST_INVALID;
    *out = (uint32_t)value;
    return ST_OK;
}

static enum status parse_grace(const char *text, uint32_t *out_ms)
{
    char *end = NULL;
    errno = 0;
    double seconds = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(seconds >= 0.0 && seconds <= 86400.0))
        return ST_INVALID;
    *out_ms = (uint32_t)(seconds * 1000.0);
    return ST_OK;
}

static const struct option known_options[] = {
    { "coordinator", required_argument, NULL, 'c' },
    { "slots", required_argument, NULL, 's' },
    { "name", required_argument, NULL, 'n' },
    { "host", required_argument, NULL, 'h' },
    { "token-file", required_argument, NULL, 'k' },
    { "join", required_argument, NULL, 'j' },
    { "tls-cert", required_argument, NULL, '1' },
    { "tls-key", required_argument, NULL, '2' },
    { "tls-ca", required_argument, NULL, '3' },
    { "interface", required_argument, NULL, 'i' },
    { "ports", required_argument, NULL, 'p' },
    { "trainer", required_argument, NULL, 't' },
    { "nvml", required_argument, NULL, 'g' },
    { "leave-on-term", no_argument, NULL, 'l' },
    { "stay-on-term", no_argument, NULL, 'y' },
    { "grace", required_argument, NULL, 'r' },
    { "help", no_argument, NULL, 'u' },
    { "version", no_argument, NULL, 'v' },
    { NULL, 0, NULL, 0 },
};

/* Returns where the text of an option is kept; NULL: the option has no text of this kind. */
static const char **text_of(int option, struct agent_options *options, struct given *given)
{
    switch (option) {
    case 'c':
        return &options->coordinator;
    case 'n':
        return &options->node;
    case 'h':
        return &options->host;
    case 'i':
        return &options->interface;
    case 'p':
        return &options->ports;
    case 'k':
        return &given->token_file;
    case 'j':
        return &given->invite;
    case '1':
        return &options->tls.cert;
    case '2':
        return &options->tls.key;
    case '3':
        return &options->tls.ca;
    case 't':
        return &options->program;
    case 'g':
        return &options->nvml;
    default:
        return NULL;
    }
}

/* ST_NOT_FOUND: it isn't an option that sets anything. */
static enum status take_option(int option, struct agent_options *options, struct given *given)
{
    const char **text = text_of(option, options, given);
    struct port_range ports;
    if (text != NULL)
        *text = optarg;
    switch (option) {
    case 'n':
        return ref_name_is_safe(optarg) ? ST_OK : ST_INVALID;
    case 'p':
        return port_range_parse(optarg, &ports);
    case 's':
        return parse_slots(optarg, &options->slots);
    case 'r':
        return parse_grace(optarg, &options->grace_ms);
    case 'l':
    case 'y':
        options->leaves = option == 'l';
        return ST_OK;
    default:
        return text != NULL ? ST_OK : ST_NOT_FOUND;
    }
}

/* The exit code of an option that isn't a setting. */
static int answer_option(int option)
{
    if (option == 'v') {
        (void)printf("cairn-agent %s\n", CAIRN_VERSION);
        return EXIT_DONE;
    }
    if (option == 'u') {
        (void)fputs(usage, stdout);
        return EXIT_DONE;
    }
    return EXIT_USAGE;
}

/* true: go on; else the exit code is in *out_exit. */
static bool parse_options(int argc, char **argv, struct agent_options *options, struct given *given,
                          int *out_exit)
{
    int option = 0;
    while ((option = getopt_long(argc, argv, "", known_options, NULL)) != -1) {
        const enum status st = take_option(option, options, given);
        if (st == ST_NOT_FOUND) {
            *out_exit = answer_option(option);
            return false;
        }
        if (st != ST_OK) {
            (void)fprintf(stderr, "cairn-agent: \"%s\" can't be that option's value\n", optarg);
            *out_exit = EXIT_USAGE;
            return false;
        }
    }
    if (optind < argc) {
        (void)fputs(usage, stderr);
        *out_exit = EXIT_USAGE;
        return false;
    }
    return true;
}

/* false: said why not. */
static bool check_address(const struct agent_options *options)
{
    struct reason why = { "" };
    char found[ADDRESS_TEXT];
    enum status st = ST_OK;
    if (options->host != NULL && options->interface != NULL) {
        (void)fputs("cairn-agent: --host and --interface say the same: give one of them\n", stderr);
        return false;
    }
    if (options->host != NULL)
        st = address_check(options->host, &why);
    if (options->interface != NULL)
        st = address_of_interface(options->interface, found, &why);
    if (st != ST_OK) {
        (void)fprintf(stderr, "cairn-agent: %s: %s\n",
                      options->host != NULL ? "--host" : "--interface",
                      why.text[0] != '\0' ? why.text : status_string(st));
    }
    return st == ST_OK;
}

/* Beside this program. */
static enum status find_trainer(char *out, size_t capacity)
{
    char own[LIMIT_PATH];
    ssize_t size = readlink("/proc/self/exe", own, sizeof(own) - 1);
    if (size < 0)
        return status_from_errno(errno);
    own[size] = '\0';
    char *slash = strrchr(own, '/');
    if (slash == NULL)
        return ST_NOT_FOUND;
    *slash = '\0';
    int written = snprintf(out, capacity, "%s/cairn-trainer", own);
    return written > 0 && (size_t)written < capacity ? ST_OK : ST_FULL;
}

/* The host's name with what a file name can't have replaced. */
static void default_name(char *out, size_t capacity)
{
    char host[LIMIT_NAME] = "";
    if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0' || host[0] == '.')
        (void)snprintf(host, sizeof(host), "node");
    for (char *c = host; *c != '\0'; c++) {
        const char one[2] = { *c, '\0' };
        if (!ref_name_is_safe(one) && *c != '.')
            *c = '-';
    }
    (void)snprintf(out, capacity, "%s", host);
}

/* Sets the path of the coordinator's token, whose content may change until the next call; looks now
 * whether a usable one is there. */
static enum status find_token(const struct paths *paths, const char *file,
                              struct agent_options *options, struct agent_texts *texts)
{
    struct reason why = { "" };
    auto_free char *token = NULL;
    size_t size = 0;
    enum status st = ST_OK;
    if (file == NULL) {
        st = paths_join(paths, texts->token_file, sizeof(texts->token_file), "token");
        file = texts->token_file;
    }
    if (st == ST_OK)
        st = private_read(file, TOKEN_BYTES_MAX, &token, &size, &why);
    if (st != ST_OK) {
        (void)fprintf(stderr, "cairn-agent: token of the coordinator: %s\n",
                      why.text[0] != '\0' ? why.text : status_string(st));
    }
    options->token_file = file;
    return st;
}

/* The certificate names the node. All is checked here, for a coordinator that refuses it can't say
 * why. */
static enum status take_certificate(struct agent_options *options, struct agent_texts *texts)
{
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    struct reason reason = { "" };
    if (identity_key_exposed(options->tls.key, &reason))
        (void)fprintf(stderr, "cairn-agent: %s\n", reason.text);
    enum status st = identity_check(&options->tls, IDENTITY_NODE, now_s, &texts->own, &reason);
    if (st != ST_OK) {
        (void)fprintf(stderr, "cairn-agent: %s\n", reason.text);
        return st;
    }
    if (options->node == NULL)
        options->node = texts->own.who.name;
    if (strcmp(options->node, texts->own.who.name) == 0)
        return ST_OK;
    (void)fprintf(
        stderr,
        "cairn-agent: %s is node %s's, not %s's: drop --name, or make another with 'cairn "
        "cert node %s'\n",
        options->tls.cert, texts->own.who.name, options->node, options->node);
    return ST_CONFIG;
}

/* Chooses the credentials that the agent shows to a coordinator over TCP. */
static enum status take_credentials(const struct paths *paths, struct agent_options *options,
                                    const char *token_file, struct agent_texts *texts)
{
    const bool local = strncmp(options->coordinator, "unix:", 5) == 0;
    if (!local && identity_files_named(&options->tls))
        return take_certificate(options, texts);
    options->tls = (struct identity_files){ NULL };
    if (!local && !rpc_address_is_loopback(options->coordinator)) {
        (void)fprintf(stderr,
                      "cairn-agent: %s: beyond loopback TLS is spoken: --tls-cert, --tls-key and "
                      "--tls-ca, as made by 'cairn cert node NAME'\n",
                      options->coordinator);
        return ST_CONFIG;
    }
    if (local && token_file == NULL)
        return ST_OK;
    return find_token(paths, token_file, options, texts);
}

/* Joins the cluster by an invite, and takes the certificate and the address that the agent dials
 * with. */
static enum status take_invite(const struct paths *paths, const char *invite,
                               struct agent_options *options, struct agent_texts *texts)
{
    struct reason reason = { "" };
    struct join_files *joined = &texts->joined;
    if (options->tls.cert != NULL || options->tls.key != NULL || options->tls.ca != NULL) {
        (void)fputs("cairn-agent: --join gets a certificate: --tls-cert, --tls-key and --tls-ca "
                    "name one that is there\n",
                    stderr);
        return ST_CONFIG;
    }
    enum status st =
        join_cluster(paths, invite, options->node, options->coordinator, joined, &reason);
    if (st != ST_OK) {
        (void)fprintf(stderr, "cairn-agent: node %s can't join: %s\n", options->node, reason.text);
        return st;
    }
    options->tls = (struct identity_files){ joined->cert, joined->key, joined->ca };
    if (options->coordinator == NULL)
        options->coordinator = joined->address;
    return ST_OK;
}

static enum status fill_defaults(struct agent_options *options, const struct given *given,
                                 struct agent_texts *texts)
{
    struct paths paths;
    struct reason done = { "" }, why = { "" };
    enum status st = paths_open(&paths);
    if (st == ST_OK)
        st = private_home_claim(&paths, &done, &why);
    if (done.text[0] != '\0' || why.text[0] != '\0')
        (void)fprintf(stderr, "cairn-agent: %s\n", st == ST_OK ? done.text : why.text);
    if (st == ST_OK && given->invite != NULL) {
        if (options->node == NULL) {
            default_name(texts->node, sizeof(texts->node));
            options->node = texts->node;
        }
        st = take_invite(&paths, given->invite, options, texts);
    }
    if (st == ST_OK && options->coordinator == NULL) {
        st = paths_socket(&paths, texts->coordinator, sizeof(texts->coordinator));
        options->coordinator = texts->coordinator;
    }
    if (st == ST_OK && options->program == NULL) {
        st = find_trainer(texts->program, sizeof(texts->program));
        options->program = texts->program;
    }
    if (st == ST_OK)
        st = take_credentials(&paths, options, given->token_file, texts);
    if (options->nvml == NULL)
        options->nvml = getenv("CAIRN_NVML");
    if (options->node == NULL) {
        default_name(texts->node, sizeof(texts->node));
        options->node = texts->node;
    }
    if (options->slots == 0)
        options->slots = proc_cores() > SLOTS_MIN ? proc_cores() : SLOTS_MIN;
    if (options->slots > LIMIT_SLOTS)
        options->slots = LIMIT_SLOTS;
    return st;
}

int main(int argc, char **argv)
{
    struct agent_options options = { .ports = "",
                                     .leaves = leave_is_usual(),
                                     .grace_ms = LEAVE_GRACE_MS };
    struct watchdog watchdog;
    struct given given = { NULL };
    int code = EXIT_DONE;
    if (!parse_options(argc, argv, &options, &given, &code))
        return code;
    if (!check_address(&options))
        return EXIT_USAGE;
    /* Signals are blocked before gRPC's threads exist, which inherit that; the loop reads them from
     * a descriptor. */
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGUSR1);
    (void)pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    watchdog_open(&watchdog);
    options.watchdog = &watchdog;
    rpc_init();
    struct agent_texts texts = { .token_file = "" };
    enum status st = fill_defaults(&options, &given, &texts);
    if (st != ST_OK) {
        (void)fprintf(stderr, "cairn-agent: %s\n", status_string(st));
        rpc_shutdown();
        return EXIT_USAGE;
    }
    st = agent_run(&options);
    rpc_shutdown();
    if (st == ST_OK)
        return EXIT_DONE;
    return st == ST_EXISTS ? EXIT_REFUSED : EXIT_INTERNAL;
}
