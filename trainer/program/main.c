/*
 * cairn-trainer: one rank of a job, started by the agent; or a whole job in one process (--local).
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/sockets.h"
#include "common/host/environment.h"
#include "common/status.h"
#include "trainer/graph/library.h"
#include "trainer/program/check.h"
#include "trainer/program/rank.h"
#include "trainer/standalone/local.h"
#include "trainer/standalone/replay.h"

#define SETS_MAX    256
#define TOKEN_BYTES 256

static const char usage[] =
    "usage: cairn-trainer --job JOB --generation G --rank R --coordinator ADDR --words PATH\n"
    "                     [--flight PATH] [--token-fd N] [--copies DIR] [--sums DIR]\n"
    "                     [--peaks DIR] [--ports A-B] [--tls-ca FILE]\n"
    "       cairn-trainer --local JOBFILE [--set KEY=VALUE]... [--steps N] [--digest]\n"
    "       cairn-trainer --plan JOBFILE [--set KEY=VALUE]...\n"
    "       cairn-trainer --inputs JOBFILE [--set KEY=VALUE]...\n"
    "       cairn-trainer --check cpu|cuda [--ranks N] [--json]\n"
    "       cairn-trainer --import FILE --job-file JOBFILE --to DIR [--set KEY=VALUE]... [--json]\n"
    "       cairn-trainer --model LIBRARY --sample CHANNELS,HEIGHT,WIDTH,CLASSES|CONTEXT,VOCAB\n"
    "       cairn-trainer --replay DIR [--from DIR] [--json] [--quiet]\n"
    "\n"
    "The first form is started by cairn-agent: one rank of a job. The token is read from the\n"
    "descriptor N. --local trains the whole job in this process, without a coordinator, saves\n"
    "nothing and prints a line per step and the digest of the final state; --digest prints\n"
    "the digest alone. --plan prints the model as it would run, and its memory.\n"
    "--inputs looks whether the job's data and weights fit it; if not it says why, and ends\n"
    "with exit code 3.\n"
    "--check measures the devices of this machine and the paths between them.\n"
    "--model prints the graph that a library makes for such samples (docs/model.md).\n"
    "--import makes a checkpoint's folder of a safetensors file's weights. --replay trains\n"
    "from one checkpoint to another once more, and compares the digests.\n";

struct trainer_arguments {
    struct rank_options rank;
    struct local_options local;
    struct check_options check;
    struct replay_options replay;
    const char *sets[SETS_MAX];
    char token[TOKEN_BYTES];
    const char *library, *sample; /* --model */
    int token_fd;                 /* -1: none */
};

static enum status parse_number(const char *text, uint64_t max, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value > max)
        return ST_INVALID;
    *out = value;
    return ST_OK;
}

static enum status take_set(struct trainer_arguments *a, const char *text)
{
    if (a->local.set_count == SETS_MAX)
        return ST_FULL;
    a->sets[a->local.set_count++] = text;
    return ST_OK;
}

/* Takes an option of a rank under a coordinator; false: it is none of those. */
static bool take_path(struct trainer_arguments *a, int option, const char *text)
{
    switch (option) {
    case 'j':
        a->rank.job = text;
        return true;
    case 'c':
        a->rank.coordinator = text;
        return true;
    case 'w':
        a->rank.words_path = text;
        return true;
    case 'f':
        a->rank.flight_path = text;
        return true;
    case 'x':
        a->rank.copies = text;
        return true;
    case 'a':
        a->rank.tls_ca = text[0] != '\0' ? text : NULL; /* "": none */
        return true;
    case 'e':
        a->replay.to = text;
        return true;
    case 'b':
        a->replay.from = text;
        return true;
    case 'y':
        a->rank.sums = text[0] != '\0' ? text : NULL; /* "": none */
        return true;
    case 'M':
        a->library = text;
        return true;
    case 'S':
        a->sample = text;
        return true;
    case 'P':
        a->rank.peaks = text[0] != '\0' ? text : NULL;
        return true;
    default:
        return false;
    }
}

static enum status take_option(struct trainer_arguments *a, int option, const char *text)
{
    uint64_t n = 0;
    struct port_range ports;
    enum status st = ST_OK;
    if (take_path(a, option, text))
        return ST_OK;
    switch (option) {
    case 'g':
        st = parse_number(text, UINT32_MAX, &n);
        a->rank.generation = (uint32_t)n;
        break;
    case 'r':
        st = parse_number(text, UINT32_MAX, &n);
        a->rank.number = (uint32_t)n;
        break;
    case 't':
        st = parse_number(text, INT32_MAX, &n);
        a->token_fd = (int)n;
        break;
    case 'p':
        a->local.preview_only = true;
        a->local.job_path = text;
        break;
    case 'I':
        a->local.inputs_only = true;
        a->local.job_path = text;
        break;
    case 'l':
        a->local.job_path = text;
        break;
    case 's':
        st = take_set(a, text);
        break;
    case 'n':
        st = parse_number(text, UINT64_MAX / 2, &a->local.stop_at);
        break;
    case 'z':
        st = port_range_parse(text, &ports);
        sockets_use_ports(ports);
        break;
    case 'k':
        a->check.device = text;
        break;
    case 'm':
        st = parse_number(text, INT32_MAX, &n);
        a->check.ranks = (int)n;
        break;
    case 'o':
        a->check.json = a->local.json = a->replay.json = true;
        break;
    case 'i':
        a->local.import_file = text;
        break;
    case 'u':
        a->local.import_dir = text;
        break;
    case 'q':
        a->local.quiet = a->replay.quiet = true;
        break;
    case 'd':
        a->local.digest_only = true;
        break;
    default:
        st = ST_INVALID;
    }
    return st;
}

