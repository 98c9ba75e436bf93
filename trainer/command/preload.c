#include "trainer/command/preload.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/unconst.h"

/* The interpreter's program, as it is, among the constants of this one. */
__asm__(".pushsection .rodata\n"
        "preload_text:\n"
        ".incbin \"" PRELOAD_PY "\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char preload_text[];

enum { MESSAGE_MAX = 1 << 20, ANSWER_MAX = 512, ARGUMENTS_MAX = 1024 };

struct preload {
    struct process process;
    int channel;
    bool ready; /* it has imported all */
};

/* The interpreter's stdin is the channel, so it is started otherwise than the program: its output
 * is that of the worker. */
static enum status start(struct preload *p, char *const *argv, char *const *env, int other_end,
                         struct reason *out_why)
{
    const struct process_start how = {
        .argv = argv, .env = env, .workdir = "/", .input_fd = other_end, .keeps_output = true
    };
    return process_start(&how, &p->process, out_why);
}

/* Copies the program's environment with one thread for libraries that start some when they are
 * imported. */
static enum status make_environment(char *const *env, char ***out)
{
    size_t count = 0;
    while (env[count] != NULL)
        count++;
    char **list = calloc(count + 2, sizeof(*list));
    if (list == NULL)
        return ST_NO_MEMORY;
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (strncmp(env[i], "OPENBLAS_NUM_THREADS=", 21) != 0)
            list[used++] = env[i];
    }
    list[used] = unconst("OPENBLAS_NUM_THREADS=1");
    *out = list;
    return ST_OK;
}

enum status preload_open(const struct jobspec *job, char *const *env, const struct log *log,
                         struct preload **out)
{
    char *argv[ARGUMENTS_MAX] = { unconst(jobspec_next_text(job->command.run, NULL)), unconst("-c"),
                                  unconst(preload_text) };
    size_t count = 3;
    for (const char *text = jobspec_next_text(job->command.preload, NULL);
         text != NULL && count < ARGUMENTS_MAX - 1;
         text = jobspec_next_text(job->command.preload, text))
        argv[count++] = unconst(text);
    int ends[2];
    struct reason why = { "" };
    auto_free char **own = NULL;
    struct preload *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return ST_NO_MEMORY;
    enum status st = make_environment(env, &own);
    if (st == ST_OK && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        st = status_from_errno(errno);
    if (st != ST_OK) {
        free(p);
        return st;
    }
    st = start(p, argv, own, ends[1], &why);
    (void)close(ends[1]);
    if (st != ST_OK) {
        LOG_WARN(log, "preload: %s; processes are started cold", why.text);
        (void)close(ends[0]);
        free(p);
        return st;
    }
    p->channel = ends[0];
    *out = p;
    return ST_OK;
}

void preload_close(struct preload *preload)
{
    if (preload == NULL)
        return;
    (void)close(preload->channel);
    process_signal(&preload->process, SIGKILL);
    if (preload->process.end_fd >= 0)
        (void)close(preload->process.end_fd);
    if (!preload->process.ended) /* it computes nothing that would hold it in the kernel */
        (void)waitpid(preload->process.pid, NULL, 0);
    free(preload);
}

struct process *preload_process(struct preload *preload)
{
    return preload != NULL ? &preload->process : NULL;
}

/* Waits for one answer. Errors: ST_REFUSED: it can't serve, out_why says why */
static enum status receive(struct preload *p, int timeout_ms, char answer[ANSWER_MAX],
                           struct reason *out_why)
{
    struct pollfd fd = { p->channel, POLLIN, 0 };
    int ready = 0;
    do {
        ready = poll(&fd, 1, timeout_ms);
    } while (ready < 0 && errno == EINTR);
    const ssize_t size = ready == 1 ? recv(p->channel, answer, ANSWER_MAX - 1, 0) : -1;
    answer[size > 0 ? size : 0] = '\0';
    if (size > 0 && answer[0] != '!')
        return ST_OK;
    reason_set(out_why, "%s",
               size > 0     ? answer + 1
               : ready == 0 ? "the interpreter doesn't answer in time"
                            : "the interpreter has ended");
    return ST_REFUSED;
}

static enum status append_text(struct buf *message, const char *text)
{
    const enum status st = buf_append_text(message, text);
    return st == ST_OK ? buf_append(message, "", 1) : st;
}

/* The arguments are those behind the interpreter's name. */
static enum status make_order(const struct process_start *how, struct buf *message)
{
    char number[32];
    size_t count = 0;
    while (how->argv[count] != NULL)
        count++;
    (void)snprintf(number, sizeof(number), "%ld", (long)getpid());
    enum status st = append_text(message, number);
    if (st == ST_OK)
        st = append_text(message, how->workdir);
    (void)snprintf(number, sizeof(number), "%zu", count - 1);
    if (st == ST_OK)
        st = append_text(message, number);
    for (size_t i = 1; i < count && st == ST_OK; i++)
        st = append_text(message, how->argv[i]);
    for (size_t i = 0; how->env[i] != NULL && st == ST_OK; i++)
        st = append_text(message, how->env[i]);
    return st;
}

static enum status send_order(const struct preload *p, const struct buf *message, int said_fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof(control));
    struct iovec part = { message->data, message->size };
    struct msghdr header = { .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes) };
    struct cmsghdr *one = CMSG_FIRSTHDR(&header);
    one->cmsg_level = SOL_SOCKET;
    one->cmsg_type = SCM_RIGHTS;
    one->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(one), &said_fd, sizeof(int));
    return sendmsg(p->channel, &header, MSG_NOSIGNAL) == (ssize_t)message->size
               ? ST_OK
               : status_from_errno(errno);
}

enum status preload_look(struct preload *preload, struct reason *out_why)
{
    char answer[ANSWER_MAX];
    struct pollfd fd = { preload->channel, POLLIN, 0 };
    if (preload->ready)
        return ST_OK;
    if (poll(&fd, 1, 0) <= 0)
        return ST_AGAIN;
    const enum status st = receive(preload, 0, answer, out_why);
    preload->ready = st == ST_OK;
    return st;
}

enum status preload_start(struct preload *preload, const struct process_start *how,
                          struct process *out, struct reason *out_why)
{
    char answer[ANSWER_MAX];
    auto_buf struct buf message;
    enum status st = ST_OK;
    buf_init(&message, MESSAGE_MAX);
    *out = (struct process){ .said_fd = -1, .end_fd = -1 };
    int said[2];
    st = make_order(how, &message);
    if (st == ST_OK)
        st = process_pipe(said);
    if (st == ST_OK) {
        st = send_order(preload, &message, said[1]);
        if (st != ST_OK)
            reason_set(out_why, "the order to fork can't be sent: %s", status_string(st));
        if (st == ST_OK)
            st = receive(preload, PRELOAD_FORK_MS, answer, out_why);
        (void)close(said[1]);
        if (st != ST_OK)
            (void)close(said[0]);
    }
    if (st != ST_OK)
        return ST_REFUSED;
    process_adopt(out, (pid_t)strtol(answer, NULL, 10), said[0]);
    return ST_OK;
}
