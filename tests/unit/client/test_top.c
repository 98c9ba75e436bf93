/* What cairn top knows and paints: events, which job is asked for, the layout, pictures, keys. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/print/columns.h"
#include "client/print/format.h"
#include "client/print/job_columns.h"
#include "client/print/screen.h"
#include "client/query/cluster.h"
#include "client/query/frame.h"
#include "common/buf.h"
#include "tests/test.h"

/* ---- a cluster ---- */

static char *text(const char *words)
{
    char *out = strdup(words);
    assert_non_null(out);
    return out;
}

static Cairn__V1__Worker *worker_on(const char *node, const char *state)
{
    Cairn__V1__Worker *worker = malloc(sizeof(*worker));
    assert_non_null(worker);
    cairn__v1__worker__init(worker);
    worker->node = text(node);
    worker->state = text(state);
    return worker;
}

/* Jobs job0, job1 and so on, that run on n0; every third one is over. */
static Cairn__V1__ListJobsReply *jobs_of(size_t count)
{
    Cairn__V1__ListJobsReply *list = malloc(sizeof(*list));
    assert_non_null(list);
    cairn__v1__list_jobs_reply__init(list);
    list->jobs = calloc(count + 1, sizeof(Cairn__V1__Job *));
    for (size_t i = 0; i < count; i++) {
        char name[32];
        Cairn__V1__Job *job = malloc(sizeof(*job));
        assert_non_null(job);
        cairn__v1__job__init(job);
        (void)snprintf(name, sizeof(name), "j-%zu", count - i);
        job->id = text(name);
        (void)snprintf(name, sizeof(name), "job%zu", count - i);
        job->name = text(name);
        job->state = i % 3 == 2 ? CAIRN__V1__JOB_STATE__SUCCEEDED : CAIRN__V1__JOB_STATE__RUNNING;
        job->generation = 1;
        job->total_steps = 100000;
        job->throughput = 12345.6;
        job->throughput_unit = text("samples/s");
        job->reason =
            text("a reason that is longer than any terminal could be wide, with \xC3\xBC, "
                 "and that goes on, and on, and on, until nobody reads it any more");
        job->workers = calloc(2, sizeof(Cairn__V1__Worker *));
        job->workers[job->n_workers++] = worker_on("n0", "running");
        job->workers[job->n_workers++] = worker_on("n0", "gone");
        list->jobs[list->n_jobs++] = job;
    }
    return list;
}

static Cairn__V1__ListNodesReply *nodes_of(size_t count)
{
    Cairn__V1__ListNodesReply *list = malloc(sizeof(*list));
    assert_non_null(list);
    cairn__v1__list_nodes_reply__init(list);
    list->nodes = calloc(count + 1, sizeof(Cairn__V1__Node *));
    for (size_t i = 0; i < count; i++) {
        char name[32];
        Cairn__V1__Node *node = malloc(sizeof(*node));
        assert_non_null(node);
        cairn__v1__node__init(node);
        (void)snprintf(name, sizeof(name), "n%zu", i);
        node->name = text(name);
        node->state = text(i % 5 == 4 ? "lost" : "ready");
        node->slots = 4;
        node->used = i == 0;
        list->nodes[list->n_nodes++] = node;
    }
    return list;
}

static void fill(struct cluster *cluster, size_t jobs, size_t nodes)
{
    *cluster = (struct cluster){ 0 };
    assert_true(cluster_take_jobs(cluster, jobs_of(jobs)));
    cluster_take_nodes(cluster, nodes_of(nodes));
}

/* ---- events ---- */

static struct cluster_event event_at(int64_t wall_ms, const char *words)
{
    struct cluster_event event = { .wall_ms = wall_ms, .about = "tiny", .kind = "fault" };
    (void)snprintf(event.text, sizeof(event.text), "%s", words);
    return event;
}

static void events_stand_in_the_order_of_their_times_once_each(void **state)
{
    (void)state;
    struct cluster cluster = { 0 };
    static const int64_t times[] = { 50, 10, 30, 30, 20, 50, 10 };
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        struct cluster_event event = event_at(times[i], "same");
        cluster_add_event(&cluster, &event);
    }
    struct cluster_event other = event_at(30, "other");
    cluster_add_event(&cluster, &other);
    cluster_add_event(&cluster, &other);
    assert_int_equal(cluster.event_count, 5);
    for (size_t i = 1; i < cluster.event_count; i++)
        assert_true(cluster.events[i - 1].wall_ms <= cluster.events[i].wall_ms);
}

