/* Copies in memory that find no room: people are told once, not in every generation. */
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define FULL "node n: 64.0 MiB are free where copies lie"

#define WITH(checkpoint)                                                                           \
    "name: copies\n"                                                                               \
    "model: {arch: mlp}\n"                                                                         \
    "data: {train: {format: synthetic}}\n"                                                         \
    "train: {duration: 50 steps, global_batch: 64, lanes: 8, optimizer: {lr: 0.1}}\n"              \
    "workers: {count: 1}\n"                                                                        \
    "checkpoint: {every: 5 steps, store: /store" checkpoint "}\n"

struct told {
    int events;
    char message[LIMIT_REASON];
};

static bool count_copies(void *arg, const struct journal_event *event)
{
    struct told *told = arg;
    if (strcmp(event->kind, "copies") != 0)
        return true;
    told->events++;
    assert_true(strlen(event->message) < sizeof(told->message));
    memcpy(told->message, event->message, strlen(event->message) + 1);
    return true;
}

static struct told told_of(struct coord_world *w, const struct coord_job *job)
{
    struct told told = { .events = 0 };
    assert_int_equal(journal_each_event(w->journal, job->id, 1000, count_copies, &told), ST_OK);
    return told;
}

static void say(struct coord_world *w, struct far_end *far,
                Cairn__V1__TrainerMessage__BodyCase body, void *message)
{
    Cairn__V1__TrainerMessage out = CAIRN__V1__TRAINER_MESSAGE__INIT;
    out.body_case = body;
    out.hello = message; /* a union of pointers */
    coord_trainer_message(w->coord, &far->conn, &out);
    coord_end_group(w);
}

/* The job's worker of the generation that forms says what it has of copies. */
static void get_ready(struct coord_world *w, struct far_end *worker, const struct coord_job *job,
                      uint64_t every, const char *why)
{
    Cairn__V1__Ready ready = CAIRN__V1__READY__INIT;
    ready.total_steps = 50;
    ready.steps_per_epoch = 10;
    ready.pins = (char *)"{\"cpu\":1}";
    ready.memory_every = every;
    ready.memory_reason = (char *)why;
    far_open(worker, job->m.token);
    far_attach(w, worker, job, 0);
    say(w, worker, CAIRN__V1__TRAINER_MESSAGE__BODY_READY, &ready);
    coord_pass(w, 1);
    assert_string_equal(fsm_state_name(job->m.state), "RUNNING");
}

static void say_stepped(struct coord_world *w, struct far_end *worker, uint64_t step,
                        const char *why)
{
    Cairn__V1__Progress progress = CAIRN__V1__PROGRESS__INIT;
    progress.step = step;
    progress.phase = (char *)"forward";
    progress.memory_reason = (char *)why;
    say(w, worker, CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS, &progress);
}

/* The worker is killed, and the next generation forms. */
static void lose(struct coord_world *w, struct far_end *agent, struct far_end *worker,
                 const struct coord_job *job)
{
    const uint32_t generation = job->m.generation;
    far_close_trainer(w, worker);
    far_say_killed(w, agent, job->id, job->m.ranks[0].birth, job->m.ranks[0].number);
    coord_end_group(w);
    for (int i = 0; i < 40 && job->m.generation == generation; i++) {
        far_beat(w, agent);
        coord_pass(w, 500);
    }
    assert_true(job->m.generation > generation);
}

static struct coord_job *submit(struct coord_world *w, const char *text)
{
    struct coord_job *job = NULL;
    struct reason reason = { "" };
    assert_int_equal(coord_submit_text(w, text, &job, &reason), ST_OK);
    coord_pass(w, 1);
    return job;
}

static void no_room_is_told_once_and_again_after_there_was_some(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, worker;
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *job = submit(w, WITH(""));
    get_ready(w, &worker, job, 0, FULL);
    assert_int_equal(told_of(w, job).events, 1);
    assert_string_equal(told_of(w, job).message, "none in memory between saves: " FULL);
    say_stepped(w, &worker, 1, "");
    lose(w, &agent, &worker, job);
    get_ready(w, &worker, job, 0, FULL);
    assert_int_equal(told_of(w, job).events, 1);
    say_stepped(w, &worker, 2, "");
    lose(w, &agent, &worker, job);
    get_ready(w, &worker, job, 1, "");
    assert_int_equal(told_of(w, job).events, 1);
    assert_string_equal(job->copies.reason.text, "");
    say_stepped(w, &worker, 3, "");
    lose(w, &agent, &worker, job);
    get_ready(w, &worker, job, 0, FULL);
    assert_int_equal(told_of(w, job).events, 2);
    far_close_trainer(w, &worker);
    far_close_agent(w, &agent);
}

static void what_is_found_while_it_trains_is_told_too(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, worker;
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *job = submit(w, WITH(", memory_every: 1 step"));
    get_ready(w, &worker, job, 1, "");
    say_stepped(w, &worker, 1, "");
    assert_int_equal(told_of(w, job).events, 0);
    for (uint64_t step = 2; step < 5; step++)
        say_stepped(w, &worker, step, FULL);
    assert_int_equal(told_of(w, job).events, 1);
    assert_string_equal(told_of(w, job).message, "in memory, with a lack: " FULL);
    assert_string_equal(job->copies.reason.text, FULL);
    far_close_trainer(w, &worker);
    far_close_agent(w, &agent);
}

static void a_job_that_wants_none_is_told_nothing(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, worker;
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *job = submit(w, WITH(", memory_every: none"));
    get_ready(w, &worker, job, 0, "checkpoint.memory_every: none");
    assert_int_equal(told_of(w, job).events, 0);
    assert_string_equal(job->copies.reason.text, "checkpoint.memory_every: none");
    far_close_trainer(w, &worker);
    far_close_agent(w, &agent);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(no_room_is_told_once_and_again_after_there_was_some),
        CASE(what_is_found_while_it_trains_is_told_too),
        CASE(a_job_that_wants_none_is_told_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
