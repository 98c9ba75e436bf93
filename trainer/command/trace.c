#include "trainer/command/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/io.h"

#define ITEMS_MAX (1u << 18) /* on the stack, or that are referred to again */
#define RANKS_MAX 64u        /* whose dumps are compared */

/* ---- the pickle ---- */

enum kind { OTHER, MARK, NUMBER, TEXT, FLAG };

/* A value: what can't matter is OTHER. */
struct item {
    enum kind kind;
    uint32_t size;    /* of a text */
    const char *text; /* of a text; of a pair of texts its second one, which is TEXT, too */
    int64_t number;   /* or flag */
};

struct items {
    struct item *at; /* owned */
    uint32_t count, room;
};

struct pickle {
    const uint8_t *at, *end;
    struct items stack, memo;
    struct trace_last last;
};

static enum status put(struct items *list, uint32_t place, struct item item)
{
    if (place >= ITEMS_MAX)
        return ST_FULL;
    if (place >= list->room) {
        const uint32_t room = place < 512 ? 1024 : 2 * place;
        struct item *more = realloc(list->at, room * sizeof(*more));
        if (more == NULL)
            return ST_NO_MEMORY;
        memset(more + list->room, 0, (room - list->room) * sizeof(*more));
        list->at = more;
        list->room = room;
    }
    list->at[place] = item;
    list->count = place + 1 > list->count ? place + 1 : list->count;
    return ST_OK;
}

static enum status push(struct pickle *r, struct item item)
{
    return put(&r->stack, r->stack.count, item);
}

/* Takes a number of so many bytes, little-endian. */
static bool take(struct pickle *r, size_t bytes, uint64_t *out)
{
    *out = 0;
    if ((size_t)(r->end - r->at) < bytes)
        return false;
    for (size_t i = 0; i < bytes; i++)
        *out |= i < sizeof(*out) ? (uint64_t)r->at[i] << (8 * i) : 0;
    r->at += bytes;
    return true;
}

static enum status push_number(struct pickle *r, size_t bytes)
{
    uint64_t number = 0;
    if (!take(r, bytes, &number))
        return ST_CORRUPT;
    return push(r, (struct item){ .kind = NUMBER, .number = (int64_t)number });
}

static enum status push_text(struct pickle *r)
{
    uint64_t size = 0;
    if (!take(r, 4, &size) || size > (size_t)(r->end - r->at))
        return ST_CORRUPT;
    const struct item item = { .kind = TEXT, .size = (uint32_t)size, .text = (const char *)r->at };
    r->at += size;
    return push(r, item);
}

static enum status memorize(struct pickle *r, size_t bytes)
{
    uint64_t place = 0;
    if (!take(r, bytes, &place) || r->stack.count == 0)
        return ST_CORRUPT;
    return put(&r->memo, place < ITEMS_MAX ? (uint32_t)place : ITEMS_MAX,
               r->stack.at[r->stack.count - 1]);
}

static enum status recall(struct pickle *r, size_t bytes)
{
    uint64_t place = 0;
    if (!take(r, bytes, &place) || place >= r->memo.count)
        return ST_CORRUPT;
    return push(r, r->memo.at[place]);
}

/* Returns the last item; one that says nothing if there is none. */
static const struct item *top(const struct pickle *r)
{
    static const struct item none = { .kind = OTHER };
    return r->stack.at != NULL && r->stack.count > 0 ? &r->stack.at[r->stack.count - 1] : &none;
}

/* Replaces the last `count` items by one. */
static enum status fold(struct pickle *r, uint32_t count, struct item item)
{
    if (r->stack.count < count)
        return ST_CORRUPT;
    r->stack.count -= count;
    return push(r, item);
}

/* Finds the mark that lies last; false: there is none. */
static bool find_mark(const struct pickle *r, uint32_t *out)
{
    uint32_t at = r->stack.count;
    while (at > 0 && r->stack.at[at - 1].kind != MARK)
        at--;
    *out = at - 1;
    return at > 0;
}

/* Drops all from the mark on; what lies before it has got them. */
static enum status drop_to_mark(struct pickle *r, bool is_tuple)
{
    uint32_t mark = 0;
    if (!find_mark(r, &mark) || (mark == 0 && !is_tuple))
        return ST_CORRUPT;
    r->stack.count = mark;
    return is_tuple ? push(r, (struct item){ .kind = OTHER }) : ST_OK;
}

/* ---- what it says ---- */

static bool is_text(const struct item *item, const char *text)
{
    return item->kind == TEXT && item->size == strlen(text) &&
           memcmp(item->text, text, item->size) == 0;
}

/* Looks at the pairs of a dictionary: one that is an entry of the recorder is noted. */
static void look(struct pickle *r, const struct item *pairs, uint32_t count)
{
    const struct item *name = NULL, *number = NULL;
    bool of_all = false, is_message = false;
    for (uint32_t i = 0; i + 1 < count; i += 2) {
        const struct item *key = &pairs[i], *value = &pairs[i + 1];
        if (is_text(key, "collective_seq_id") && value->kind == NUMBER)
            number = value;
        if (is_text(key, "profiling_name") && value->kind == TEXT)
            name = value;
        if (is_text(key, "is_p2p"))
            is_message = value->kind == FLAG && value->number != 0;
        if (is_text(key, "process_group"))
            of_all = is_text(value, "default_pg");
    }
    if (name == NULL || number == NULL || !of_all || is_message || number->number <= 0 ||
        (uint64_t)number->number < r->last.number)
        return;
    r->last.number = (uint64_t)number->number;
    const uint32_t most = sizeof(r->last.name) - 1;
    const uint32_t size = name->size < most ? name->size : most;
    memcpy(r->last.name, name->text, size);
    r->last.name[size] = '\0';
    for (uint32_t i = 0; i < size; i++) { /* it is printed */
        if (r->last.name[i] < ' ' || r->last.name[i] > '~')
            r->last.name[i] = '?';
    }
}

