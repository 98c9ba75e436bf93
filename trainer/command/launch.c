#include "trainer/command/launch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/paths.h"
#include "jobspec/budget.h"
#include "library/wire/wire.h"

extern char **environ;

/* ---- the round ---- */

/* What a worker brings to the round "command". Fixed size: there may be a thousand. */
struct part {
    char node[96], gpu[88], host[LAUNCH_HOST - 8];
    uint16_t port;
    struct launch_listening listening;
};
_Static_assert(sizeof(struct part) <= RENDEZVOUS_COMMON_MAX, "a part fits into a round");

/* Finds a port at host that is free now. Between this and the program's own bind it may be taken:
 * then the program fails, and the next generation has another port. */
static enum status find_port(const char *host, uint16_t *out)
{
    const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_PASSIVE,
                                    .ai_socktype = SOCK_STREAM };
    struct addrinfo *found = NULL;
    if (getaddrinfo(host, "0", &hints, &found) != 0)
        return ST_INVALID;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    memset(&address, 0, sizeof(address));
    socklen_t size = sizeof(address);
    const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    enum status st = ST_OK;
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 ||
        getsockname(fd, &address.any, &size) != 0)
        st = status_from_errno(errno);
    if (fd >= 0)
        (void)close(fd);
    freeaddrinfo(found);
    const bool is_v6 = address.any.sa_family == AF_INET6;
    *out = st == ST_OK ? ntohs(is_v6 ? address.v6.sin6_port : address.v4.sin_port) : 0;
    return st;
}

static bool copy_name(char *out, size_t capacity, const char *text)
{
    const size_t size = strlen(text);
    if (size >= capacity)
        return false;
    memcpy(out, text, size + 1);
    return true;
}

static enum status make_part(const struct session_assignment *assignment, const char *gpu,
                             struct part *out, struct reason *out_why)
{
    const char *node =
        assignment->nodes != NULL ? assignment->nodes[assignment->rank] : assignment->host;
    *out = (struct part){ .port = 0 };
    if (!copy_name(out->node, sizeof(out->node), node) ||
        !copy_name(out->gpu, sizeof(out->gpu), gpu) ||
        !copy_name(out->host, sizeof(out->host), assignment->host)) {
        reason_set(out_why, "the name of node %.100s, or of its GPU, is too long", node);
        return ST_TOO_LONG;
    }
    if (assignment->rank != 0)
        return ST_OK;
    const enum status st = find_port(assignment->host, &out->port);
    if (st != ST_OK) {
        reason_set(out_why, "no port for MASTER_PORT at %s: %s", assignment->host,
                   status_string(st));
    }
    return st;
}

static const struct part *part_of(const struct rendezvous_got *got)
{
    return (const struct part *)(const void *)got->common;
}

static bool is_same_node(const struct rendezvous_got *a, const struct rendezvous_got *b)
{
    return strcmp(part_of(a)->node, part_of(b)->node) == 0;
}

static void add_gpu(char *list, size_t capacity, const char *gpu)
{
    const size_t used = strlen(list);
    if (gpu[0] != '\0' && strstr(list, gpu) == NULL)
        (void)snprintf(list + used, capacity - used, "%s%s", used > 0 ? "," : "", gpu);
}

/* Derives a worker's place from what all brought. */
static void find_place(const struct rendezvous_got *got, uint32_t workers, uint32_t rank,
                       uint32_t processes, struct launch_place *out)
{
    *out = (struct launch_place){ .size = workers * processes, .rank = rank * processes };
    for (uint32_t i = 0; i < workers; i++) {
        bool first = true; /* of its node */
        for (uint32_t j = 0; j < i && first; j++)
            first = !is_same_node(&got[i], &got[j]);
        out->node_count += first;
        if (!is_same_node(&got[i], &got[rank]))
            continue;
        if (first)
            out->node_rank = out->node_count - 1;
        out->local_size += processes;
        out->local_rank += i < rank ? processes : 0;
        add_gpu(out->gpus, sizeof(out->gpus), part_of(&got[i])->gpu);
    }
    out->master_port = part_of(&got[0])->port;
    (void)snprintf(out->master_host, sizeof(out->master_host), "%s", part_of(&got[0])->host);
}

enum status launch_meet(const struct rendezvous *rendezvous,
                        const struct session_assignment *assignment, uint32_t processes,
                        const char *gpu, int64_t timeout_ms, struct launch_listening *listening,
                        struct launch_place *out, struct reason *out_why)
{
    struct part mine;
    enum status st = make_part(assignment, gpu, &mine, out_why);
    if (st != ST_OK)
        return st;
    mine.listening = *listening;
    const struct rendezvous_part part = { .common = &mine, .common_size = sizeof(mine) };
    auto_free struct rendezvous_got *got = calloc(assignment->size, sizeof(*got));
    if (got == NULL)
        return ST_NO_MEMORY;
    st = rendezvous->join(rendezvous->self, "command", &part, (int)assignment->size, timeout_ms,
                          got);
    for (uint32_t i = 0; st == ST_OK && i < assignment->size; i++) {
        struct part *other = (struct part *)(void *)got[i].common;
        if (got[i].common_size != sizeof(*other))
            st = ST_INVALID;
        other->node[sizeof(other->node) - 1] = other->gpu[sizeof(other->gpu) - 1] = '\0';
        other->host[sizeof(other->host) - 1] = '\0';
        if (other->listening.generation > listening->generation)
            *listening = other->listening;
    }
    if (st == ST_OK)
        find_place(got, assignment->size, assignment->rank, processes, out);
    return st;
}

