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
#include "trainer/command/first.h"
#include "trainer/command/hang.h"
#include "trainer/command/worker.h"

enum {
    MEET_MS = 60000,        /* the other workers start, too */
    KILL_MS = 10000,        /* for what was killed to be gone */
    FAILED_OUTPUT_MS = 100, /* for the last words of a process, where others hold its output open */
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

static uint32_t count_living(const struct command_worker *c)
{
    uint32_t living = 0;
    for (uint32_t i = 0; i < c->count; i++)
        living += c->processes[i].pid > 0 && !c->processes[i].ended;
    return living;
}

/* ---- the end of the program ---- */

/* Ends the program: SIGTERM to each of its processes, not to what these started; when all have
 * ended, or after grace_ms, SIGKILL to all that is left. */
static void end_program(struct command_worker *c, int64_t grace_ms)
{
    if (session_parks_by_hang(c->options->session))
        hang_tell_stacks(c);
    const int64_t until = worker_now_ms() + grace_ms;
    for (uint32_t i = 0; i < c->count && grace_ms > 0; i++) {
        process_signal(&c->processes[i], SIGTERM);
        process_signal(&c->processes[i], SIGCONT); /* one that is stopped hears of it */
    }
    while (count_living(c) > 0 && worker_now_ms() < until)
        worker_turn(c, WORKER_LOOK_MS);
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
            if (!output_read(&c->members[i].output, c->processes[i].said_fd, worker_now_ms()) ||
                poll(&(struct pollfd){ c->processes[i].said_fd, POLLIN, 0 }, 1, 0) <= 0)
                worker_close_said(c, i);
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
    const int64_t until = worker_now_ms() + PRELOAD_IMPORT_MS;
    for (;;) {
        const enum status st = preload_look(c->preload, out_why);
        if (st != ST_AGAIN)
            return st;
        if (stop_of(c) != COMMAND_GOES_ON)
            return ST_STALE;
        if (worker_now_ms() >= until) {
            reason_set(out_why, "the imports take longer than %d s", PRELOAD_IMPORT_MS / 1000);
            return ST_REFUSED;
        }
        worker_turn(c, WORKER_LOOK_MS);
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
    struct command_member *member = &c->members[i];
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
    member->moved_ms =
        worker_now_ms(); /* from its start: imports of `preload` are none of its time */
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
    for (uint32_t i = 0; i < c->count && st == ST_OK; i++) {
        const bool first = c->place.rank + i == 0;
        if (i == (c->place.rank == 0)) /* before the worker's first process of another rank */
            first_await(c);
        st = start_one(c, i, argv, why);
        if (first)
            first_started(c);
    }
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
                     &c->listening, &c->place, &why);
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
    const int64_t until = worker_now_ms() + FAILED_OUTPUT_MS;
    while (c->processes[i].said_fd >= 0 && worker_now_ms() < until && stop_of(c) == COMMAND_GOES_ON)
        worker_turn(c, WORKER_LOOK_MS);
    struct command_failure failure =
        failure_of_exit(c->options->job, &c->patterns, c->place.rank + i, c->processes[i].status,
                        &c->members[i].output);
    if (c->relay != NULL)
        relayed_explain(c->relay, &c->news, c->place.rank + i, &failure);
    if (!failure.outside)
        worker_add_trace(c, i, &failure);
    return failure;
}

/* True if one of the worker's processes has failed, as far as the relay knows. */
static bool has_relay_failed(const struct command_worker *c, struct command_failure *out_failure)
{
    bool failed = false;
    for (uint32_t i = 0; i < c->count && c->relay != NULL && !failed; i++) {
        failed = relayed_has_failed(&c->news, &c->news.of[i], c->processes[i].ended,
                                    c->place.rank + i, worker_now_ms(), out_failure);
    }
    return failed;
}

/* Watches the program until it has ended, fails, or is to be stopped. */
static enum command_end watch(struct command_worker *c, struct command_failure *out_failure)
{
    for (;;) {
        worker_turn(c, first_look(c, WORKER_LOOK_MS));
        if (stop_of(c) != COMMAND_GOES_ON)
            return COMMAND_STOPPED;
        const uint32_t failed = find_failed(c);
        if (failed < c->count) {
            *out_failure = judge(c, failed);
            return COMMAND_FAILED;
        }
        if (has_relay_failed(c, out_failure))
            return COMMAND_FAILED;
        if (count_living(c) == 0 || (c->relay != NULL && c->news.ends))
            return COMMAND_DONE;
        const uint32_t hung = hang_find(c, worker_now_ms());
        if (hung < c->count) {
            *out_failure = hang_explain(c, hung);
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

/* Returns the program's time after SIGTERM. One whose state is in copies has nothing left to do
 * where it will be started anew: it would only delay that. */
static int64_t grace_of(struct command_worker *c)
{
    const int64_t whole = c->options->job->command.grace_ms;
    if (stop_of(c) == COMMAND_LEAVES)
        return whole;
    if (c->relay != NULL && c->news.ready)
        return 0;
    return whole < COMMAND_PARK_GRACE_MS ? whole : COMMAND_PARK_GRACE_MS;
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
    c->first_ms = 0;
    c->began_wall_ms = clock_wall_ms(clock_system());
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
