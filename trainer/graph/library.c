#include "trainer/graph/library.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/format/hash.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/io.h"
#include "common/limits.h"

#define LIBRARY_BYTES_MAX ((size_t)256 << 20)
#define LOOK_MS           100
#define RUN_MS            60000 /* it only says which nodes there are */
#define EXIT_REFUSED      3     /* of library_run */

extern char **environ;

#if defined(__x86_64__)
#define ELF_MACHINE      EM_X86_64
#define ELF_MACHINE_TEXT "x86-64"
#elif defined(__aarch64__)
#define ELF_MACHINE      EM_AARCH64
#define ELF_MACHINE_TEXT "AArch64"
#endif

/* ---- the file ---- */

/* True if the file is a shared library of this machine; else why says what it is. */
static bool is_library(const char *bytes, size_t size, const char **why)
{
    Elf64_Ehdr header;
    *why = NULL;
    if (size < sizeof(header) || memcmp(bytes, ELFMAG, SELFMAG) != 0) {
        *why = "it is no ELF file: build it with cc -shared -fPIC";
        return false;
    }
    memcpy(&header, bytes, sizeof(header));
#ifdef ELF_MACHINE
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != ELF_MACHINE) {
        *why = "it is for another machine: build it for " ELF_MACHINE_TEXT;
        return false;
    }
#endif
    if (header.e_type != ET_DYN) {
        *why = "it is no shared library: build it with cc -shared -fPIC";
        return false;
    }
    return true;
}

static enum status read_library(const char *path, struct ckpt_hash *out, struct reason *reason)
{
    auto_free char *bytes = NULL;
    size_t size = 0;
    const char *why = NULL;
    const enum status st = io_read_file(io_system(), path, LIBRARY_BYTES_MAX, &bytes, &size);
    if (st != ST_OK) {
        reason_set(reason, "model.library: %s: %s", path, status_string(st));
        return ST_CONFIG;
    }
    if (!is_library(bytes, size, &why)) {
        reason_set(reason, "model.library: %s: %s", path, why);
        return ST_CONFIG;
    }
    *out = ckpt_hash_of(bytes, size);
    return ST_OK;
}

/* ---- the process ---- */

static pid_t start(const struct library_options *options, int out)
{
    const struct library_sample *s = &options->sample;
    char sample[128], path[LIMIT_PATH];
    const char *program = options->program != NULL ? options->program : "/proc/self/exe";
    char *argv[] = { "cairn-trainer", "--model", path, "--sample", sample, NULL };
    posix_spawn_file_actions_t files;
    pid_t pid = -1;
    (void)snprintf(path, sizeof(path), "%s", options->path);
    if (s->input[0] > 0) {
        (void)snprintf(sample, sizeof(sample), "%lld,%lld,%lld,%lld", (long long)s->input[0],
                       (long long)s->input[1], (long long)s->input[2], (long long)s->classes);
    } else {
        (void)snprintf(sample, sizeof(sample), "%lld,%lld", (long long)s->context,
                       (long long)s->vocab);
    }
    if (posix_spawn_file_actions_init(&files) != 0)
        return -1;
    int error = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn(&pid, program, &files, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&files);
    return error == 0 ? pid : -1;
}

/* Reads what the process prints. ST_TIMED_OUT: it takes too long. */
static enum status read_answer(const struct library_options *options, int fd, struct buf *out)
{
    const int64_t start_ns = clock_mono_ns();
    char part[4096];
    enum status st = ST_OK;
    while (st == ST_OK) {
        struct pollfd look = { .fd = fd, .events = POLLIN };
        const int ready = poll(&look, 1, LOOK_MS);
        if (options->progress != NULL)
            options->progress(options->progress_arg);
        if ((clock_mono_ns() - start_ns) / 1000000 > RUN_MS)
            return ST_TIMED_OUT;
        if (ready <= 0)
            continue;
        const ssize_t n = read(fd, part, sizeof(part));
        if (n == 0 || (n < 0 && errno != EINTR))
            return n == 0 ? ST_OK : status_from_errno(errno);
        if (n > 0)
            st = buf_append(out, part, (size_t)n);
    }
    return st;
}

