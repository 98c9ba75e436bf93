/* top: jobs, nodes and events on the whole terminal, until somebody ends it; else one picture. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/base/interrupt.h"
#include "client/print/columns.h"
#include "client/print/format.h"
#include "client/print/job_columns.h"
#include "client/print/screen.h"
#include "client/query/commands.h"
#include "client/query/frame.h"
#include "client/query/watch.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "proto/text/job_state.h"

#define INTERVAL_MS       2000
#define INTERVAL_MS_LEAST 200
#define FRAME_BYTES       ((size_t)4 << 20)
#define PAGE_LINES        10

static const char columns_shown[] = "name,state,step,loss,speed,eta,workers,recoveries,reason";

/* Where the table of jobs has no order of its own: those that live first. */
static double value_over(const void *state)
{
    return job_is_over(*(const Cairn__V1__JobState *)state);
}

static const struct column over_column = { "live", .offset = offsetof(Cairn__V1__Job, state),
                                           .value = value_over };

struct top {
    struct client *client;
    struct screen screen;
    struct cluster cluster;
    struct column columns[OUTPUT_COLUMNS_MAX + 1];
    struct order said;       /* --sort; count 0: none */
    size_t key;              /* the order: 0: as said, else that of column key - 1 */
    bool reverse;            /* the other way round */
    ProtobufCMessage **jobs; /* in order, CLUSTER_JOBS at most; borrowed from the cluster */
    size_t job_count;
    size_t chosen, first;
    char chosen_id[LIMIT_NAME]; /* stays chosen, wherever it moves to */
    bool help;
    enum exit_code code;
};

/* ---- order ---- */

static struct order order_of(const struct top *top)
{
    struct order order = top->said;
    if (top->key > 0)
        order = (struct order){ .keys = { &top->columns[top->key - 1] }, .count = 1 };
    if (order.count == 0)
        order = (struct order){ .keys = { &over_column }, .count = 1 };
    for (size_t i = 0; top->reverse && i < order.count; i++)
        order.reverse[i] = !order.reverse[i];
    return order;
}

static const char *name_of_order(const struct top *top, char *out, size_t capacity)
{
    const struct order order = order_of(top);
    (void)snprintf(out, capacity, "%s%s", order.reverse[0] ? "-" : "", order.keys[0]->title);
    return format_lower(out);
}

static const char *id_at(const struct top *top, size_t at)
{
    return ((const Cairn__V1__Job *)top->jobs[at])->id;
}

static void choose(struct top *top, size_t at)
{
    top->chosen = top->job_count == 0 ? 0 : at < top->job_count ? at : top->job_count - 1;
    if (top->job_count > 0)
        (void)snprintf(top->chosen_id, sizeof(top->chosen_id), "%s", id_at(top, top->chosen));
}

/* The jobs of the last look; the chosen one stays chosen, and one that is gone is the next. */
static enum status put_in_order(struct top *top)
{
    const Cairn__V1__ListJobsReply *list = top->cluster.jobs;
    const struct order order = order_of(top);
    top->job_count = list->n_jobs;
    for (size_t i = 0; i < list->n_jobs; i++)
        top->jobs[i] = &list->jobs[i]->base;
    enum status st = columns_sort(&order, top->jobs, top->job_count);
    size_t at = 0;
    while (at < top->job_count && strcmp(id_at(top, at), top->chosen_id) != 0)
        at++;
    choose(top, at < top->job_count ? at : top->chosen);
    return st;
}

/* ---- pictures ---- */

static enum status write_frame(struct top *top, struct frame *frame, struct buf *out)
{
    char order[64];
    frame->client = top->client;
    frame->cluster = &top->cluster;
    frame->columns = top->columns;
    frame->jobs = top->jobs;
    frame->job_count = top->job_count;
    frame->order = name_of_order(top, order, sizeof(order));
    frame->help = top->help;
    frame->chosen = top->chosen;
    frame->first = top->first;
    frame->now_ms = clock_mono_ms(clock_system());
    frame->wall_ms = clock_wall_ms(clock_system());
    enum status st = frame_write(frame, out);
    top->first = frame->first;
    return st;
}

static void paint(struct top *top)
{
    struct frame frame = { .keys = true };
    auto_buf struct buf out;
    buf_init(&out, FRAME_BYTES);
    screen_size(&frame.width, &frame.height);
    if (write_frame(top, &frame, &out) == ST_OK)
        screen_paint(&top->screen, out.data);
}

/* One picture, of all there is; on a terminal as wide as that. */
static enum exit_code print_once(struct top *top)
{
    struct frame frame = { .width = FRAME_ANY, .height = FRAME_ANY };
    auto_buf struct buf out;
    size_t height = 0;
    buf_init(&out, FRAME_BYTES);
    if (top->client->terminal)
        screen_size(&frame.width, &height);
    enum status st = put_in_order(top);
    if (st == ST_OK)
        st = write_frame(top, &frame, &out);
    if (st == ST_OK)
        return output_cut(top->client, frame.width, out.data);
    client_error("can't print: %s", status_string(st));
    return EXIT_INTERNAL;
}

/* ---- keys ---- */

/* s: the next order, of the columns in their order; after the last one as said first. */
static void next_order(struct top *top)
{
    top->key = top->columns[top->key].title == NULL ? 0 : top->key + 1;
    top->reverse = false;
}

