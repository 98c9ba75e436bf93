#include "client/query/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/print/cell.h"
#include "client/print/format.h"
#include "client/print/job_columns.h"
#include "client/print/moment.h"
#include "client/print/node.h"
#include "common/cleanup.h"
#include "proto/text/job_state.h"

#define TABLE_BYTES  ((size_t)1 << 20)
#define GAPS_FROM    16  /* lines; a lower terminal has none to give away */
#define LOW          8   /* lines; a lower terminal has one line of head */
#define FOOT_FROM    4   /* lines; a lower terminal has none for the keys */
#define JOBS_LEAST   4   /* lines of jobs, before nodes and events have some */
#define EVENTS_SHOWN 8   /* at most, but without a bound */
#define ABOUT_CELLS  24  /* of the name that an event is about */
#define RUNS_BYTES   160 /* of what runs on a node */
#define MARK_CELLS   2   /* "> " before a job */

/* ---- how much of what ---- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Gives a part up to `wanted` lines of those that are left. Fewer than title and row are none. */
static void give(size_t *part, size_t wanted, size_t title, size_t *left)
{
    const size_t more = least(wanted > *part ? wanted - *part : 0, *left);
    if (*part + more <= title)
        return;
    *part += more;
    *left -= more;
}

struct frame_layout frame_layout(size_t height, size_t jobs, size_t nodes, size_t events)
{
    struct frame_layout out = { .gaps = height >= GAPS_FROM };
    size_t left = height;
    const size_t title = 1 + (size_t)out.gaps;
    const size_t nodes_wanted = nodes == 0 ? 0 : nodes + title;
    const size_t events_wanted = events == 0 ? 0 : events + title;
    give(&out.jobs, least(jobs + 1, JOBS_LEAST), 0, &left);
    give(&out.nodes, least(nodes_wanted, height / 3), title, &left);
    give(&out.events, least(events_wanted, height / 4), title, &left);
    give(&out.jobs, jobs + 1, 0, &left);
    give(&out.nodes, nodes_wanted, title, &left);
    give(&out.events, events_wanted, title, &left);
    return out;
}

/* ---- the head ---- */

static enum status put_first_line(const struct frame *frame, struct buf *out)
{
    const struct cluster *cluster = frame->cluster;
    char clock[MOMENT_BYTES], away[32];
    (void)moment_text(frame->wall_ms, moment_form_of(frame->client), false, frame->wall_ms, clock);
    if (cluster->lost_ms == 0) {
        return buf_printf(out, "cairn %s  %s  %s\n",
                          cluster->version == NULL ? CAIRN_VERSION : cluster->version->version,
                          clock, frame->client->address);
    }
    const double seconds = (double)(frame->now_ms - cluster->lost_ms) / 1e3;
    return buf_printf(out, "the coordinator is away, since %s; this was before  %s  %s\n",
                      format_seconds(seconds, away, sizeof(away)),
                      rpc_code_name(cluster->lost_code), frame->client->address);
}

static enum status put_count(size_t count, const char *what, bool *any, struct buf *out)
{
    if (count == 0)
        return ST_OK;
    enum status st = buf_printf(out, "%s%zu %s", *any ? ", " : "", count, what);
    *any = true;
    return st;
}

