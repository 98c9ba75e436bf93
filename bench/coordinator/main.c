/* Program `fleet`: the load of bench/coordinator. What it plays: fleet.h. */
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/coordinator/fleet.h"
#include "common/paths.h"

static const char usage[] =
    "usage: fleet play [--first N] [--nodes N] [--slots N] [--step-ms N] [--beat-ms N]\n"
    "                  [--pieces N] [--watch PID]     plays until standard input ends\n"
    "       fleet submit --file FILE [--count N]      submits it so many times\n"
    "       fleet probe [--rate N] [--seconds N]      small calls, and how long they took;\n"
    "                                                 0 seconds: one, when it was answered\n"
    "Of all: --target ADDRESS (the socket of CAIRN_HOME) --token TEXT\n"
    "Of play: --tls DIR: an authority's folder; agents make their certificates there\n";

/* ---- events ---- */

/* "RUN WAITED SLICES", nanoseconds of the process's first thread. */
static long long first_thread_ns(int watched)
{
    static int fd = -1;
    char path[64], text[96] = "";
    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", watched, watched);
    if (fd < 0)
        fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || pread(fd, text, sizeof(text) - 1, 0) <= 0)
        return 0;
    return strtoll(text, NULL, 10);
}

static long long process_ns(int watched)
{
    clockid_t id;
    struct timespec spent;
    if (clock_getcpuclockid(watched, &id) != 0 || clock_gettime(id, &spent) != 0)
        return 0;
    return (long long)spent.tv_sec * 1000000000 + spent.tv_nsec;
}

void fleet_trace(struct fleet *fleet, const char *event, const char *job, uint32_t rank,
                 uint64_t step)
{
    const int watched = fleet->options.watched;
    (void)printf("{\"t\":%lld,\"cpu\":%lld,\"core\":%lld,\"ev\":\"%s\",\"job\":\"%s\",\"rank\":%u,"
                 "\"step\":%llu}\n",
                 (long long)clock_mono_ns(), watched ? process_ns(watched) : 0,
                 watched ? first_thread_ns(watched) : 0, event, job, rank,
                 (unsigned long long)step);
}

/* ---- arguments ---- */

struct arguments {
    struct fleet_options fleet;
    char target[LIMIT_PATH];
    const char *file;
    uint32_t count, rate, seconds;
};

/* The option's own place for a number, or NULL. */
static uint32_t *number_of(struct arguments *a, int option)
{
    switch (option) {
    case 'f':
        return &a->fleet.first;
    case 'n':
        return &a->fleet.nodes;
    case 's':
        return &a->fleet.slots;
    case 'm':
        return &a->fleet.step_ms;
    case 'b':
        return &a->fleet.beat_ms;
    case 'p':
        return &a->fleet.pieces;
    case 'c':
        return &a->count;
    case 'r':
        return &a->rate;
    case 'S':
        return &a->seconds;
    default:
        return NULL;
    }
}

static bool take_arguments(struct arguments *a, int argc, char **argv)
{
    static const struct option options[] = {
        { "first", required_argument, NULL, 'f' },
        { "nodes", required_argument, NULL, 'n' },
        { "slots", required_argument, NULL, 's' },
        { "step-ms", required_argument, NULL, 'm' },
        { "beat-ms", required_argument, NULL, 'b' },
        { "pieces", required_argument, NULL, 'p' },
        { "count", required_argument, NULL, 'c' },
        { "rate", required_argument, NULL, 'r' },
        { "seconds", required_argument, NULL, 'S' },
        { "watch", required_argument, NULL, 'w' },
        { "file", required_argument, NULL, 'F' },
        { "target", required_argument, NULL, 't' },
        { "token", required_argument, NULL, 'T' },
        { "tls", required_argument, NULL, 'A' },
        { NULL, 0, NULL, 0 },
    };
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        uint32_t *number = number_of(a, option);
        if (number != NULL) {
            *number = (uint32_t)strtoul(optarg, NULL, 10);
        } else if (option == 'w') {
            a->fleet.watched = (int)strtol(optarg, NULL, 10);
        } else if (option == 'F') {
            a->file = optarg;
        } else if (option == 't') {
            (void)snprintf(a->target, sizeof(a->target), "%s", optarg);
        } else if (option == 'T') {
            a->fleet.token = optarg;
        } else if (option == 'A') {
            a->fleet.tls = optarg;
        } else {
            return false;
        }
    }
    return a->fleet.slots > 0 && a->fleet.slots <= LIMIT_SLOTS && a->fleet.step_ms > 0 &&
           a->fleet.beat_ms > 0 && a->rate > 0;
}

int main(int argc, char **argv)
{
    struct arguments a = { .fleet = { .nodes = 1,
                                      .slots = 8,
                                      .step_ms = 1000,
                                      .beat_ms = 500,
                                      .pieces = 64,
                                      .openers = 8 },
                           .count = 1,
                           .rate = 20,
                           .seconds = 10 };
    struct paths paths;
    const char *command = argc > 1 ? argv[1] : "";
    if (argc < 2 || !take_arguments(&a, argc - 1, argv + 1)) {
        (void)fputs(usage, stderr);
        return 2;
    }
    if (a.target[0] == '\0' && (paths_open(&paths) != ST_OK ||
                                paths_socket(&paths, a.target, sizeof(a.target)) != ST_OK)) {
        (void)fputs("fleet: set CAIRN_HOME, or give a --target\n", stderr);
        return 2;
    }
    a.fleet.target = a.target;
    (void)signal(SIGPIPE, SIG_IGN);
    rpc_init();
    if (strcmp(command, "play") == 0)
        return fleet_play(&a.fleet);
    if (strcmp(command, "submit") == 0 && a.file != NULL)
        return control_submit(&a.fleet, a.file, a.count);
    if (strcmp(command, "probe") == 0)
        return control_probe(&a.fleet, a.rate, a.seconds);
    (void)fputs(usage, stderr);
    return 2;
}