static void a_full_list_keeps_the_newest(void **state)
{
    (void)state;
    struct cluster cluster = { 0 };
    const int64_t kept = CLUSTER_EVENTS;
    for (int64_t i = 0; i < 3 * kept; i++) {
        struct cluster_event event = event_at(100 + (i * 7) % (3 * kept), "x");
        cluster_add_event(&cluster, &event);
        assert_in_range(cluster.event_count, 1, CLUSTER_EVENTS);
    }
    for (int64_t i = 0; i < kept; i++)
        assert_int_equal(cluster.events[i].wall_ms, 100 + 2 * kept + i);
    struct cluster_event old = event_at(1, "old");
    cluster_add_event(&cluster, &old);
    assert_int_equal(cluster.events[0].wall_ms, 100 + 2 * kept);
}

static void saves_of_a_job_are_no_news_and_long_texts_are_cut(void **state)
{
    (void)state;
    struct cluster cluster = { 0 };
    Cairn__V1__Job job = CAIRN__V1__JOB__INIT;
    Cairn__V1__Event events[4];
    Cairn__V1__Event *list[4];
    static char endless[1000];
    static const char *const kinds[] = { "fault", "saved", "recovering", "fault" };
    memset(endless, 'x', sizeof(endless) - 1);
    for (size_t i = 0; i < 4; i++) {
        cairn__v1__event__init(&events[i]);
        events[i].time = i == 3 ? "no time" : "2026-11-01T10:00:00.250Z";
        events[i].kind = (char *)kinds[i];
        events[i].message = endless;
        list[i] = &events[i];
    }
    job.name = endless;
    job.events = list;
    job.n_events = 4;
    cluster_add_events(&cluster, &job);
    assert_int_equal(cluster.event_count, 2);
    assert_int_equal(cluster.events[0].wall_ms % 1000, 250);
    assert_int_equal(strlen(cluster.events[0].text), sizeof(cluster.events[0].text) - 1);
}

static void a_node_whose_state_changes_is_an_event(void **state)
{
    (void)state;
    struct cluster cluster;
    fill(&cluster, 0, 3);
    assert_int_equal(cluster.event_count, 0); /* there is nothing to compare with */
    Cairn__V1__ListNodesReply *next = nodes_of(4);
    free(next->nodes[1]->state);
    next->nodes[1]->state = text("lost");
    next->nodes[1]->reason = text("its agent is silent");
    cluster_take_nodes(&cluster, next);
    assert_int_equal(cluster.event_count, 2);
    const bool first = strcmp(cluster.events[0].about, "n1") == 0;
    const struct cluster_event *lost = &cluster.events[first ? 0 : 1];
    assert_string_equal(lost->about, "n1");
    assert_string_equal(lost->text, "lost: its agent is silent");
    assert_string_equal(cluster.events[first ? 1 : 0].text, "ready"); /* n3 is new */
    cluster_take_nodes(&cluster, nodes_of(4));
    assert_int_equal(cluster.event_count, 3);
    cluster_release(&cluster);
}

static void jobs_that_something_happened_to_are_asked_for_first(void **state)
{
    (void)state;
    struct cluster cluster;
    fill(&cluster, 3, 0); /* j-3 and j-2 run, j-1 is over */
    assert_string_equal(cluster_next_job(&cluster, 1000), "j-3");
    assert_string_equal(cluster_next_job(&cluster, 1001), "j-2");
    assert_string_equal(cluster_next_job(&cluster, 1002), "j-1");
    assert_null(cluster_next_job(&cluster, 1003)); /* nothing is new */
    Cairn__V1__ListJobsReply *next = jobs_of(4);   /* one more; and j-2 came back */
    next->jobs[2]->state = CAIRN__V1__JOB_STATE__RUNNING;
    next->jobs[2]->generation = 2;
    next->jobs[3]->state = CAIRN__V1__JOB_STATE__SUCCEEDED;
    assert_true(cluster_take_jobs(&cluster, next));
    assert_string_equal(cluster_next_job(&cluster, 2000), "j-4");
    assert_string_equal(cluster_next_job(&cluster, 2001), "j-2");
    assert_null(cluster_next_job(&cluster, 2002));
    assert_string_equal(cluster_next_job(&cluster, 60000), "j-3"); /* in turn, those that live */
    assert_null(cluster_next_job(&cluster, 60001));
    assert_string_equal(cluster_next_job(&cluster, 90000), "j-4");
    cluster_release(&cluster);
}

static void more_jobs_than_were_asked_for_are_dropped(void **state)
{
    (void)state;
    struct cluster cluster;
    fill(&cluster, CLUSTER_JOBS + 5, 0);
    assert_int_equal(cluster.jobs->n_jobs, CLUSTER_JOBS);
    assert_int_equal(cluster.known_count, CLUSTER_JOBS);
    cluster_release(&cluster);
}