/* "jobs 3 running, 1 queued": by state, those that live first. */
static enum status put_jobs_by_state(const struct cluster *cluster, struct buf *out)
{
    static const Cairn__V1__JobState order[] = {
        CAIRN__V1__JOB_STATE__RUNNING,   CAIRN__V1__JOB_STATE__RECOVERING,
        CAIRN__V1__JOB_STATE__SAVING,    CAIRN__V1__JOB_STATE__FORMING,
        CAIRN__V1__JOB_STATE__PLACING,   CAIRN__V1__JOB_STATE__QUEUED,
        CAIRN__V1__JOB_STATE__PAUSED,    CAIRN__V1__JOB_STATE__FAILED,
        CAIRN__V1__JOB_STATE__SUCCEEDED, CAIRN__V1__JOB_STATE__STOPPED,
        CAIRN__V1__JOB_STATE__KILLED,
    };
    const Cairn__V1__ListJobsReply *list = cluster->jobs;
    bool any = false;
    enum status st = buf_append_text(out, "jobs ");
    for (size_t s = 0; st == ST_OK && s < sizeof(order) / sizeof(order[0]); s++) {
        char word[32];
        size_t count = 0;
        for (size_t i = 0; i < list->n_jobs; i++)
            count += list->jobs[i]->state == order[s];
        (void)snprintf(word, sizeof(word), "%s", job_state_name(order[s]));
        st = put_count(count, format_lower(word), &any, out);
    }
    if (st == ST_OK && !any)
        st = buf_append_text(out, "none");
    if (st == ST_OK && list->next_page_token[0] != '\0')
        st = buf_printf(out, " (the newest %zu)", list->n_jobs);
    return st;
}

static bool is_gone(const Cairn__V1__Node *node)
{
    return strcmp(node->state, "lost") == 0 || strcmp(node->state, "left") == 0 ||
           strcmp(node->state, "forgotten") == 0;
}

/* "nodes 3 ready, 1 lost": each state that there is, as they are met. */
static enum status put_nodes_by_state(const Cairn__V1__ListNodesReply *list, struct buf *out)
{
    bool any = false;
    enum status st = buf_append_text(out, "nodes ");
    for (size_t i = 0; st == ST_OK && i < list->n_nodes; i++) {
        const char *state = list->nodes[i]->state;
        size_t count = 0, first = 0;
        while (strcmp(list->nodes[first]->state, state) != 0)
            first++;
        for (size_t k = i; first == i && k < list->n_nodes; k++)
            count += strcmp(list->nodes[k]->state, state) == 0;
        st = put_count(count, state, &any, out);
    }
    return st == ST_OK && !any ? buf_append_text(out, "none") : st;
}

static enum status put_slots(const Cairn__V1__ListNodesReply *list, struct buf *out)
{
    size_t used = 0, slots = 0, gpus_used = 0, gpus = 0;
    for (size_t i = 0; i < list->n_nodes; i++) {
        const Cairn__V1__Node *node = list->nodes[i];
        if (is_gone(node))
            continue;
        used += node->used;
        slots += node->slots;
        gpus_used += node->gpus_used;
        gpus += node->n_gpus;
    }
    enum status st = buf_printf(out, "slots %zu/%zu  ", used, slots);
    return st == ST_OK && gpus > 0 ? buf_printf(out, "GPUs %zu/%zu  ", gpus_used, gpus) : st;
}

static enum status put_head(const struct frame *frame, struct buf *out)
{
    auto_buf struct buf nodes, jobs;
    buf_init(&nodes, TABLE_BYTES);
    buf_init(&jobs, TABLE_BYTES);
    enum status st = put_slots(frame->cluster->nodes, &nodes);
    if (st == ST_OK)
        st = put_nodes_by_state(frame->cluster->nodes, &nodes);
    if (st == ST_OK)
        st = put_jobs_by_state(frame->cluster, &jobs);
    if (st == ST_OK)
        st = put_first_line(frame, out);
    if (st != ST_OK || frame->height < LOW)
        return st;
    const bool fits = format_cells(nodes.data) + 2 + format_cells(jobs.data) <= frame->width;
    return buf_printf(out, "%s%s%s\n", nodes.data, fits ? "  " : "\n", jobs.data);
}

/* ---- tables ---- */

/* A line of a table as it is; chosen: turned round, where there are colours, and so without any. */
static enum status put_row(const struct frame *frame, const char *line, size_t size, bool chosen,
                           struct buf *out)
{
    enum status st = buf_append_text(out, chosen ? "> " : frame->keys ? "  " : "");
    if (!chosen || !frame->client->color)
        return st == ST_OK ? buf_printf(out, "%.*s\n", (int)size, line) : st;
    if (st == ST_OK)
        st = buf_append_text(out, "\033[7m");
    for (size_t i = 0; st == ST_OK && i < size; i++) {
        if (line[i] == '\033') {
            while (i < size && line[i] != 'm')
                i++;
        } else {
            st = buf_append(out, &line[i], 1);
        }
    }
    return st == ST_OK ? buf_append_text(out, "\033[0m\n") : st;
}

