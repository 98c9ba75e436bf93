#include "trainer/command/command.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"
#include "common/io.h"
#include "trainer/command/failure.h"
#include "trainer/command/launch.h"
#include "trainer/command/output.h"
#include "trainer/command/preload.h"
#include "trainer/command/process.h"
#include "trainer/command/relayed.h"
#include "trainer/command/spy.h"

enum {
    MEET_MS = 60000,        /* the other workers start, too */
    LOOK_MS = 100,          /* between two looks at what gives no descriptor */
    KILL_MS = 10000,        /* for what was killed to be gone */
    STACK_MS = 1000,        /* for Python to write its stack */
    FAILED_OUTPUT_MS = 100, /* for the last words of a process, where others hold its output open */
};

/* A process of the program and what it writes. */
struct member {
    struct output output;
    char label[24];
    int64_t moved_ms; /* it got on, as far as can be seen */
    uint64_t seen;    /* matches or lines then */
};

struct command_worker {
    int wake_fd;
    _Atomic int stop;        /* enum command_stop */
    bool adopts;             /* orphans come to this process */
    struct preload *preload; /* of all runs; NULL: processes are started cold */
    bool cold;               /* the interpreter was given up */

    /* Members of one run. */
    const struct command_options *options;
    uint32_t count; /* processes */
    struct process processes[COMMAND_PROCESSES_MAX];
    struct member *members; /* [count] */
    struct pattern *progress;
    struct failure_patterns patterns;
    struct launch_place place;
    struct relay *relay; /* NULL: the job saves nothing */
    struct relay_news news;
    uint64_t step;
};

/* ---- the object ---- */

