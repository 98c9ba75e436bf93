/* Time, chance, chaos; and main, which runs seed after seed and prints the one that fails. */
#include "tests/sim/sim.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"

#define CHAOS_MS     60000
#define CHAOS_GAP_MS 2500
#define END_MS       900000  /* without failures everything ends long before */
#define CROWD_END_MS 4000000 /* ... also one job after the other */
#define CALM_HANG_MS 25000   /* below the deadline of a save that collects: 4 x the hang rule */
#define WALL_START   1800000000000

struct sim_event {
    int64_t at;
    uint64_t order;
    sim_fn fn;
    void *arg;
    uint64_t number;
};

/* ---- chance ---- */

uint64_t sim_random(struct sim *sim)
{
    uint64_t z = (sim->random += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t sim_below(struct sim *sim, uint64_t n)
{
    return n == 0 ? 0 : sim_random(sim) % n;
}

bool sim_chance(struct sim *sim, uint32_t per_mille)
{
    return sim_below(sim, 1000) < per_mille;
}

int64_t sim_hang_end(struct sim *sim, int64_t max_ms)
{
    int64_t end = sim->now + (int64_t)sim_below(sim, (uint64_t)max_ms);
    return end < sim->options.chaos_ms ? end : sim->options.chaos_ms;
}

uint64_t sim_state(uint32_t job, uint64_t step)
{
    uint64_t z = (job + 1) * 0x9e3779b97f4a7c15u + step * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t sim_part(uint64_t state, uint32_t rank)
{
    return (state ^ (rank + 1) * 0x9e3779b97f4a7c15u) | 1;
}

float sim_loss(uint64_t step)
{
    return (float)(sim_state(0, step) % 1000);
}

int sim_job_at(const struct sim *sim, const char *id)
{
    for (uint32_t i = 0; i < sim->job_count; i++)
        if (sim->jobs[i].id[0] && strcmp(sim->jobs[i].id, id) == 0)
            return (int)i;
    return -1;
}

/* ---- time ---- */

static int64_t mono_ms(void *self)
{
    return ((struct sim *)self)->now;
}

static int64_t wall_ms(void *self)
{
    return WALL_START + ((struct sim *)self)->now;
}

static bool comes_before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void sim_at(struct sim *sim, int64_t delay_ms, sim_fn fn, void *arg, uint64_t number)
{
    if (sim->event_count == sim->event_capacity) {
        sim->event_capacity = sim->event_capacity ? 2 * sim->event_capacity : 1024;
        sim->heap = realloc(sim->heap, sim->event_capacity * sizeof(*sim->heap));
        CHECK(sim->heap != NULL);
    }
    size_t at = sim->event_count++;
    struct sim_event event = { .at = sim->now + delay_ms,
                               .order = sim->event_order++,
                               .fn = fn,
                               .arg = arg,
                               .number = number };
    for (; at > 0 && comes_before(&event, &sim->heap[(at - 1) / 2]); at = (at - 1) / 2)
        sim->heap[at] = sim->heap[(at - 1) / 2];
    sim->heap[at] = event;
}

static struct sim_event take_event(struct sim *sim)
{
    struct sim_event first = sim->heap[0];
    struct sim_event last = sim->heap[--sim->event_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= sim->event_count)
            break;
        if (child + 1 < sim->event_count && comes_before(&sim->heap[child + 1], &sim->heap[child]))
            child++;
        if (comes_before(&last, &sim->heap[child]))
            break;
        sim->heap[at] = sim->heap[child];
        at = child;
    }
    sim->heap[at] = last;
    return first;
}

void sim_fail(struct sim *sim, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fprintf(stderr, "seed %llu, at %lld ms: ", (unsigned long long)sim->options.seed,
                  (long long)sim->now);
    (void)vfprintf(stderr, format, args);
    (void)fprintf(stderr, "\nreplay: cairn-sim --seed %llu%s --verbose\n",
                  (unsigned long long)sim->options.seed,
                  sim->options.calm       ? " --calm"
                  : sim->options.queue    ? " --queue"
                  : sim->options.plain    ? " --plain"
                  : sim->options.programs ? " --programs"
                                          : "");
    va_end(args);
    exit(1);
}

void sim_say(struct sim *sim, const char *format, ...)
{
    if (!sim->options.verbose)
        return;
    va_list args;
    va_start(args, format);
    (void)fprintf(stderr, "%8lld  ", (long long)sim->now);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
}

/* ---- chaos ---- */

static void put_data_back(struct sim *sim, void *arg, uint64_t number)
{
    (void)arg;
    sim->edited[number] = 0;
}

static void edit_data(struct sim *sim)
{
    const uint64_t node = sim_below(sim, sim->node_count);
    sim->edited[node] = 1 + (uint32_t)sim_below(sim, 5);
    sim_at(sim, (int64_t)sim_below(sim, 25000), put_data_back, NULL, node);
}

static void store_has_room(struct sim *sim, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    sim->store_full = false;
}

/* One of the trainers that run, or NULL. */
static struct sim_trainer *some_trainer(struct sim *sim)
{
    for (int i = 0; i < 50 && sim->trainer_count > 0; i++) {
        size_t recent = sim->trainer_count < 16 ? sim->trainer_count : 16;
        struct sim_trainer *t = sim->trainers[sim->trainer_count - 1 - sim_below(sim, recent)];
        if (sim_trainer_view(t)->exit == SIM_RUNS)
            return t;
    }
    return NULL;
}

static void hang_savers(struct sim *sim, int64_t max_ms)
{
    sim->savers_hang_until = sim_hang_end(sim, max_ms);
    sim_say(sim, "the store hangs for all workers until %lld", (long long)sim->savers_hang_until);
}

/* Coordinators and agents may come and go: training must not notice. */
static void disturb(struct sim *sim)
{
    struct sim_trainer *t = some_trainer(sim);
    struct sim_node *node = sim->nodes[sim_below(sim, sim->node_count)];
    uint64_t what = sim_below(sim, 100);
    sim->faults++;
    if (what < 35)
        sim_coordinator_crash(sim);
    else if (what < 55)
        sim_coordinator_freeze(sim);
    else if (what < 60)
        sim_coordinator_unplug(sim);
    else if (what < 75)
        sim_agent_crash(sim, node);
    else if (what < 85)
        sim_agent_cut(sim, node);
    else if (what < 88 && t != NULL)
        sim_trainer_notice(sim, t, false);
    else if (what < 93)
        hang_savers(sim, CALM_HANG_MS);
    else if (t != NULL)
        sim_trainer_cut(sim, t);
}

static void break_something(struct sim *sim)
{
    struct sim_trainer *t = some_trainer(sim);
    struct sim_node *node = sim->nodes[sim_below(sim, sim->node_count)];
    uint64_t what = sim_below(sim, 100);
    sim->faults++;
    if (what < 25 && t != NULL)
        sim_trainer_kill(sim, t, 9);
    else if (what < 30 && t != NULL)
        sim_trainer_notice(sim, t, sim_chance(sim, 700));
    else if (what < 35 && t != NULL)
        sim_trainer_kill(sim, t, 11);
    else if (what < 40 && t != NULL)
        sim_trainer_hang(sim, t);
    else if (what < 50 && t != NULL)
        sim_trainer_cut(sim, t);
    else if (what < 57)
        sim_agent_crash(sim, node);
    else if (what < 60)
        sim_agent_leave(sim, node);
    else if (what < 64)
        sim_agent_cut(sim, node);
    else if (what < 67)
        sim_node_crash(sim, node);
    else if (what < 80)
        sim_coordinator_crash(sim);
    else if (what < 84)
        sim_store_damage(sim);
    else if (what < 88 && !sim->store_full) {
        sim->store_full = true;
        sim_at(sim, (int64_t)sim_below(sim, 15000), store_has_room, NULL, 0);
    } else if (what < 90) {
        sim_coordinator_freeze(sim);
    } else if (what < 91) {
        hang_savers(sim, 50000);
    } else if (what < 93 && t != NULL) {
        sim_trainer_saver_hang(sim, t);
    } else if (what < 95 && t != NULL) {
        sim_trainer_unkillable(sim, t);
    } else if (what < 97) {
        sim_coordinator_unplug(sim);
    } else if (what < 98) {
        edit_data(sim);
    } else {
        sim_coordinator_chaos(sim);
    }
}

static void chaos(struct sim *sim, void *arg, uint64_t number)
{
    (void)arg;
    (void)number;
    if (sim->now >= sim->options.chaos_ms) {
        sim->chaos = false;
        sim->store_full = false;
        memset(sim->edited, 0, sizeof(sim->edited));
        sim_say(sim, "no more failures");
        return;
    }
    if (sim->options.calm)
        disturb(sim);
    else
        break_something(sim);
    sim_at(sim, (int64_t)sim_below(sim, 2 * CHAOS_GAP_MS), chaos, NULL, 0);
}

static void submit_job(struct sim *sim, void *arg, uint64_t job)
{
    (void)arg;
    sim_coordinator_submit(sim, (uint32_t)job);
    if (!sim->jobs[job].submitted)
        sim_at(sim, 500, submit_job, NULL, job);
}

/* ---- a run ---- */

/* In three of ten worlds one node is bad. Of the seed alone: the other worlds stay as they were. */
static void give_flaw(struct sim *sim)
{
    uint64_t chance = sim_state(0, sim->options.seed);
    if (sim->options.calm || sim->crowded || chance % 1000 >= 300)
        return;
    sim->flaw = chance / 1000 % 2 == 0 ? SIM_STARTS_NOTHING : SIM_HAS_NO_DATA;
    sim->flawed = (uint32_t)(chance / 2000 % sim->node_count);
}

/* Like the flaw, the largest group depends on the seed alone. */
static void give_groups(struct sim *sim)
{
    uint64_t chance = sim_state(1, sim->options.seed) % 1000;
    sim->group_max = chance < 600 ? 1 : chance < 800 ? 4 : 40;
}

static void build_world(struct sim *sim)
{
    sim_queue_begin(sim);
    for (uint32_t i = 0; i < sim->job_count; i++) {
        sim->jobs[i] = (struct sim_job){ .ranks = 1 + (uint32_t)sim_below(sim, SIM_RANKS),
                                         .total = 50 + sim_below(sim, 400),
                                         .every = 5 + sim_below(sim, 40),
                                         .delta = sim_chance(sim, 400),
                                         .user_error = !sim->options.calm && sim_chance(sim, 30) };
        if (sim_chance(sim, 300)) {
            sim->jobs[i].every = 0;
            sim->jobs[i].every_ms = 500 + (int64_t)sim_below(sim, 5000);
        }
        if (sim->crowded && i % 2 == 0) /* for some there are too few slots in the end */
            sim->jobs[i].ranks = SIM_RANKS;
        sim_at(sim, (int64_t)sim_below(sim, 20000), submit_job, NULL, i);
    }
    for (uint32_t i = 0; i < sim->node_count; i++)
        sim->nodes[i] = sim_node_new(sim, i);
    give_flaw(sim);
    give_groups(sim);
    sim_netpaths_begin(sim);
    sim_spare_begin(sim);
    sim_lanes_begin(sim);
    sim_audit_begin(sim);
    sim_stages_begin(sim);
    sim_plain_begin(sim);
    sim_program_begin(sim);
    sim_coordinator_start(sim);
    sim_at(sim, 3000, chaos, NULL, 0);
}

/* No trainer outlives its job. */
static bool trainers_left(struct sim *sim)
{
    for (size_t i = 0; i < sim->trainer_count; i++)
        if (sim_trainer_view(sim->trainers[i])->exit == SIM_RUNS)
            return true;
    return false;
}

static void run_world(struct sim *sim)
{
    int64_t looked_at = 0, done_at = 0;
    for (;;) {
        CHECK(sim->event_count > 0);
        struct sim_event event = take_event(sim);
        sim->now = event.at;
        event.fn(sim, event.arg, event.number);
        sim->events_run++;
        sim_coordinator_check(sim);
        if (sim->now > sim->options.chaos_ms + (sim->crowded ? CROWD_END_MS : END_MS))
            sim_coordinator_stuck(sim);
        if (sim->chaos || sim->now < sim->options.chaos_ms || sim->now < looked_at + 500)
            continue;
        looked_at = sim->now;
        if (!sim_coordinator_done(sim))
            continue;
        if (done_at == 0)
            done_at = sim->now;
        if (!trainers_left(sim))
            return;
    }
}

static void sim_free(struct sim *sim)
{
    for (size_t i = 0; i < sim->event_count; i++)
        sim_coordinator_drop(sim->heap[i].fn, sim->heap[i].arg);
    sim_coordinator_free(sim);
    sim_memory_free(sim);
    for (size_t i = 0; i < sim->trainer_count; i++)
        sim_trainer_free(sim->trainers[i]);
    for (uint32_t i = 0; i < sim->node_count; i++)
        sim_node_free(sim->nodes[i]);
    free(sim->rounds);
    free(sim->heap);
    free(sim);
}

static void remove_journal(const char *path)
{
    static const char *const ENDS[] = { "", "-wal", "-shm", "-journal", ".lock" };
    for (size_t i = 0; i < sizeof(ENDS) / sizeof(ENDS[0]); i++) {
        char name[300];
        (void)snprintf(name, sizeof(name), "%s%s", path, ENDS[i]);
        (void)unlink(name);
    }
}

/* The run that goes on: a CHECK of the program that fails is a promise that isn't kept, too. */
static struct sim *running;

static void name_seed(int signal)
{
    (void)signal;
    sim_fail(running, "a CHECK failed, or the program aborted");
}

/* Counts worlds in which one lane was computed wrongly, once. */
struct tally {
    uint64_t worlds, found;
    double expected, variance; /* of found, by chance alone */
};

static void count_once(const struct sim *sim, struct tally *tally)
{
    if (!sim->wrong_done || sim->wrong != SIM_WRONG_ONCE)
        return;
    tally->worlds++;
    tally->found += sim->once_found;
    tally->expected += sim->once_chance;
    tally->variance += sim->once_chance * (1 - sim->once_chance);
}

/* False: four deviations from what chance gives. */
static bool says_tally(const struct tally *tally)
{
    const double off = (double)tally->found - tally->expected;
    (void)printf("one lane wrong once, in %llu worlds: %llu found at once, by chance %.1f\n",
                 (unsigned long long)tally->worlds, (unsigned long long)tally->found,
                 tally->expected);
    return tally->worlds > 0 && off * off <= 16 * tally->variance;
}

static void run_seed(const struct sim_options *options, struct tally *tally)
{
    struct sim *sim = calloc(1, sizeof(*sim));
    CHECK(sim != NULL);
    running = sim;
    sim->options = *options;
    sim->random = options->seed;
    sim->chaos = true;
    sim->clock = (struct clock){ .self = sim, .mono_ms = mono_ms, .wall_ms = wall_ms };
    const char *dir = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    (void)snprintf(sim->path, sizeof(sim->path), "%s/cairn-sim-%ld.db", dir, (long)getpid());
    remove_journal(sim->path);
    build_world(sim);
    run_world(sim);
    sim_coordinator_end(sim);
    count_once(sim, tally);
    (void)printf(
        "seed %llu: %u jobs, %llu events, %llu failures, %llu coordinator crashes, %zu "
        "trainers, %llu of %llu stalls blamed by evidence, %llu commits, %llu restores, "
        "%llu from memory and %llu live, %llu leftovers "
        "swept, %llu files read back, %llu paths cut, %llu probes, %llu nodes cut off, "
        "%llu power cuts, %llu spares, %llu took seats, %llu sets, %llu resized, %llu "
        "moves of lanes, %s wrong: %llu found, %llu not, %.0f s\n",
        (unsigned long long)options->seed, sim->job_count, (unsigned long long)sim->events_run,
        (unsigned long long)sim->faults, (unsigned long long)sim->crashes, sim->trainer_count,
        (unsigned long long)sim->stalls_blamed,
        (unsigned long long)(sim->stalls_blamed + sim->stalls_missed),
        (unsigned long long)sim->commits, (unsigned long long)sim->restores,
        (unsigned long long)sim->memory_restores, (unsigned long long)sim->live_restores,
        (unsigned long long)sim->swept, (unsigned long long)sim->read_backs,
        (unsigned long long)sim->cuts, (unsigned long long)sim->probes,
        (unsigned long long)sim->cut_offs, (unsigned long long)sim->power_cuts,
        (unsigned long long)sim->spares_started, (unsigned long long)sim->seats_taken,
        (unsigned long long)sim->sets, (unsigned long long)sim->resized,
        (unsigned long long)sim->moves, sim_audit_kind(sim), (unsigned long long)sim->wrong_found,
        (unsigned long long)sim->wrong_unseen, (double)sim->now / 1000.0);
    char path[256];
    (void)snprintf(path, sizeof(path), "%s", sim->path);
    sim_free(sim);
    remove_journal(path);
}

static uint64_t number(const char *text)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || *end != '\0') {
        (void)fprintf(stderr, "usage: cairn-sim [--seed N] [--count N] [--chaos-s N] "
                              "[--calm|--once|--queue|--plain|--programs] [--verbose]\n");
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    (void)signal(SIGABRT, name_seed);
    struct sim_options options = { .seed = 1, .chaos_ms = CHAOS_MS };
    struct tally tally = { .worlds = 0 };
    uint64_t count = 1;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--verbose") == 0)
            options.verbose = true;
        else if (strcmp(argv[i], "--calm") == 0)
            options.calm = true;
        else if (strcmp(argv[i], "--queue") == 0)
            options.queue = true;
        else if (strcmp(argv[i], "--plain") == 0)
            options.plain = true;
        else if (strcmp(argv[i], "--programs") == 0)
            options.programs = true;
        else if (strcmp(argv[i], "--once") == 0)
            options.once = true;
        else if (strcmp(argv[i], "--seed") == 0 && more)
            options.seed = number(argv[++i]);
        else if (strcmp(argv[i], "--count") == 0 && more)
            count = number(argv[++i]);
        else if (strcmp(argv[i], "--chaos-s") == 0 && more)
            options.chaos_ms = (int64_t)number(argv[++i]) * 1000;
        else
            (void)number("?");
    }
    for (uint64_t i = 0; i < count; i++) {
        run_seed(&options, &tally);
        options.seed++;
    }
    return options.once && !says_tally(&tally) ? 1 : 0;
}