static enum status put_title(const struct frame *frame, const char *line, size_t size,
                             const char *before, struct buf *out)
{
    return buf_printf(out, "%s%s%.*s%s\n", before, frame->client->color ? "\033[1m" : "", (int)size,
                      line, output_color_off(frame->client));
}

/* The lines of a table from `first` on, `lines` of them with the title. */
static enum status put_lines(const struct frame *frame, const char *text, size_t first,
                             size_t lines, size_t chosen, struct buf *out)
{
    size_t size = strcspn(text, "\n");
    enum status st =
        put_title(frame, text, size, frame->keys && chosen != FRAME_ANY ? "  " : "", out);
    text += size + (text[size] == '\n');
    for (size_t row = 0; st == ST_OK && text[0] != '\0' && row + 1 < first + lines; row++) {
        size = strcspn(text, "\n");
        if (row >= first && chosen == FRAME_ANY)
            st = buf_printf(out, "%.*s\n", (int)size, text);
        if (row >= first && chosen != FRAME_ANY)
            st = put_row(frame, text, size, row == chosen && frame->keys, out);
        text += size + (text[size] == '\n');
    }
    return st;
}

static size_t width_of_table(const struct frame *frame)
{
    const size_t mark = frame->keys ? MARK_CELLS : 0;
    return frame->width > mark ? frame->width - mark : 1;
}

static enum status put_jobs(struct frame *frame, size_t lines, struct buf *out)
{
    const size_t seen = lines > 0 ? lines - 1 : 0;
    auto_buf struct buf table;
    buf_init(&table, TABLE_BYTES);
    if (frame->chosen < frame->first)
        frame->first = frame->chosen;
    if (frame->chosen >= frame->first + seen)
        frame->first = seen == 0 ? frame->chosen : frame->chosen + 1 - seen;
    if (frame->first + seen > frame->job_count)
        frame->first = frame->job_count > seen ? frame->job_count - seen : 0;
    if (lines == 0)
        return ST_OK;
    enum status st = output_fitted(frame->client, frame->columns, width_of_table(frame),
                                   frame->jobs, frame->job_count, &table);
    return st == ST_OK ? put_lines(frame, table.data, frame->first, lines, frame->chosen, out) : st;
}

/* ---- nodes ---- */

/* A row of the table: a node, and what the list of jobs says of it. */
struct node_row {
    char runs[RUNS_BYTES];
    const Cairn__V1__Node *node;
};

void frame_runs(const struct cluster *cluster, const char *node, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < cluster->jobs->n_jobs && used < capacity; i++) {
        const Cairn__V1__Job *job = cluster->jobs->jobs[i];
        size_t count = 0;
        for (size_t k = 0; !job_is_over(job->state) && k < job->n_workers; k++) {
            const Cairn__V1__Worker *worker = job->workers[k];
            count += strcmp(worker->state, "gone") != 0 && strcmp(worker->node, node) == 0;
        }
        for (size_t k = 0; !job_is_over(job->state) && k < job->n_spares; k++)
            count += strcmp(job->spares[k]->node, node) == 0;
        if (count > 0) {
            used += (size_t)snprintf(out + used, capacity - used, "%s%s %zu", used > 0 ? ", " : "",
                                     job->name, count);
        }
    }
}

static void cell_runs(const void *row, char *out, size_t capacity)
{
    const char *runs = ((const struct node_row *)row)->runs;
    (void)snprintf(out, capacity, "%s", runs[0] == '\0' ? "-" : runs);
}

#define OF_NODE      .part = offsetof(struct node_row, node)
#define NODE(member) OF_NODE, .offset = offsetof(Cairn__V1__Node, member)