/* ---- layout ---- */

static void parts_never_have_more_lines_than_there_are(void **state)
{
    (void)state;
    static const size_t counts[] = { 0, 1, 2, 5, 8, 50, 1000 };
    for (size_t height = 0; height < 70; height++) {
        for (size_t i = 0; i < 343; i++) { /* each with each */
            const size_t jobs = counts[i % 7], nodes = counts[i / 7 % 7], events = counts[i / 49];
            struct frame_layout layout = frame_layout(height, jobs, nodes, events);
            const size_t title = layout.gaps ? 2 : 1;
            assert_in_range(layout.jobs + layout.nodes + layout.events, 0, height);
            assert_in_range(layout.jobs, 0, jobs + 1);
            if (layout.nodes > 0)
                assert_in_range(layout.nodes, title + 1, nodes + title);
            if (layout.events > 0)
                assert_in_range(layout.events, title + 1, events + title);
            if (height >= 20 && nodes > 0)
                assert_true(layout.nodes > 0);
            if (height >= 20 && events > 0)
                assert_true(layout.events > 0);
            if (height >= 2 && jobs > 0)
                assert_true(layout.jobs >= 2);
        }
    }
}

/* ---- pictures ---- */

struct picture {
    struct client client;
    struct cluster cluster;
    struct column columns[OUTPUT_COLUMNS_MAX + 1];
    ProtobufCMessage *jobs[CLUSTER_JOBS];
    struct frame frame;
};

static void begin(struct picture *picture, size_t jobs, size_t nodes)
{
    *picture =
        (struct picture){ .client.address = "unix:/a/home/that/has/a/long/name/cairnd.sock" };
    fill(&picture->cluster, jobs, nodes);
    for (size_t i = 0; i < 10; i++) {
        struct cluster_event event =
            event_at((int64_t)i, "something happened to \xC3\xBC somewhere");
        cluster_add_event(&picture->cluster, &event);
    }
    for (size_t i = 0; i < jobs; i++)
        picture->jobs[i] = &picture->cluster.jobs->jobs[i]->base;
    assert_int_equal(columns_choose(job_columns, "columns",
                                    "name,state,step,loss,speed,eta,workers,recoveries,reason",
                                    picture->columns),
                     EXIT_DONE);
    picture->frame = (struct frame){ .client = &picture->client,
                                     .cluster = &picture->cluster,
                                     .columns = picture->columns,
                                     .jobs = picture->jobs,
                                     .job_count = jobs,
                                     .order = "live",
                                     .width = 79,
                                     .height = 23,
                                     .keys = true };
}

static size_t count_lines(const char *words)
{
    size_t count = 0;
    for (; *words != '\0'; words++)
        count += *words == '\n';
    return count;
}

static void a_picture_has_jobs_nodes_and_events(void **state)
{
    (void)state;
    struct picture *picture = malloc(sizeof(*picture));
    assert_non_null(picture);
    begin(picture, 3, 5);
    auto_buf struct buf out;
    buf_init(&out, 1 << 20);
    assert_int_equal(frame_write(&picture->frame, &out), ST_OK);
    static const char *const expected[] = {
        "slots 1/16  nodes 4 ready, 1 lost  jobs 2 running, 1 succeeded\n", /* the lost one's not */
        "\n> job3  RUNNING",
        "\n  job1  SUCCEEDED",
        "\nNODE  STATE  SLOTS",
        "\nn0    ready    1/4",
        "job3 1, job2 1", /* no worker that is gone, no job that is over */
        "\nEVENTS\n",
        "  tiny  fault  something happened",
        "\nq ends",
    };
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        if (strstr(out.data, expected[i]) == NULL)
            fail_msg("'%s' is not in:\n%s", expected[i], out.data);
    }
    assert_true(strstr(out.data, "\nn4    lost") < strstr(out.data, "\nn0    ready"));
    assert_null(strstr(out.data, "\033"));
    assert_null(strstr(out.data, "GPU")); /* there is none */
    assert_in_range(count_lines(out.data), 10, 23);
    cluster_release(&picture->cluster);
    free(picture);
}

static void add_gpu(Cairn__V1__Node *node, uint32_t temperature)
{
    Cairn__V1__Gpu *gpu = malloc(sizeof(*gpu));
    assert_non_null(gpu);
    cairn__v1__gpu__init(gpu);
    gpu->temperature = temperature;
    gpu->memory_bytes = (uint64_t)80 << 30;
    gpu->memory_used_bytes = (uint64_t)20 << 30;
    node->gpus = realloc(node->gpus, (node->n_gpus + 1) * sizeof(Cairn__V1__Gpu *));
    assert_non_null(node->gpus);
    node->gpus[node->n_gpus++] = gpu;
}