static enum status parse_arguments(int argc, char **argv, struct trainer_arguments *a)
{
    static const struct option options[] = {
        { "job", required_argument, NULL, 'j' },
        { "generation", required_argument, NULL, 'g' },
        { "rank", required_argument, NULL, 'r' },
        { "coordinator", required_argument, NULL, 'c' },
        { "words", required_argument, NULL, 'w' },
        { "flight", required_argument, NULL, 'f' },
        { "token-fd", required_argument, NULL, 't' },
        { "copies", required_argument, NULL, 'x' },
        { "sums", required_argument, NULL, 'y' },
        { "peaks", required_argument, NULL, 'P' },
        { "tls-ca", required_argument, NULL, 'a' },
        { "ports", required_argument, NULL, 'z' },
        { "local", required_argument, NULL, 'l' },
        { "plan", required_argument, NULL, 'p' },
        { "inputs", required_argument, NULL, 'I' },
        { "set", required_argument, NULL, 's' },
        { "steps", required_argument, NULL, 'n' },
        { "digest", no_argument, NULL, 'd' },
        { "check", required_argument, NULL, 'k' },
        { "ranks", required_argument, NULL, 'm' },
        { "json", no_argument, NULL, 'o' },
        { "import", required_argument, NULL, 'i' },
        { "job-file", required_argument, NULL, 'l' },
        { "to", required_argument, NULL, 'u' },
        { "model", required_argument, NULL, 'M' },
        { "sample", required_argument, NULL, 'S' },
        { "replay", required_argument, NULL, 'e' },
        { "from", required_argument, NULL, 'b' },
        { "quiet", no_argument, NULL, 'q' },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'v' },
        { NULL, 0, NULL, 0 },
    };
    int option = 0;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'h') {
            (void)printf("%s", usage);
            exit(0);
        }
        if (option == 'v') {
            (void)printf("cairn-trainer %s\n", CAIRN_VERSION);
            exit(0);
        }
        enum status st = take_option(a, option, optarg);
        if (st != ST_OK)
            return st;
    }
    a->local.sets = a->sets;
    if ((a->local.import_file != NULL) != (a->local.import_dir != NULL) ||
        (a->library != NULL) != (a->sample != NULL))
        return ST_INVALID;
    return optind == argc ? ST_OK : ST_INVALID;
}

/* The token comes by a pipe or file whose end marks its end; a newline after it is dropped. */
static enum status read_token(struct trainer_arguments *a)
{
    size_t size = 0;
    while (size < sizeof(a->token) - 1) {
        ssize_t n = read(a->token_fd, a->token + size, sizeof(a->token) - 1 - size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return status_from_errno(errno);
        if (n == 0)
            break;
        size += (size_t)n;
    }
    (void)close(a->token_fd);
    if (size == sizeof(a->token) - 1)
        return ST_FULL;
    while (size > 0 && a->token[size - 1] == '\n')
        size--;
    a->token[size] = '\0';
    a->rank.token = a->token;
    return ST_OK;
}

int main(int argc, char **argv)
{
    static struct trainer_arguments a = { .token_fd = -1 };
    if (parse_arguments(argc, argv, &a) != ST_OK) {
        (void)fprintf(stderr, "%s", usage);
        return 2;
    }
    struct reason why;
    if (a.rank.job == NULL && environment_leave_out(argv, &why) != ST_OK) {
        (void)fprintf(stderr, "cairn-trainer: %s\n", why.text);
        return 2;
    }
    if (a.library != NULL)
        return library_run(a.library, a.sample);
    if (a.replay.to != NULL)
        return replay_run(&a.replay);
    if (a.local.job_path != NULL)
        return local_run(&a.local);
    if (a.check.device != NULL)
        return check_run(&a.check);
    if (a.rank.job == NULL || a.rank.coordinator == NULL || a.rank.words_path == NULL) {
        (void)fprintf(stderr, "%s", usage);
        return 2;
    }
    if (a.token_fd >= 0) {
        enum status st = read_token(&a);
        if (st != ST_OK) {
            (void)fprintf(stderr, "cairn-trainer: token: %s\n", status_string(st));
            return 1;
        }
    }
    return rank_run(&a.rank);
}
