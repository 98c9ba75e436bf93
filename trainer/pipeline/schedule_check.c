#include "trainer/pipeline/schedule_check.h"

#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/limits.h"
#include "trainer/pipeline/schedule_stuck.h"

#define BIT(kind) (1u << (kind))
#define FREE      UINT32_MAX

struct check {
    const struct pipeline_table *table;
    struct pipeline_verdict *verdict;
    uint8_t *seen;        /* [parts * micros] a bit per kind */
    uint32_t *stash;      /* [parts * micros] taken by its F */
    uint32_t *holder;     /* [stashes of a row] the micro-batch that is in it */
    uint32_t row, action; /* where we are */
};

static size_t cell_of(const struct check *c, uint32_t part, uint32_t micro)
{
    return (size_t)part * c->table->micros + micro;
}

/* ---- what is said ---- */

static char letter_of(enum pipeline_kind kind)
{
    return "FBIW"[kind];
}

/* "stage 1, share 0, action 4 (F of micro-batch 2)", or of the row alone. */
static void name_place(const struct pipeline_table *table, uint32_t row, uint32_t action,
                       struct reason *out)
{
    const struct pipeline_row *r = &table->rows[row];
    if (action >= r->count) {
        reason_set(out, "stage %u, share %u", r->stage, r->data);
        return;
    }
    const struct pipeline_action *a = &r->actions[action];
    struct reason chunk = { "" };
    if (table->chunks > 1)
        reason_set(&chunk, ", chunk %u", a->chunk);
    reason_set(out, "stage %u, share %u, action %u (%c of micro-batch %u%s)", r->stage, r->data,
               action, letter_of(a->kind), a->micro, chunk.text);
}