static void gpus_are_shown_where_there_are_some(void **state)
{
    (void)state;
    struct picture *picture = malloc(sizeof(*picture));
    assert_non_null(picture);
    begin(picture, 1, 2);
    Cairn__V1__Node *node = picture->cluster.nodes->nodes[1];
    add_gpu(node, 61);
    add_gpu(node, 71);
    node->gpus_used = 1;
    picture->frame.width = 200;
    auto_buf struct buf out;
    buf_init(&out, 1 << 20);
    assert_int_equal(frame_write(&picture->frame, &out), ST_OK);
    assert_non_null(strstr(out.data, "slots 1/8  GPUs 1/2  nodes 2 ready"));
    assert_non_null(strstr(out.data, "NODE  STATE  SLOTS  GPUS  GPU HEAT             GPU MEMORY"));
    assert_non_null(
        strstr(out.data, "n1    ready    0/4   1/2      71 C  40.0 GiB of 160.0 GiB  -"));
    assert_non_null(strstr(out.data, "n0    ready    1/4     -         -                      -"));
    cluster_release(&picture->cluster);
    free(picture);
}

static void the_chosen_job_is_turned_round_and_what_others_wrote_moves_no_cursor(void **state)
{
    (void)state;
    struct picture *picture = malloc(sizeof(*picture));
    assert_non_null(picture);
    begin(picture, 2, 1);
    picture->client.color = true;
    free(picture->cluster.jobs->jobs[0]->reason);
    picture->cluster.jobs->jobs[0]->reason = text("up\033[9Aand\nover");
    struct cluster_event event = event_at(99, "a\033[9Ab");
    cluster_add_event(&picture->cluster, &event);
    auto_buf struct buf out;
    buf_init(&out, 1 << 20);
    assert_int_equal(frame_write(&picture->frame, &out), ST_OK);
    const char *chosen = strstr(out.data, "\n> \033[7mjob2  RUNNING ");
    assert_non_null(chosen); /* no other colour in it */
    assert_non_null(strstr(chosen, "up?[9Aand?over\033[0m\n"));
    assert_non_null(strstr(out.data, "\n  job1  \033[32mRUNNING\033[0m"));
    assert_null(strstr(out.data, "[9Ab"));
    cluster_release(&picture->cluster);
    free(picture);
}

static void pictures_are_no_higher_than_the_terminal_and_show_the_chosen_job(void **state)
{
    (void)state;
    struct picture *picture = malloc(sizeof(*picture));
    assert_non_null(picture);
    begin(picture, 50, 30);
    for (size_t height = 4; height < 60; height++) {
        for (size_t chosen = 0; chosen < 50; chosen += 7) {
            char name[32];
            auto_buf struct buf out;
            buf_init(&out, 1 << 20);
            picture->frame.height = height;
            picture->frame.chosen = chosen;
            assert_int_equal(frame_write(&picture->frame, &out), ST_OK);
            assert_in_range(count_lines(out.data), 1, height);
            (void)snprintf(name, sizeof(name), "\n> job%zu ", 50 - chosen);
            if (strstr(out.data, name) == NULL)
                fail_msg("height %zu, chosen %zu:\n%s", height, chosen, out.data);
        }
    }
    cluster_release(&picture->cluster);
    free(picture);
}

static void a_window_moves_no_more_than_it_has_to(void **state)
{
    (void)state;
    struct picture *picture = malloc(sizeof(*picture));
    assert_non_null(picture);
    begin(picture, 50, 0);
    static const struct {
        size_t chosen, first;
    } moves[] = { { 0, 0 }, { 3, 0 }, { 49, 46 }, { 47, 46 }, { 46, 46 }, { 45, 45 }, { 0, 0 } };
    picture->frame.height = 8; /* head, head, title, four jobs, keys */
    for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++) {
        auto_buf struct buf out;
        buf_init(&out, 1 << 20);
        picture->cluster.event_count = 0;
        picture->frame.chosen = moves[i].chosen;
        assert_int_equal(frame_write(&picture->frame, &out), ST_OK);
        assert_int_equal(picture->frame.first, moves[i].first);
    }
    cluster_release(&picture->cluster);
    free(picture);
}