/* ---- the environment ---- */

enum { LIST_MAX = 4096 };

/* A list of texts that is being made; after a failure nothing is added. */
struct list {
    char **texts;
    size_t count;
    enum status st;
};

static void add_text(struct list *list, char *text)
{
    if (text == NULL || list->st != ST_OK || list->count == LIST_MAX) {
        list->st = text == NULL ? ST_NO_MEMORY : list->st == ST_OK ? ST_FULL : list->st;
        free(text);
        return;
    }
    list->texts[list->count++] = text;
}

static bool has_same_name(const char *a, const char *b)
{
    const size_t size = strcspn(a, "=") + 1; /* with the '=' */
    return strncmp(a, b, size) == 0;
}

/* Sets a variable, in the place of one that is there. */
static void set_text(struct list *list, char *text)
{
    for (size_t i = 0; text != NULL && i < list->count; i++) {
        if (has_same_name(list->texts[i], text)) {
            free(list->texts[i]);
            list->texts[i] = text;
            return;
        }
    }
    add_text(list, text);
}

static void set(struct list *list, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void set(struct list *list, const char *format, ...)
{
    va_list args;
    char *text = NULL;
    va_start(args, format);
    const int size = vasprintf(&text, format, args);
    va_end(args);
    set_text(list, size < 0 ? NULL : text);
}

/* Sets a variable unless this process's own environment or the job has it. */
static void set_default(struct list *list, const char *text)
{
    for (size_t i = 0; i < list->count; i++) {
        if (has_same_name(list->texts[i], text))
            return;
    }
    set_text(list, strdup(text));
}

/* Says where the process stands. */
static void set_place(struct list *list, const struct jobspec *job,
                      const struct session_assignment *assignment, const struct launch_place *place,
                      uint32_t local)
{
    set(list, "RANK=%" PRIu32, place->rank + local);
    set(list, "WORLD_SIZE=%" PRIu32, place->size);
    set(list, "LOCAL_RANK=%" PRIu32, place->local_rank + local);
    set(list, "LOCAL_WORLD_SIZE=%" PRIu32, place->local_size);
    set(list, "GROUP_RANK=%" PRIu32, place->node_rank);
    set(list, "GROUP_WORLD_SIZE=%" PRIu32, place->node_count);
    set(list, "ROLE_NAME=default");
    set(list, "ROLE_RANK=%" PRIu32, place->rank + local);
    set(list, "ROLE_WORLD_SIZE=%" PRIu32, place->size);
    set(list, "MASTER_ADDR=%s", place->master_host);
    set(list, "MASTER_PORT=%" PRIu32, place->master_port);
    set(list, "TORCHELASTIC_RESTART_COUNT=%" PRIu32, assignment->generation - 1);
    set(list, "TORCHELASTIC_MAX_RESTARTS=%" PRId64, jobspec_budget(job));
    set(list, "TORCHELASTIC_RUN_ID=%s", assignment->job);
    set(list, "TORCHELASTIC_USE_AGENT_STORE=False");
    set(list, "CAIRN_JOB=%s", assignment->job);
    set(list, "CAIRN_GENERATION=%" PRIu32, assignment->generation);
    if (place->relay[0] != '\0')
        set(list, WIRE_SOCKET_ENV "=%s.%" PRIu32, place->relay, local);
    if (job->command.folder[0] != '\0')
        set(list, "CAIRN_FOLDER=%s", job->command.folder);
    if (job->workers.device != JOBSPEC_DEVICE_CPU)
        set(list, "CUDA_VISIBLE_DEVICES=%s", place->gpus);
}

static enum status finish_list(struct list *list, char ***out)
{
    if (list->st == ST_OK) {
        *out = list->texts; /* the rest of it is NULL */
    } else {
        launch_free(list->texts);
    }
    return list->st;
}

enum status launch_environment(const struct jobspec *job,
                               const struct session_assignment *assignment,
                               const struct launch_place *place, uint32_t local, const char *worker,
                               char ***out)
{
    struct list list = { .texts = calloc(LIST_MAX + 1, sizeof(char *)) };
    if (list.texts == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; environ[i] != NULL; i++) {
        if (!has_same_name(WIRE_SOCKET_ENV "=", environ[i])) /* it would be another job's */
            add_text(&list, strdup(environ[i]));
    }
    for (const char *text = jobspec_next_text(job->command.env, NULL); text != NULL;
         text = jobspec_next_text(job->command.env, text))
        set_text(&list, strdup(text));
    set_default(&list, "PYTHONUNBUFFERED=1");   /* or lines come when a pipe's buffer is full */
    set_default(&list, "PYTHONFAULTHANDLER=1"); /* SIGABRT shows where it hangs */
    set_place(&list, job, assignment, place, local);
    set(&list, PATHS_WORKER_ENV "=%s", worker);
    return finish_list(&list, out);
}

enum status launch_arguments(const struct jobspec *job, char ***out)
{
    struct list list = { .texts = calloc(LIST_MAX + 1, sizeof(char *)) };
    if (list.texts == NULL)
        return ST_NO_MEMORY;
    if (job->command.shell) {
        add_text(&list, strdup("/bin/sh"));
        add_text(&list, strdup("-c"));
    }
    for (const char *text = jobspec_next_text(job->command.run, NULL); text != NULL;
         text = jobspec_next_text(job->command.run, text))
        add_text(&list, strdup(text));
    return finish_list(&list, out);
}

void launch_free(char **list)
{
    for (size_t i = 0; list != NULL && list[i] != NULL; i++)
        free(list[i]);
    free(list);
}