static enum status set_items(struct pickle *r)
{
    uint32_t mark = 0;
    if (!find_mark(r, &mark))
        return ST_CORRUPT;
    look(r, &r->stack.at[mark + 1], r->stack.count - mark - 1);
    return drop_to_mark(r, false);
}

/* One instruction, as Python's module pickletools describes it. Those that name a class or call
 * something, as all others, are none of a dump's. */
static enum status step(struct pickle *r, uint8_t code)
{
    const struct item other = { .kind = OTHER };
    uint64_t size = 0;
    switch (code) {
    case 0x80: /* PROTO */
        return take(r, 1, &size) ? ST_OK : ST_CORRUPT;
    case '}': /* EMPTY_DICT */
    case ']': /* EMPTY_LIST */
    case ')': /* EMPTY_TUPLE */
    case 'N': /* NONE */
        return push(r, other);
    case '(': /* MARK */
        return push(r, (struct item){ .kind = MARK });
    case 0x88: /* NEWTRUE */
    case 0x89: /* NEWFALSE */
        return push(r, (struct item){ .kind = FLAG, .number = code == 0x88 });
    case 'X': /* BINUNICODE */
        return push_text(r);
    case 'K': /* BININT1 */
        return push_number(r, 1);
    case 'M': /* BININT2 */
        return push_number(r, 2);
    case 'J': /* BININT: a negative one is none of ours */
        return push_number(r, 4);
    case 'G': /* BINFLOAT */
        return take(r, 8, &size) ? push(r, other) : ST_CORRUPT;
    case 0x8a: /* LONG1 */
        return take(r, 1, &size) ? push_number(r, (size_t)size) : ST_CORRUPT;
    case 'q': /* BINPUT */
        return memorize(r, 1);
    case 'r': /* LONG_BINPUT */
        return memorize(r, 4);
    case 'h': /* BINGET */
        return recall(r, 1);
    case 'j': /* LONG_BINGET */
        return recall(r, 4);
    case 0x85: /* TUPLE1 */
        return fold(r, 1, other);
    case 0x86: /* TUPLE2: of a group's number and its name the name counts */
        return fold(r, 2, *top(r));
    case 0x87: /* TUPLE3 */
        return fold(r, 3, other);
    case 't': /* TUPLE */
        return drop_to_mark(r, true);
    case 'e': /* APPENDS */
        return drop_to_mark(r, false);
    case 'u': /* SETITEMS */
        return set_items(r);
    default:
        return ST_CORRUPT;
    }
}

enum status trace_read(const void *bytes, size_t size, struct trace_last *out)
{
    struct pickle r = { .at = bytes, .end = (const uint8_t *)bytes + size };
    enum status st = size > TRACE_BYTES_MAX ? ST_FULL : ST_OK;
    bool stops = false;
    while (st == ST_OK && !stops) {
        const bool some = r.at < r.end;
        stops = some && *r.at == '.';
        if (!some) {
            st = ST_CORRUPT;
        } else if (!stops) {
            st = step(&r, *r.at++);
        }
    }
    *out = r.last;
    free(r.stack.at);
    free(r.memo.at);
    return st;
}

/* ---- the ranks' ---- */

static const char *find_prefix(char *const *env)
{
    static const char *const names[] = { "TORCH_FR_DUMP_TEMP_FILE=",
                                         "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=" };
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        for (size_t i = 0; env[i] != NULL; i++) {
            if (strncmp(env[i], names[n], strlen(names[n])) == 0)
                return env[i] + strlen(names[n]);
        }
    }
    return NULL;
}

static bool read_rank(const char *prefix, uint32_t rank, int64_t since_wall_ms,
                      struct trace_last *out)
{
    char path[LIMIT_PATH];
    auto_free char *bytes = NULL;
    size_t size = 0;
    struct io_stat about;
    const struct io *io = io_system();
    const int length = snprintf(path, sizeof(path), "%s%u", prefix, rank);
    if (length <= 0 || (size_t)length >= sizeof(path) ||
        io->stat(io->self, path, &about) != ST_OK || about.is_dir || about.is_special ||
        about.mtime_ms < since_wall_ms)
        return false;
    return io_read_file(io, path, TRACE_BYTES_MAX, &bytes, &size) == ST_OK &&
           trace_read(bytes, size, out) == ST_OK;
}

bool trace_explain(char *const *env, uint32_t size, int64_t since_wall_ms, struct reason *out)
{
    struct trace_last newest = { .number = 0 };
    uint64_t number[RANKS_MAX];
    bool known[RANKS_MAX] = { false };
    char ranks[128] = "";
    size_t used = 0;
    const char *prefix = find_prefix(env);
    const bool looks = prefix != NULL && prefix[0] == '/';
    for (uint32_t i = 0; looks && i < size && i < RANKS_MAX; i++) {
        struct trace_last last;
        known[i] = read_rank(prefix, i, since_wall_ms, &last);
        number[i] = known[i] ? last.number : 0;
        if (known[i] && last.number > newest.number)
            newest = last;
    }
    for (uint32_t i = 0; i < size && i < RANKS_MAX && used < sizeof(ranks) - 16; i++) {
        if (known[i] && number[i] < newest.number) {
            used += (size_t)snprintf(ranks + used, sizeof(ranks) - used, "%s%u",
                                     used > 0 ? ", " : "", i);
        }
    }
    if (used == 0)
        return false;
    reason_set(out, "collective %llu (%s) was never entered by rank %s",
               (unsigned long long)newest.number, newest.name, ranks);
    return true;
}