/* Says how the process ended, where that wasn't as it should. */
static enum status judge(const struct library_options *options, enum status read, int status,
                         const struct buf *answer, struct reason *reason)
{
    const char *text = answer->size > 0 ? answer->data : "";
    if (read == ST_TIMED_OUT) {
        reason_set(reason, "model.library: %s: its cairn_model_make took longer than %d s",
                   options->path, RUN_MS / 1000);
    } else if (WIFSIGNALED(status)) {
        reason_set(reason, "model.library: %s: it crashed: signal %d (%s)", options->path,
                   WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else if (WEXITSTATUS(status) == EXIT_REFUSED) {
        reason_set(reason, "model.library: %s: %.300s", options->path, text);
    } else if (WEXITSTATUS(status) != 0) {
        reason_set(reason, "model.library: %s: it ended its process with exit code %d",
                   options->path, WEXITSTATUS(status));
    } else if (read != ST_OK || answer->size == 0) {
        reason_set(reason, "model.library: %s: it ended its process without a graph",
                   options->path);
    } else {
        return ST_OK;
    }
    return ST_CONFIG;
}

static enum status ask(const struct library_options *options, struct buf *answer,
                       struct reason *reason)
{
    int ends[2], status = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        reason_set(reason, "model.library: no pipe: %s", strerror(errno));
        return status_from_errno(errno);
    }
    const pid_t pid = start(options, ends[1]);
    (void)close(ends[1]);
    enum status st = pid > 0 ? read_answer(options, ends[0], answer) : ST_IO;
    (void)close(ends[0]);
    if (pid <= 0) {
        reason_set(reason, "model.library: no process can be started for it");
        return st;
    }
    if (st != ST_OK)
        (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return judge(options, st, status, answer, reason);
}

/* ---- its graph ---- */

/* The model tells all labels apart, and has a row for every token. */
static bool fits_labels(const struct library_options *options, const struct jobspec_graph *graph,
                        const struct graph_sizes *sizes, struct reason *reason)
{
    const bool text = options->sample.input[0] == 0;
    const int64_t labels = text ? options->sample.vocab : options->sample.classes;
    if (sizes->logits < labels) {
        reason_set(reason, "model.library: %s: its last node makes %lld logits, but %s is %lld",
                   options->path, (long long)sizes->logits, text ? "model.vocab" : "model.classes",
                   (long long)labels);
        return false;
    }
    for (int64_t n = 0; n < graph->count; n++) {
        const struct jobspec_node *node = &graph->nodes[n];
        if (node->op == GRAPH_OP_EMBEDDING && node->rows < labels) {
            reason_set(reason, "model.library: %s: %s: %lld rows are too few for tokens below %lld",
                       options->path, node->name, (long long)node->rows, (long long)labels);
            return false;
        }
    }
    return true;
}

static enum status read_graph(const struct library_options *options, const struct buf *answer,
                              struct jobspec_graph *out, struct reason *reason)
{
    const bool text = options->sample.input[0] == 0;
    struct reason why = { "" };
    auto_free struct graph_sizes *sizes = calloc(1, sizeof(*sizes));
    if (sizes == NULL) {
        reason_set(reason, "model.library: %s", status_string(ST_NO_MEMORY));
        return ST_NO_MEMORY;
    }
    sizes->input = (struct graph_shape){ .ndim = text ? 1 : 3, .is_tokens = text };
    memcpy(sizes->input.dims, text ? &options->sample.context : options->sample.input,
           (size_t)sizes->input.ndim * sizeof(int64_t));
    const enum status st =
        graph_read_text(answer->data, answer->size, options->half, out, sizes, &why);
    if (st != ST_OK) {
        reason_set(reason, "model.library: %s: %.400s", options->path,
                   why.text[0] != '\0' ? why.text : status_string(st));
        return st;
    }
    return fits_labels(options, out, sizes, reason) ? ST_OK : ST_CONFIG;
}

/* As it is printed, which doesn't depend on how a version lays it out. */
static enum status hash_graph(const struct jobspec_graph *graph, struct ckpt_hash *out)
{
    auto_buf struct buf text;
    buf_init(&text, (size_t)LIMIT_JOB_FILE_BYTES);
    enum status st = ST_OK;
    for (int64_t n = 0; st == ST_OK && n < graph->count; n++)
        st = graph_print_node(graph, n, &text);
    if (st == ST_OK)
        *out = ckpt_hash_of(text.data, text.size);
    return st;
}

enum status library_graph(const struct library_options *options, struct jobspec_graph *out,
                          struct library_made *made, struct reason *reason)
{
    auto_buf struct buf answer;
    buf_init(&answer, (size_t)LIMIT_JOB_FILE_BYTES);
    enum status st = read_library(options->path, &made->library, reason);
    if (st == ST_OK)
        st = ask(options, &answer, reason);
    if (st == ST_OK)
        st = read_graph(options, &answer, out, reason);
    if (st != ST_OK)
        return st;
    st = hash_graph(out, &made->graph);
    if (st != ST_OK)
        reason_set(reason, "model.library: %s", status_string(st));
    return st;
}