static void a_coordinator_that_is_away_is_told_and_what_was_known_stays(void **state)
{
    (void)state;
    struct picture *picture = malloc(sizeof(*picture));
    assert_non_null(picture);
    begin(picture, 3, 2);
    picture->cluster.lost_ms = 1000;
    picture->cluster.lost_code = RPC_UNAVAILABLE;
    picture->frame.now_ms = 13000;
    auto_buf struct buf out;
    buf_init(&out, 1 << 20);
    assert_int_equal(frame_write(&picture->frame, &out), ST_OK);
    assert_int_equal(strncmp(out.data, "the coordinator is away, since 12s", 34), 0);
    assert_non_null(strstr(out.data, "job3  RUNNING"));
    cluster_release(&picture->cluster);
    free(picture);
}

static void an_empty_cluster_is_a_picture_too(void **state)
{
    (void)state;
    struct picture *picture = malloc(sizeof(*picture));
    assert_non_null(picture);
    begin(picture, 0, 0);
    picture->frame.width = picture->frame.height = FRAME_ANY;
    auto_buf struct buf out;
    buf_init(&out, 1 << 20);
    assert_int_equal(frame_write(&picture->frame, &out), ST_OK);
    assert_non_null(strstr(out.data, "slots 0/0  nodes none  jobs none\n"));
    cluster_release(&picture->cluster);
    free(picture);
}

/* ---- keys ---- */

static void keys_are_known_by_what_terminals_send(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        enum screen_key key;
        size_t used;
    } cases[] = {
        { "q", SCREEN_LETTER, 1 },
        { "\r", SCREEN_ENTER, 1 },
        { "\n", SCREEN_ENTER, 1 },
        { "\033[A", SCREEN_UP, 3 },
        { "\033OA", SCREEN_UP, 3 },
        { "\033[Bq", SCREEN_DOWN, 3 },
        { "\033[5~", SCREEN_PAGE_UP, 4 },
        { "\033[6~", SCREEN_PAGE_DOWN, 4 },
        { "\033[H", SCREEN_HOME, 3 },
        { "\033[1~", SCREEN_HOME, 4 },
        { "\033[4~", SCREEN_END, 4 },
        { "\033[1;5A", SCREEN_UP, 6 },
        { "\033[D", SCREEN_LEFT, 3 },
        { "\177", SCREEN_LEFT, 1 },
        { "\033q", SCREEN_ESCAPE, 1 },
        { "\033\033[A", SCREEN_ESCAPE, 1 },
        { "\f", SCREEN_AGAIN, 1 },
        { "\033[25~", SCREEN_OTHER, 5 },
        { "\xC3\xBC", SCREEN_OTHER, 1 },
        { "\001", SCREEN_OTHER, 1 },
        { "\033", SCREEN_NONE, 0 },
        { "\033[", SCREEN_NONE, 0 }, /* the rest is to come */
        { "\033[1;", SCREEN_NONE, 0 },
        { "", SCREEN_NONE, 0 },
        { "\033[1111111111111111", SCREEN_OTHER, 18 }, /* nobody sends that */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t used = 77;
        char letter = 'x';
        const enum screen_key key =
            screen_key_of(cases[i].bytes, strlen(cases[i].bytes), &used, &letter);
        if (key != cases[i].key || used != cases[i].used)
            fail_msg("case %zu: key %d, %zu bytes", i, (int)key, used);
        if (key == SCREEN_LETTER)
            assert_int_equal(letter, cases[i].bytes[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_stand_in_the_order_of_their_times_once_each),
        cmocka_unit_test(a_full_list_keeps_the_newest),
        cmocka_unit_test(saves_of_a_job_are_no_news_and_long_texts_are_cut),
        cmocka_unit_test(a_node_whose_state_changes_is_an_event),
        cmocka_unit_test(jobs_that_something_happened_to_are_asked_for_first),
        cmocka_unit_test(more_jobs_than_were_asked_for_are_dropped),
        cmocka_unit_test(parts_never_have_more_lines_than_there_are),
        cmocka_unit_test(a_picture_has_jobs_nodes_and_events),
        cmocka_unit_test(gpus_are_shown_where_there_are_some),
        cmocka_unit_test(the_chosen_job_is_turned_round_and_what_others_wrote_moves_no_cursor),
        cmocka_unit_test(pictures_are_no_higher_than_the_terminal_and_show_the_chosen_job),
        cmocka_unit_test(a_window_moves_no_more_than_it_has_to),
        cmocka_unit_test(a_coordinator_that_is_away_is_told_and_what_was_known_stays),
        cmocka_unit_test(an_empty_cluster_is_a_picture_too),
        cmocka_unit_test(keys_are_known_by_what_terminals_send),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