static bool fault(struct check *c, enum pipeline_fault what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool fault(struct check *c, enum pipeline_fault what, const char *format, ...)
{
    struct reason place, text;
    va_list list;
    va_start(list, format);
    reason_set_list(&text, format, list);
    va_end(list);
    name_place(c->table, c->row, c->action, &place);
    c->verdict->fault = what;
    c->verdict->row = c->row;
    c->verdict->action = c->action;
    reason_set(&c->verdict->reason, "%s: %s", place.text, text.text);
    return false;
}

/* ---- one row ---- */

static bool check_range(struct check *c, const struct pipeline_action *a)
{
    const struct pipeline_table *t = c->table;
    const struct pipeline_row *row = &t->rows[c->row];
    if ((unsigned)a->kind < PIPELINE_KINDS && a->chunk < t->chunks && a->micro < t->micros &&
        a->stash < row->stashes)
        return true;
    const uint32_t action = c->action;
    c->action = row->count; /* what it does can't be named */
    (void)fault(c, PIPELINE_RANGE,
                "action %u: kind %u of %u, chunk %u of %u, micro-batch %u of %u, stash %u of %u",
                action, (unsigned)a->kind, (unsigned)PIPELINE_KINDS, a->chunk, t->chunks, a->micro,
                t->micros, a->stash, row->stashes);
    c->verdict->action = action;
    return false;
}

/* Checks that an action comes once: not beside one that it stands for, and after the one it
 * needs. */
static bool check_once(struct check *c, const struct pipeline_action *a, uint32_t part)
{
    static const uint8_t needs[PIPELINE_KINDS] = { 0, BIT(PIPELINE_F), BIT(PIPELINE_F),
                                                   BIT(PIPELINE_I) };
    static const uint8_t without[PIPELINE_KINDS] = {
        BIT(PIPELINE_F), BIT(PIPELINE_B) | BIT(PIPELINE_I) | BIT(PIPELINE_W),
        BIT(PIPELINE_B) | BIT(PIPELINE_I), BIT(PIPELINE_B) | BIT(PIPELINE_W)
    };
    uint8_t *seen = &c->seen[cell_of(c, part, a->micro)];
    if (pipeline_owner(c->table, part, a->micro) != c->row)
        return fault(c, PIPELINE_FOREIGN, "a micro-batch of another worker");
    if ((*seen & without[a->kind]) != 0)
        return fault(c, PIPELINE_TWICE, "what was done before");
    if ((*seen & needs[a->kind]) != needs[a->kind])
        return fault(c, PIPELINE_EARLY, "before its %c", a->kind == PIPELINE_W ? 'I' : 'F');
    *seen |= (uint8_t)BIT(a->kind);
    return true;
}

static bool check_sorted(struct check *c, const struct pipeline_action *a, uint32_t *next)
{
    if (a->kind != PIPELINE_B && a->kind != PIPELINE_W)
        return true;
    if (a->micro < *next) {
        const uint32_t before = *next - 1, each = c->table->accumulate;
        return fault(c, PIPELINE_UNSORTED, "after that of micro-batch %u, of %s lane", before,
                     before / each == a->micro / each ? "the same" : "a later");
    }
    *next = a->micro + 1;
    return true;
}

static bool check_stash(struct check *c, const struct pipeline_action *a, uint32_t part,
                        uint32_t *live)
{
    uint32_t *stash = &c->stash[cell_of(c, part, a->micro)];
    if (a->kind == PIPELINE_F) {
        if (c->holder[a->stash] != FREE) {
            return fault(c, PIPELINE_STASH, "into stash %u, where micro-batch %u still is",
                         a->stash, c->holder[a->stash]);
        }
        c->holder[a->stash] = a->micro;
        *stash = a->stash;
        *live += 1;
    } else if (*stash != a->stash) {
        return fault(c, PIPELINE_STASH, "from stash %u, but its F left it in %u", a->stash, *stash);
    } else if (a->kind != PIPELINE_I) {
        c->holder[a->stash] = FREE;
        *live -= 1;
    }
    return true;
}

static bool check_row(struct check *c)
{
    const struct pipeline_row *row = &c->table->rows[c->row];
    uint32_t next[PIPELINE_CHUNKS_MAX] = { 0 }; /* of each chunk: what is the least now */
    uint32_t live = 0, peak = 0;
    if (row->stage >= c->table->stages || row->stashes > row->count) {
        c->action = row->count;
        return fault(c, PIPELINE_RANGE, "%u stashes for %u actions, in %u stages", row->stashes,
                     row->count, c->table->stages);
    }
    for (uint32_t i = 0; i < row->stashes; i++)
        c->holder[i] = FREE;
    for (c->action = 0; c->action < row->count; c->action++) {
        const struct pipeline_action *a = &row->actions[c->action];
        if (!check_range(c, a))
            return false;
        const uint32_t part = pipeline_part(c->table, row->stage, a->chunk);
        if (!check_once(c, a, part) || !check_sorted(c, a, &next[a->chunk]) ||
            !check_stash(c, a, part, &live))
            return false;
        peak = live > peak ? live : peak;
    }
    if (peak != row->stashes) {
        return fault(c, PIPELINE_STASH, "%u stashes are planned, %u are in use at once",
                     row->stashes, peak);
    }
    return true;
}

/* ---- all rows ---- */

/* Checks the sizes, before anything is allocated for the table, or looked up in it. */
static bool check_size(const struct pipeline_table *t, struct pipeline_verdict *verdict)
{
    const bool is_some =
        t->row_count > 0 && t->stages > 0 && t->chunks > 0 && t->micros > 0 && t->accumulate > 0;
    const bool is_bounded = t->row_count <= LIMIT_RANKS && t->stages <= LIMIT_STAGES &&
                            t->chunks <= PIPELINE_CHUNKS_MAX && t->micros <= PIPELINE_ACTIONS_MAX;
    if (is_some && is_bounded &&
        (uint64_t)t->stages * t->chunks * t->micros <= PIPELINE_ACTIONS_MAX)
        return true;
    verdict->fault = PIPELINE_RANGE;
    reason_set(&verdict->reason,
               "no table has %u rows, %u stages of %u chunks, %u micro-batches, %u of a lane",
               t->row_count, t->stages, t->chunks, t->micros, t->accumulate);
    return false;
}

static bool check_owners(struct check *c)
{
    const struct pipeline_table *t = c->table;
    for (size_t i = 0; i < (size_t)t->stages * t->micros; i++) {
        const uint32_t stage = (uint32_t)(i / t->micros);
        if (t->owner[i] >= t->row_count || t->rows[t->owner[i]].stage != stage) {
            c->verdict->fault = PIPELINE_RANGE;
            reason_set(&c->verdict->reason, "micro-batch %u is no worker's in stage %u",
                       (uint32_t)(i % t->micros), stage);
            return false;
        }
    }
    return true;
}

static bool check_sent(struct check *c)
{
    const struct pipeline_table *t = c->table;
    for (c->row = 0; c->row < t->row_count; c->row++) {
        const struct pipeline_row *row = &t->rows[c->row];
        for (c->action = 0; c->action < row->count; c->action++) {
            const struct pipeline_action *a = &row->actions[c->action];
            const uint32_t from = pipeline_input(t, row->stage, a);
            const unsigned sends =
                a->kind == PIPELINE_F ? BIT(PIPELINE_F) : BIT(PIPELINE_B) | BIT(PIPELINE_I);
            if (from != PIPELINE_NOWHERE && (c->seen[cell_of(c, from, a->micro)] & sends) == 0) {
                return fault(c, PIPELINE_UNSENT, "needs what stage %u doesn't compute",
                             from % t->stages);
            }
        }
    }
    return true;
}

static bool check_whole(struct check *c)
{
    const struct pipeline_table *t = c->table;
    for (uint32_t part = 0; part < t->stages * t->chunks; part++) {
        for (uint32_t micro = 0; micro < t->micros; micro++) {
            const unsigned seen = c->seen[cell_of(c, part, micro)];
            const bool has_backward = (seen & (BIT(PIPELINE_B) | BIT(PIPELINE_W))) != 0;
            if (has_backward) /* and with it what stands before it */
                continue;
            c->row = pipeline_owner(t, part, micro);
            c->action = t->rows[c->row].count;
            return fault(c, PIPELINE_MISSING, "no %s of micro-batch %u in chunk %u",
                         (seen & BIT(PIPELINE_F)) == 0   ? "F"
                         : (seen & BIT(PIPELINE_I)) == 0 ? "B"
                                                         : "W",
                         micro, part / t->stages);
        }
    }
    return true;
}

/* Goes from a row that doesn't end along the rows waited for, to one that waits for itself. */
static uint32_t find_circle(const struct check *c, const struct pipeline_reach *reach)
{
    uint32_t row = 0;
    while (reach[row].waits == PIPELINE_NOWHERE) {
        if (++row == c->table->row_count)
            return PIPELINE_NOWHERE;
    }
    for (uint32_t i = 0; i < c->table->row_count && reach[row].waits != PIPELINE_NOWHERE; i++)
        row = reach[row].waits;
    return row;
}

static enum status check_ends(struct check *c, struct pipeline_reach *reach)
{
    enum status st = pipeline_reach(c->table, PIPELINE_SENDS_ARE_STARTED, reach);
    if (st != ST_OK)
        return st;
    struct reason other;
    c->row = find_circle(c, reach);
    if (c->row != PIPELINE_NOWHERE) {
        const uint32_t waits = reach[c->row].waits;
        c->action = reach[c->row].at;
        name_place(c->table, waits, reach[waits].at, &other);
        (void)fault(c, PIPELINE_CIRCLE, "waits in a circle for %s", other.text);
        return ST_INVALID;
    }
    st = pipeline_reach(c->table, PIPELINE_SENDS_ARE_MET, reach);
    if (st != ST_OK)
        return st;
    c->row = find_circle(c, reach);
    c->verdict->may_meet = c->row == PIPELINE_NOWHERE;
    if (!c->verdict->may_meet) {
        struct reason place;
        const uint32_t waits = reach[c->row].waits;
        name_place(c->table, c->row, reach[c->row].at, &place);
        name_place(c->table, waits, reach[waits].at, &other);
        reason_set(&c->verdict->reason, "where sends are met, %s and %s wait for each other",
                   place.text, other.text);
    }
    return ST_OK;
}

enum status pipeline_check(const struct pipeline_table *table, struct pipeline_verdict *out)
{
    memset(out, 0, sizeof(*out));
    if (!check_size(table, out))
        return ST_INVALID;
    const size_t all = (size_t)table->stages * table->chunks * table->micros;
    uint32_t most = 1;
    for (uint32_t r = 0; r < table->row_count; r++)
        most = table->rows[r].count > most ? table->rows[r].count : most;
    auto_free uint8_t *seen = calloc(all, sizeof(*seen));
    auto_free uint32_t *stash = calloc(all, sizeof(*stash));
    auto_free uint32_t *holder = calloc(most, sizeof(*holder));
    auto_free struct pipeline_reach *reach = calloc(table->row_count, sizeof(*reach));
    if (seen == NULL || stash == NULL || holder == NULL || reach == NULL)
        return ST_NO_MEMORY;
    struct check c = {
        .table = table, .verdict = out, .seen = seen, .stash = stash, .holder = holder
    };
    if (!check_owners(&c))
        return ST_INVALID;
    for (c.row = 0; c.row < table->row_count; c.row++) {
        if (!check_row(&c))
            return ST_INVALID;
    }
    if (!check_sent(&c) || !check_whole(&c))
        return ST_INVALID;
    return check_ends(&c, reach);
}