enum status command_new(struct command_worker **out)
{
    struct command_worker *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return ST_NO_MEMORY;
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake_fd < 0) {
        const enum status st = status_from_errno(errno);
        free(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

void command_free(struct command_worker *command)
{
    if (command == NULL)
        return;
    preload_close(command->preload);
    (void)close(command->wake_fd);
    free(command);
}

void command_stop(struct command_worker *command, enum command_stop how)
{
    const uint64_t one = 1;
    int was = atomic_load(&command->stop);
    while (was < (int)how && !atomic_compare_exchange_weak(&command->stop, &was, (int)how)) {
    }
    (void)!write(command->wake_fd, &one, sizeof(one));
}

void command_go_on(struct command_worker *command)
{
    int parks = COMMAND_PARKS;
    (void)atomic_compare_exchange_strong(&command->stop, &parks, COMMAND_GOES_ON);
}

static enum command_stop stop_of(struct command_worker *c)
{
    return (enum command_stop)atomic_load(&c->stop);
}

static int64_t now_ms(void)
{
    return clock_mono_ms(clock_system());
}

/* ---- one turn ---- */

/* Notes what the processes have done: the highest step, and who got on. */
static void note_progress(struct command_worker *c, int64_t now)
{
    const bool by_step = c->progress != NULL;
    if (c->relay != NULL)
        relay_look(c->relay, &c->news);
    for (uint32_t i = 0; i < c->count; i++) {
        struct member *member = &c->members[i];
        uint64_t seen = by_step ? member->output.matches : member->output.lines;
        if (c->relay != NULL) /* its output shows nothing any more once it trains */
            seen = c->news.counter + (c->news.ready ? 0 : member->output.lines);
        if (seen != member->seen) {
            member->seen = seen;
            member->moved_ms = now;
        }
        if (member->output.step > c->step)
            c->step = member->output.step;
    }
    if (c->relay != NULL)
        c->step = c->news.step;
    session_mark(c->options->session, c->step,
                 c->relay == NULL || c->news.ready ? "running" : "starting");
    session_tick(c->options->session);
}

static void close_said(struct command_worker *c, uint32_t i)
{
    output_flush(&c->members[i].output);
    (void)close(c->processes[i].said_fd);
    c->processes[i].said_fd = -1;
}

/* Waits until something happens, timeout_ms at most; then reads what was written, and reaps. */
static void turn(struct command_worker *c, int timeout_ms)
{
    struct pollfd fds[2 * COMMAND_PROCESSES_MAX + 1] = { { c->wake_fd, POLLIN, 0 } };
    uint64_t wakes = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        fds[i + 1] = (struct pollfd){ c->processes[i].said_fd, POLLIN, 0 };
        fds[c->count + i + 1] = (struct pollfd){ c->processes[i].end_fd, POLLIN, 0 };
    }
    (void)poll(fds, 2 * c->count + 1, timeout_ms);
    (void)!read(c->wake_fd, &wakes, sizeof(wakes));
    const int64_t now = now_ms();
    for (uint32_t i = 0; i < c->count; i++) {
        if (fds[i + 1].revents != 0 &&
            !output_read(&c->members[i].output, c->processes[i].said_fd, now))
            close_said(c, i);
        (void)process_check(&c->processes[i]);
    }
    note_progress(c, now);
}

static uint32_t count_living(const struct command_worker *c)
{
    uint32_t living = 0;
    for (uint32_t i = 0; i < c->count; i++)
        living += c->processes[i].pid > 0 && !c->processes[i].ended;
    return living;
}

/* ---- hangs ---- */

/* True if the process must show that it gets on: rank 0 from the start, others from when they
 * first did. */
static bool is_watched(const struct command_worker *c, uint32_t i)
{
    return !c->processes[i].ended && (c->members[i].seen > 0 || c->place.rank + i == 0);
}

/* Returns a process that is stopped, or for too long has shown nothing; count: none. */
static uint32_t find_hung(const struct command_worker *c, int64_t now)
{
    const int64_t hang_ms = c->options->job->command.hang_ms;
    uint32_t found = c->count;
    for (uint32_t i = 0; i < c->count && hang_ms > 0; i++) {
        if (now - c->members[i].moved_ms < hang_ms || c->processes[i].ended)
            continue;
        if (process_is_stopped(&c->processes[i]))
            return i;
        if (is_watched(c, i) && found == c->count)
            found = i;
    }
    return found;
}

/* Says where a process is: its line in Python, as it wrote it at SIGABRT, or that it is stopped. */
static void describe(const struct command_worker *c, uint32_t i, bool is_stopped,
                     const char *beginning, struct command_failure *out)
{
    const struct output_stack stack = output_python_stack(&c->members[i].output);
    *out = (struct command_failure){ .kind = CAIRN__V1__FAULT_KIND__HANG };
    reason_set(&out->why, "the program of rank %u %s%s%.200s%s", c->place.rank + i, beginning,
               is_stopped            ? "is stopped (state T)"
               : stack.at[0] != '\0' ? "is in "
                                     : "doesn't say where it is",
               is_stopped ? "" : stack.at,
               !is_stopped && stack.waits ? " (it waits for other ranks)" : "");
}

/* Has py-spy tell where a process is, which stays as it is. False: it can't. */
static bool spy_on(struct command_worker *c, uint32_t i)
{
    const struct command_options *o = c->options;
    char **env = NULL;
    if (launch_environment(o->job, o->assignment, &c->place, i, o->worker, &env) != ST_OK)
        return false;
    const bool told = spy_add_stack(c->processes[i].pid, env, now_ms(), &c->members[i].output);
    launch_free(env);
    return told;
}

/* Has Python's processes write their stacks, from the first one on, `count` of them. Those on which
 * py-spy can tell aren't asked. */
static void ask_for_stacks(struct command_worker *c, uint32_t first, uint32_t count)
{
    const int64_t until = now_ms() + STACK_MS;
    bool waits = true;
    bool asked[COMMAND_PROCESSES_MAX];
    for (uint32_t i = first; i < first + count; i++) {
        asked[i] = c->processes[i].ended || !spy_on(c, i);
        if (asked[i])
            process_signal(&c->processes[i], SIGABRT);
    }
    while (waits && now_ms() < until) {
        turn(c, LOOK_MS);
        waits = false;
        for (uint32_t i = first; i < first + count; i++)
            waits = waits ||
                    (asked[i] && !c->processes[i].ended && !process_is_stopped(&c->processes[i]));
    }
    turn(c, 0);
}

/* Explains the hang of a process that shows nothing. */
static struct command_failure explain_hang(struct command_worker *c, uint32_t i)
{
    struct command_failure failure;
    char shows[96];
    const bool is_stopped = process_is_stopped(&c->processes[i]);
    const double seconds = (double)(now_ms() - c->members[i].moved_ms) / 1e3;
    (void)snprintf(shows, sizeof(shows), "shows no %s for %.1f s, at step %llu: it ",
                   c->progress != NULL ? "progress" : "output", seconds,
                   (unsigned long long)c->step);
    if (!is_stopped)
        ask_for_stacks(c, i, 1);
    describe(c, i, is_stopped, shows, &failure);
    return failure;
}

/* Tells where the processes are in a hang that another worker has told of: of several, one that
 * doesn't wait for others. */
static void tell_stacks(struct command_worker *c)
{
    struct command_failure failure;
    uint32_t told = c->count;
    bool is_stopped = false;
    for (uint32_t i = 0; i < c->count && !is_stopped; i++) {
        is_stopped = !c->processes[i].ended && process_is_stopped(&c->processes[i]);
        told = is_stopped ? i : told;
    }
    ask_for_stacks(c, 0, c->count);
    for (uint32_t i = 0; i < c->count && !is_stopped; i++) {
        const struct output_stack stack = output_python_stack(&c->members[i].output);
        if (stack.at[0] != '\0' && (told == c->count || !stack.waits))
            told = i;
    }
    if (told == c->count)
        return;
    describe(c, told, is_stopped, "", &failure);
    c->options->failed(c->options->failed_arg, &failure);
}

/* ---- the end of the program ---- */

/* Ends the program: SIGTERM to each of its processes, not to what these started; when all have
 * ended, or after grace_ms, SIGKILL to all that is left. */
static void end_program(struct command_worker *c, int64_t grace_ms)
{
    if (session_parks_by_hang(c->options->session))
        tell_stacks(c);
    const int64_t until = now_ms() + grace_ms;
    for (uint32_t i = 0; i < c->count && grace_ms > 0; i++) {
        process_signal(&c->processes[i], SIGTERM);
        process_signal(&c->processes[i], SIGCONT); /* one that is stopped hears of it */
    }
    while (count_living(c) > 0 && now_ms() < until)
        turn(c, LOOK_MS);
    if (count_living(c) > 0 && grace_ms > 0) {
        LOG_INFO(c->options->log, "the program didn't end within %.1f s of SIGTERM: killed",
                 (double)grace_ms / 1e3);
    }
    if (processes_kill_all(c->processes, c->count, preload_process(c->preload), KILL_MS) != ST_OK) {
        LOG_WARN(c->options->log,
                 "what the program left behind can't be killed: it waits in the kernel, ignoring");
    }
    for (uint32_t i = 0; i < c->count; i++) {
        while (c->processes[i].said_fd >= 0) {
            if (!output_read(&c->members[i].output, c->processes[i].said_fd, now_ms()) ||
                poll(&(struct pollfd){ c->processes[i].said_fd, POLLIN, 0 }, 1, 0) <= 0)
                close_said(c, i);
        }
    }
}

/* ---- from start to end ---- */

static struct command_failure failure_of(Cairn__V1__FaultKind kind, const struct reason *why,
                                         enum status st)
{
    struct command_failure failure = { .kind = kind };
    reason_set(&failure.why, "%s", why->text[0] != '\0' ? why->text : status_string(st));
    return failure;
}

static enum status compile_patterns(struct command_worker *c)
{
    const struct jobspec_command *command = &c->options->job->command;
    const size_t most = sizeof(c->patterns.list) / sizeof(c->patterns.list[0]);
    struct reason why;
    size_t offset = 0;
    enum status st = ST_OK;
    if (command->progress[0] != '\0')
        st = pattern_compile(command->progress, &c->progress, &offset, &why);
    for (const char *text = jobspec_next_text(command->restart.on_output, NULL);
         st == ST_OK && text != NULL && c->patterns.count < most;
         text = jobspec_next_text(command->restart.on_output, text)) {
        st = pattern_compile(text, &c->patterns.list[c->patterns.count], &offset, &why);
        c->patterns.count += st == ST_OK;
    }
    return st;
}

/* Waits for the imports of the interpreter. Errors: ST_STALE  the program is to be stopped;
 * ST_REFUSED  it can't serve */
static enum status await_imports(struct command_worker *c, struct reason *out_why)
{
    const int64_t until = now_ms() + PRELOAD_IMPORT_MS;
    for (;;) {
        const enum status st = preload_look(c->preload, out_why);
        if (st != ST_AGAIN)
            return st;
        if (stop_of(c) != COMMAND_GOES_ON)
            return ST_STALE;
        if (now_ms() >= until) {
            reason_set(out_why, "the imports take longer than %d s", PRELOAD_IMPORT_MS / 1000);
            return ST_REFUSED;
        }
        turn(c, LOOK_MS);
    }
}

/* Starts a process by the interpreter that has the job's imports, if there is one. */
static enum status start_process(struct command_worker *c, const struct process_start *how,
                                 struct process *out, struct reason *out_why)
{
    const struct command_options *o = c->options;
    if (c->preload == NULL && !c->cold && o->job->command.preload[0] != '\0')
        c->cold = preload_open(o->job, how->env, o->log, &c->preload) != ST_OK;
    if (c->preload == NULL)
        return process_start(how, out, out_why);
    struct reason why;
    enum status st = await_imports(c, &why);
    if (st == ST_OK)
        st = preload_start(c->preload, how, out, &why);
    if (st == ST_OK || st == ST_STALE)
        return st;
    LOG_WARN(o->log, "preload: %s; processes are started cold", why.text);
    preload_close(c->preload);
    c->preload = NULL;
    c->cold = true;
    return process_start(how, out, out_why);
}

static enum status start_one(struct command_worker *c, uint32_t i, char *const *argv,
                             struct reason *why)
{
    const struct command_options *o = c->options;
    struct member *member = &c->members[i];
    char **env = NULL;
    enum status st = launch_environment(o->job, o->assignment, &c->place, i, o->worker, &env);
    if (st != ST_OK)
        return st;
    if (c->count > 1)
        (void)snprintf(member->label, sizeof(member->label), "[%" PRIu32 "] ", c->place.rank + i);
    member->output =
        (struct output){ .log_fd = o->log_fd, .label = member->label, .progress = c->progress };
    const struct process_start start = { .argv = argv,
                                         .env = env,
                                         .workdir = o->job->command.workdir };
    st = start_process(c, &start, &c->processes[i], why);
    member->moved_ms = now_ms(); /* from its start: imports of `preload` are none of its time */
    launch_free(env);
    return st;
}

static enum status start_program(struct command_worker *c, struct reason *why)
{
    char **argv = NULL;
    enum status st = ST_OK;
    if (!c->adopts)
        st = processes_adopt_orphans();
    c->adopts = st == ST_OK;
    if (st == ST_OK)
        st = launch_arguments(c->options->job, &argv);
    fault_point("trainer.command");
    for (uint32_t i = 0; i < c->count && st == ST_OK; i++)
        st = start_one(c, i, argv, why);
    if (st == ST_OK) {
        LOG_INFO(c->options->log, "%s: %u of %u processes, as ranks %u to %u, on %s port %u",
                 argv[0], c->count, c->place.size, c->place.rank, c->place.rank + c->count - 1,
                 c->place.master_host, c->place.master_port);
    }
    launch_free(argv);
    return st;
}

/* Makes the session ready for a program that saves nothing; else has the relay do so once the
 * program is. */
static bool serve(struct command_worker *c, struct command_failure *out_failure)
{
    const struct command_options *o = c->options;
    const struct session_ready ready = { .pins = "{}", .level = CKPT_DEFAULT };
    const struct relay_options relay = { .job = o->job,
                                         .session = o->session,
                                         .assignment = o->assignment,
                                         .copies = o->copies,
                                         .io = o->io,
                                         .log = o->log };
    struct reason why = { "" };
    const bool saves = o->job->command.saves;
    const enum status st =
        saves ? relay_open(&relay, &c->relay, &why) : session_set_ready(o->session, &ready);
    if (st != ST_OK) {
        *out_failure = saves ? relayed_unopened(st, &why)
                             : failure_of(CAIRN__V1__FAULT_KIND__FORMATION, &why, st);
    } else if (saves) {
        (void)snprintf(c->place.relay, sizeof(c->place.relay), "%s", relay_name(c->relay));
    }
    return st == ST_OK;
}

/* True if the program can be started: the workers met, and the coordinator was told so. */
static bool prepare(struct command_worker *c, struct command_failure *out_failure)
{
    const struct command_options *o = c->options;
    struct reason why = { "" };
    c->members = calloc(c->count, sizeof(*c->members));
    enum status st = c->members == NULL ? ST_NO_MEMORY : compile_patterns(c);
    if (st != ST_OK) {
        *out_failure = failure_of(CAIRN__V1__FAULT_KIND__PROCESS_GONE, &why, st);
        return false;
    }
    st = launch_meet(session_rendezvous(o->session), o->assignment, c->count, o->gpu, MEET_MS,
                     &c->place, &why);
    if (st == ST_OK)
        return serve(c, out_failure);
    *out_failure = failure_of(CAIRN__V1__FAULT_KIND__FORMATION, &why, st);
    return false;
}

/* Returns a process that has failed; count: none. Of several the first by rank. */
static uint32_t find_failed(const struct command_worker *c)
{
    uint32_t i = 0;
    while (i < c->count && (!c->processes[i].ended || failure_is_success(c->processes[i].status)))
        i++;
    return i;
}

/* Judges the process that failed, once its last words are in. */
static struct command_failure judge(struct command_worker *c, uint32_t i)
{
    const int64_t until = now_ms() + FAILED_OUTPUT_MS;
    while (c->processes[i].said_fd >= 0 && now_ms() < until && stop_of(c) == COMMAND_GOES_ON)
        turn(c, LOOK_MS);
    struct command_failure failure =
        failure_of_exit(c->options->job, &c->patterns, c->place.rank + i, c->processes[i].status,
                        &c->members[i].output);
    if (c->relay != NULL)
        relayed_explain(c->relay, &c->news, c->place.rank + i, &failure);
    return failure;
}

/* Watches the program until it has ended, fails, or is to be stopped. */
static enum command_end watch(struct command_worker *c, struct command_failure *out_failure)
{
    for (;;) {
        turn(c, LOOK_MS);
        if (stop_of(c) != COMMAND_GOES_ON)
            return COMMAND_STOPPED;
        const uint32_t failed = find_failed(c);
        if (failed < c->count) {
            *out_failure = judge(c, failed);
            return COMMAND_FAILED;
        }
        const bool ended = count_living(c) == 0;
        if (c->relay != NULL &&
            relayed_has_failed(&c->news, ended, c->place.rank, now_ms(), out_failure))
            return COMMAND_FAILED;
        if (ended || (c->relay != NULL && c->news.ends))
            return COMMAND_DONE;
        const uint32_t hung = find_hung(c, now_ms());
        if (hung < c->count) {
            *out_failure = explain_hang(c, hung);
            return COMMAND_FAILED;
        }
    }
}

static void release_run(struct command_worker *c)
{
    pattern_free(c->progress);
    for (size_t i = 0; i < c->patterns.count; i++)
        pattern_free(c->patterns.list[i]);
    free(c->members);
    c->progress = NULL;
    c->patterns.count = 0;
    c->members = NULL;
    c->options = NULL;
}

/* Returns the program's time after SIGTERM. */
static int64_t grace_of(struct command_worker *c)
{
    const int64_t whole = c->options->job->command.grace_ms;
    const bool short_one = stop_of(c) != COMMAND_LEAVES && whole > COMMAND_PARK_GRACE_MS;
    return short_one ? COMMAND_PARK_GRACE_MS : whole;
}

/* Makes the folder that the program writes to. */
static enum status make_folder(const struct jobspec_command *command, struct reason *out_why)
{
    if (command->folder[0] == '\0')
        return ST_OK;
    const enum status st = io_mkdir_all(io_system(), command->folder);
    if (st != ST_OK)
        reason_set(out_why, "folder %.300s: %s", command->folder, status_string(st));
    return st;
}

/* Runs the program from its start to its end, or until it is to be stopped. */
static enum command_end run_program(struct command_worker *c, struct command_failure *out_failure)
{
    struct reason why = { "" };
    enum status st = make_folder(&c->options->job->command, &why);
    if (st == ST_OK)
        st = start_program(c, &why);
    if (st == ST_OK)
        return watch(c, out_failure);
    const bool lacks = st == ST_NOT_FOUND || st == ST_REFUSED;
    *out_failure = failure_of(
        lacks ? CAIRN__V1__FAULT_KIND__USER : CAIRN__V1__FAULT_KIND__PROCESS_GONE, &why, st);
    out_failure->of_node = lacks;
    return COMMAND_FAILED;
}

enum command_end command_run(struct command_worker *command, const struct command_options *options,
                             uint64_t *out_step)
{
    struct command_worker *c = command;
    struct command_failure failure = { .late = false };
    c->options = options;
    c->count = (uint32_t)options->job->command.processes;
    c->step = 0;
    c->news = (struct relay_news){ .step = 0 };
    CHECK(c->count >= 1 && c->count <= COMMAND_PROCESSES_MAX);
    for (uint32_t i = 0; i < c->count; i++)
        c->processes[i] = (struct process){ .said_fd = -1, .end_fd = -1 };
    const bool prepared = prepare(c, &failure);
    enum command_end end = prepared ? run_program(c, &failure) : COMMAND_FAILED;
    if (end == COMMAND_FAILED && stop_of(c) == COMMAND_GOES_ON)
        options->failed(options->failed_arg, &failure);
    if (prepared)
        end_program(c, end == COMMAND_DONE ? 0 : grace_of(c));
    if (end != COMMAND_DONE && stop_of(c) != COMMAND_GOES_ON)
        end = COMMAND_STOPPED;
    *out_step = c->step;
    relay_close(c->relay);
    c->relay = NULL;
    release_run(c);
    return end;
}