static const struct column row_columns[] = {
    { "NODE", NODE(name), .cell = cell_text, .most = 24 },
    { "STATE", NODE(state), .cell = cell_text, .state = true },
    { "SLOTS", OF_NODE, .cell = node_cell_slots, .right = true, .less = 1 },
    { "GPUS", OF_NODE, .cell = node_cell_gpus, .right = true, .less = 3 },
    { "GPU HEAT", OF_NODE, .cell = node_cell_heat, .right = true, .less = 4 },
    { "GPU MEMORY", OF_NODE, .cell = node_cell_memory, .right = true, .less = 5 },
    { "RUNS", .cell = cell_runs, .most = 40, .less = 2 },
    { "REASON", NODE(reason), .cell = cell_text },
    { 0 },
};

/* The lower, the sooner it shows: what needs people, then what works. */
static int rank_of_node(const Cairn__V1__Node *node)
{
    if (strcmp(node->state, "ready") != 0)
        return 0;
    return node->used + node->gpus_used > 0 ? 1 : 2;
}

/* The first `most` of them. Of 1,000 nodes on a terminal only some are looked at closely. */
static size_t choose_nodes(const struct cluster *cluster, size_t most, struct node_row *out)
{
    size_t count = 0;
    for (int rank = 0; rank < 3; rank++) {
        for (size_t i = 0; i < cluster->nodes->n_nodes && count < most; i++) {
            const Cairn__V1__Node *node = cluster->nodes->nodes[i];
            if (rank_of_node(node) == rank) {
                out[count].node = node;
                frame_runs(cluster, node->name, out[count].runs, sizeof(out[count].runs));
                count++;
            }
        }
    }
    return count;
}

#define ROW_COLUMNS (sizeof(row_columns) / sizeof(row_columns[0]))

/* Chooses the columns: those of GPUs only where there are some. */
static void choose_columns(const struct cluster *cluster, struct column out[ROW_COLUMNS])
{
    size_t gpus = 0;
    for (size_t i = 0; i < cluster->nodes->n_nodes; i++)
        gpus += cluster->nodes->nodes[i]->n_gpus;
    memcpy(out, row_columns, sizeof(row_columns));
    for (struct column *c = out; c->title != NULL; c++)
        c->asked = gpus == 0 && strncmp(c->title, "GPU", 3) == 0;
}

static enum status put_nodes(const struct frame *frame, size_t lines, bool gap, struct buf *out)
{
    const size_t all = frame->cluster->nodes->n_nodes;
    if (lines == 0 || all == 0)
        return ST_OK;
    const size_t room = lines - 1 - (size_t)gap;
    const size_t most = room < all ? room - 1 : all; /* one for "and more" */
    auto_free struct node_row *rows = calloc(most + 1, sizeof(*rows));
    auto_free ProtobufCMessage **list = calloc(most + 1, sizeof(ProtobufCMessage *));
    struct column columns[ROW_COLUMNS];
    auto_buf struct buf table;
    buf_init(&table, TABLE_BYTES);
    choose_columns(frame->cluster, columns);
    if (rows == NULL || list == NULL)
        return ST_NO_MEMORY;
    const size_t count = choose_nodes(frame->cluster, most, rows);
    for (size_t i = 0; i < count; i++)
        list[i] = (ProtobufCMessage *)(void *)&rows[i];
    enum status st = buf_append_text(out, gap ? "\n" : "");
    if (st == ST_OK)
        st = output_fitted(frame->client, columns, frame->width, list, count, &table);
    if (st == ST_OK)
        st = put_lines(frame, table.data, 0, count + 1, FRAME_ANY, out);
    return st == ST_OK && count < all ? buf_printf(out, "and %zu more\n", all - count) : st;
}

/* ---- events, keys ---- */

/* Cells of what events are about, and of their kinds, so that all begin alike. */
static void measure_events(const struct cluster_event *events, size_t count, size_t *about,
                           size_t *kind)
{
    *about = *kind = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t cells = least(format_cells(events[i].about), ABOUT_CELLS);
        const size_t more = format_cells(events[i].kind);
        *about = cells > *about ? cells : *about;
        *kind = more > *kind ? more : *kind;
    }
}