static void open_chosen(struct top *top)
{
    if (top->job_count == 0)
        return;
    char id[LIMIT_NAME];
    (void)snprintf(id, sizeof(id), "%s", top->chosen_id);
    if (watch_on_screen(top->client, id, &top->screen) == EXIT_DETACHED)
        top->code = EXIT_DETACHED;
}

/* What keys without a letter stand for. */
static char letter_of(enum screen_key key, char letter)
{
    static const char letters[] = {
        [SCREEN_UP] = 'k',        [SCREEN_DOWN] = 'j',   [SCREEN_PAGE_UP] = 'b',
        [SCREEN_PAGE_DOWN] = 'f', [SCREEN_HOME] = 'g',   [SCREEN_END] = 'G',
        [SCREEN_ENTER] = '\n',    [SCREEN_RIGHT] = '\n', [SCREEN_LEAVE] = 'q',
        [SCREEN_OTHER] = '\0'
    };
    if (key == SCREEN_LETTER)
        return letter;
    return letters[key];
}

/* false: to the end. look: at once. */
static bool take_letter(struct top *top, char letter, bool *look)
{
    const size_t at = top->chosen;
    switch (letter) {
    case 'q':
    case 'Q':
        return false;
    case 'k':
        choose(top, at > 0 ? at - 1 : 0);
        break;
    case 'j':
        choose(top, at + 1);
        break;
    case 'b':
        choose(top, at > PAGE_LINES ? at - PAGE_LINES : 0);
        break;
    case 'f':
        choose(top, at + PAGE_LINES);
        break;
    case 'g':
        choose(top, 0);
        break;
    case 'G':
        choose(top, SIZE_MAX);
        break;
    case 's':
        next_order(top);
        break;
    case 'r':
        top->reverse = !top->reverse;
        break;
    case 'h':
    case '?':
        top->help = true;
        break;
    case '\n':
        open_chosen(top);
        *look = true;
        break;
    case ' ':
        *look = true;
        break;
    default:
        break;
    }
    return true;
}

static bool take_key(struct top *top, enum screen_key key, char letter, bool *look)
{
    if (top->help && key != SCREEN_NONE && key != SCREEN_AGAIN && key != SCREEN_LEAVE) {
        top->help = false;
        return true;
    }
    return take_letter(top, letter_of(key, letter), look);
}

static void run(struct top *top, int64_t interval_ms)
{
    int64_t next_ms = clock_mono_ms(clock_system()) + interval_ms;
    for (bool on = true; on && top->code == EXIT_DONE;) {
        char letter = '\0';
        bool look = false;
        if (put_in_order(top) != ST_OK)
            top->code = EXIT_INTERNAL;
        paint(top);
        const int64_t left_ms = next_ms - clock_mono_ms(clock_system());
        enum screen_key key = screen_wait(&top->screen, left_ms, &letter);
        on = take_key(top, key, letter, &look);
        if (interrupt_came(top->client))
            top->code = EXIT_DETACHED;
        if (on && top->code == EXIT_DONE && (look || clock_mono_ms(clock_system()) >= next_ms)) {
            cluster_look(top->client, &top->cluster);
            next_ms = clock_mono_ms(clock_system()) + interval_ms;
        }
    }
}

/* ---- the command ---- */

static enum exit_code read_call(struct top *top)
{
    const struct arguments *args = &top->client->args;
    const char *words = args->columns == NULL ? columns_shown : args->columns;
    if (args->output != OUTPUT_TABLE && args->output != OUTPUT_WIDE) {
        client_error("top is for people; 'cairn ps -o json' and 'cairn node ls -o json' have what "
                     "it shows");
        return EXIT_USAGE;
    }
    if (args->interval_ms >= 0 && args->interval_ms < INTERVAL_MS_LEAST) {
        client_error("--interval: at least %d ms", INTERVAL_MS_LEAST);
        return EXIT_USAGE;
    }
    enum exit_code code = columns_choose(job_columns, "columns", words, top->columns);
    if (code == EXIT_DONE && args->sort != NULL)
        code = columns_order(job_columns, "sort", args->sort, &top->said);
    return code;
}

static enum exit_code show(struct top *top)
{
    struct client *client = top->client;
    const bool once = client->args.once || !client->terminal;
    const int64_t said = client->args.interval_ms;
    if (!once && !(interrupt_catch(client) && screen_catch(&top->screen))) {
        client_error("can't watch for Ctrl-C");
        return EXIT_INTERNAL;
    }
    enum exit_code code = cluster_open(client, &top->cluster);
    if (code != EXIT_DONE)
        return code;
    if (once)
        return print_once(top);
    screen_enter(&top->screen);
    run(top, said >= 0 ? said : INTERVAL_MS);
    return top->code;
}

enum exit_code cmd_top(struct client *client)
{
    if (columns_asked(client))
        return columns_help(job_columns);
    auto_free struct top *top = calloc(1, sizeof(*top));
    auto_free ProtobufCMessage **jobs = calloc(CLUSTER_JOBS, sizeof(ProtobufCMessage *));
    if (top == NULL || jobs == NULL) {
        client_error("%s", status_string(ST_NO_MEMORY));
        return EXIT_INTERNAL;
    }
    top->client = client;
    top->screen.client = client;
    top->jobs = jobs;
    enum exit_code code = read_call(top);
    if (code == EXIT_DONE)
        code = show(top);
    screen_release(&top->screen);
    cluster_release(&top->cluster);
    return code;
}