static enum status put_event(const struct frame *frame, const struct cluster_event *event,
                             size_t about, size_t kind, struct buf *out)
{
    const enum moment_form form = moment_form_of(frame->client); /* the head has the offset */
    char clock[MOMENT_BYTES], text[sizeof(event->text)];
    const size_t size = format_fit(event->about, about);
    const size_t cells = least(format_cells(event->about), about);
    (void)moment_text(event->wall_ms, form == MOMENT_LOCAL ? MOMENT_SHORT : form, false,
                      frame->wall_ms, clock);
    (void)snprintf(text, sizeof(text), "%s", event->text);
    text[strcspn(text, "\r\n\033")] = '\0';
    return buf_printf(out, "%s  %.*s%*s  %-*s  %s\n", clock, (int)size, event->about,
                      (int)(about - cells), "", (int)kind, event->kind, text);
}

static enum status put_events(const struct frame *frame, size_t lines, bool gap, struct buf *out)
{
    const struct cluster *cluster = frame->cluster;
    if (lines == 0)
        return ST_OK;
    const size_t count = least(lines - 1 - (size_t)gap, cluster->event_count);
    const struct cluster_event *events = cluster->events + (cluster->event_count - count);
    size_t about = 0, kind = 0;
    measure_events(events, count, &about, &kind);
    enum status st = put_title(frame, "EVENTS", 6, gap ? "\n" : "", out);
    for (size_t i = 0; st == ST_OK && i < count; i++)
        st = put_event(frame, &events[i], about, kind, out);
    return st;
}

static const char keys_text[] =
    "\n"
    "up, down, j, k      choose a job; page up and down, home (g), end (G)\n"
    "enter               open it, as 'cairn watch' does; q goes back\n"
    "s                   the next order: each column that is shown\n"
    "r                   the other way round\n"
    "space               look again now\n"
    "q                   end (so does Ctrl-C); Ctrl-Z stops it until 'fg'\n"
    "\n"
    "Jobs that are over come last, but where a column gives the order.\n"
    "Of nodes those that aren't ready come first.\n"
    "Any key goes back.\n";

static enum status put_keys(const struct frame *frame, size_t lines, struct buf *out)
{
    const size_t seen = lines > 0 ? lines - 1 : 0;
    char range[64] = "";
    if (seen > 0 && seen < frame->job_count) {
        (void)snprintf(range, sizeof(range), "jobs %zu-%zu of %zu  ", frame->first + 1,
                       frame->first + seen, frame->job_count);
    }
    return buf_printf(out, "%sq ends  enter opens  s order: %s  h help\n", range, frame->order);
}

static size_t lines_of(const char *text)
{
    size_t count = 0;
    for (; *text != '\0'; text++)
        count += *text == '\n';
    return count;
}

enum status frame_write(struct frame *frame, struct buf *out)
{
    const struct cluster *cluster = frame->cluster;
    enum status st = put_head(frame, out);
    if (st != ST_OK)
        return st;
    const bool foot = frame->keys && frame->height >= FOOT_FROM;
    const size_t taken = lines_of(out->data) + foot;
    const size_t left = frame->height > taken ? frame->height - taken : 0;
    const size_t events = frame->height == FRAME_ANY ? cluster->event_count
                                                     : least(cluster->event_count, EVENTS_SHOWN);
    if (frame->help) {
        st = buf_append_text(out, keys_text);
        return st == ST_OK ? put_keys(frame, 0, out) : st;
    }
    struct frame_layout layout =
        frame_layout(left, frame->job_count, cluster->nodes->n_nodes, events);
    st = put_jobs(frame, layout.jobs, out);
    if (st == ST_OK)
        st = put_nodes(frame, layout.nodes, layout.gaps, out);
    if (st == ST_OK)
        st = put_events(frame, layout.events, layout.gaps, out);
    return st == ST_OK && foot ? put_keys(frame, layout.jobs, out) : st;
}
