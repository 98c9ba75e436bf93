#include "server/machine/codec.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum kind { U32, U64, I64, BOOLEAN, ENUM, TEXT };

struct field {
    const char *name;
    size_t offset, size;
    enum kind kind;
};

#define FIELD(type, member, kind)                                                                  \
    {                                                                                              \
#member, offsetof(struct type, member), sizeof(((struct type *)0)->member), kind           \
    }

static const struct field machine[] = {
    FIELD(job_machine, state, ENUM),
    FIELD(job_machine, end_to, ENUM),
    FIELD(job_machine, intent, ENUM),
    FIELD(job_machine, generation, U32),
    FIELD(job_machine, restarts, U32),
    FIELD(job_machine, step_max, U64),
    FIELD(job_machine, total_steps, U64),
    FIELD(job_machine, steps_per_epoch, U64),
    FIELD(job_machine, restore_step, U64),
    FIELD(job_machine, restore_generation, U32),
    FIELD(job_machine, memory_generation, U32),
    FIELD(job_machine, memory_from, U32),
    FIELD(job_machine, memory_decided, BOOLEAN),
    FIELD(job_machine, progressed, BOOLEAN),
    FIELD(job_machine, committed, BOOLEAN),
    FIELD(job_machine, streak, U32),
    FIELD(job_machine, barren, U32),
    FIELD(job_machine, commitless, U32),
    FIELD(job_machine, budget_kind, ENUM),
    FIELD(job_machine, budget_step, U64),
    FIELD(job_machine, budget_phase, TEXT),
    FIELD(job_machine, budget_used, U32),
    FIELD(job_machine, damage_suspected, BOOLEAN),
    FIELD(job_machine, numeric_seen, BOOLEAN),
    FIELD(job_machine, numeric_step, U64),
    FIELD(job_machine, saved_wall, I64),
    FIELD(job_machine, cost_us, I64),
    FIELD(job_machine, write_ms, I64),
    FIELD(job_machine, interval_ms, I64),
    FIELD(job_machine, failures, U32),
    FIELD(job_machine, state_bytes, U64),
    FIELD(job_machine, refused, U64),
    FIELD(job_machine, refused_row, U32),
    FIELD(job_machine, refused_reason, TEXT),
    FIELD(job_machine, swept, U32),
    FIELD(job_machine, train_ms, I64),
    FIELD(job_machine, submitted_wall, I64),
    FIELD(job_machine, started_wall, I64),
    FIELD(job_machine, ended_wall, I64),
    FIELD(job_machine, token, TEXT),
    FIELD(job_machine, reason, TEXT),
    FIELD(job_machine, final_digest, TEXT),
    FIELD(job_machine, store_mark, TEXT),
};

static const struct field fault[] = {
    FIELD(jm_fault, kind, ENUM),       FIELD(jm_fault, rank, U32),   FIELD(jm_fault, step, U64),
    FIELD(jm_fault, outside, BOOLEAN), FIELD(jm_fault, phase, TEXT), FIELD(jm_fault, message, TEXT),
};

static const struct field rank[] = {
    FIELD(jm_rank, node, TEXT),
    FIELD(jm_rank, slot, U32),
    FIELD(jm_rank, gone, BOOLEAN),
    FIELD(jm_rank, holder, U32),
};

static const struct field announced[] = {
    FIELD(jm_announced, step, U64),
    FIELD(jm_announced, exit, BOOLEAN),
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* ---- one field ---- */

/* Fault messages come from outside: what isn't UTF-8 is replaced, never refused. */
static json_t *text_value(const char *text)
{
    json_t *value = json_string(text);
    if (value)
        return value;
    char clean[LIMIT_REASON];
    size_t size = strnlen(text, sizeof clean - 1);
    for (size_t i = 0; i < size; i++)
        clean[i] = (char)((text[i] & 0x80) ? '?' : text[i]);
    clean[size] = '\0';
    return json_string(clean);
}

static json_t *get(const void *object, const struct field *field)
{
    const char *at = (const char *)object + field->offset;
    switch (field->kind) {
    case U32:
    case ENUM: {
        uint32_t value;
        memcpy(&value, at, sizeof value);
        return json_integer(value);
    }
    case U64:
    case I64: {
        int64_t value;
        memcpy(&value, at, sizeof value);
        return json_integer(value);
    }
    case BOOLEAN:
        return json_boolean(*(const bool *)at);
    case TEXT:
        return text_value(at);
    }
    return NULL;
}

static bool set(void *object, const struct field *field, const json_t *value)
{
    char *at = (char *)object + field->offset;
    switch (field->kind) {
    case U32:
    case ENUM: {
        if (!json_is_integer(value))
            return false;
        uint32_t number = (uint32_t)json_integer_value(value);
        memcpy(at, &number, sizeof number);
        return true;
    }
    case U64:
    case I64: {
        if (!json_is_integer(value))
            return false;
        int64_t number = json_integer_value(value);
        memcpy(at, &number, sizeof number);
        return true;
    }
    case BOOLEAN:
        if (!json_is_boolean(value))
            return false;
        *(bool *)at = json_is_true(value);
        return true;
    case TEXT: {
        const char *text = json_string_value(value);
        if (!text || strlen(text) >= field->size)
            return false;
        memcpy(at, text, strlen(text) + 1);
        return true;
    }
    }
    return false;
}

/* Owned by the caller; NULL: no memory. */
static json_t *encode(const void *object, const struct field *fields, size_t count)
{
    json_t *out = json_object();
    for (size_t i = 0; out && i < count; i++) {
        if (json_object_set_new(out, fields[i].name, get(object, &fields[i])) != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

static bool decode(const json_t *in, void *object, const struct field *fields, size_t count)
{
    if (!json_is_object(in))
        return false;
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(in, fields[i].name);
        if (value && !set(object, &fields[i], value))
            return false;
    }
    return true;
}

/* ---- lists ---- */

static json_t *encode_all(const void *objects, size_t size, size_t n, const struct field *fields,
                          size_t count)
{
    json_t *out = json_array();
    for (size_t i = 0; out && i < n; i++) {
        json_t *one = encode((const char *)objects + i * size, fields, count);
        if (json_array_append_new(out, one) != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

static bool decode_all(const json_t *in, void *objects, size_t size, size_t n_max,
                       const struct field *fields, size_t count)
{
    if (!json_is_array(in) || json_array_size(in) > n_max)
        return false;
    for (size_t i = 0; i < json_array_size(in); i++) {
        if (!decode(json_array_get(in, i), (char *)objects + i * size, fields, count))
            return false;
    }
    return true;
}

static const struct field number_fields[] = { { "n", 0, sizeof(int64_t), I64 } };
static const struct field name_fields[] = { { "name", 0, LIMIT_NAME, TEXT } };

struct list {
    const char *name;
    size_t offset;                    /* in the machine; of ranks: of the pointer */
    size_t size, n_max, count_offset; /* count_offset 0: always n_max */
    const struct field *fields;
    size_t count;
};

static const struct list lists[] = {
    { "cause", offsetof(struct job_machine, cause), sizeof(struct jm_fault), 1, 0, fault,
      COUNT(fault) },
    { "first_cause", offsetof(struct job_machine, first_cause), sizeof(struct jm_fault), 1, 0,
      fault, COUNT(fault) },
    { "announced", offsetof(struct job_machine, announced), sizeof(struct jm_announced),
      JM_ANNOUNCED_MAX, 0, announced, COUNT(announced) },
    { "lost_ms", offsetof(struct job_machine, lost_ms), sizeof(int64_t), LOST_COUNT, 0,
      number_fields, 1 },
    { "skip", offsetof(struct job_machine, skip), sizeof(uint64_t), JM_SKIPS_MAX,
      offsetof(struct job_machine, skip_count), number_fields, 1 },
    { "excluded", offsetof(struct job_machine, excluded), LIMIT_NAME, JM_EXCLUDED_MAX,
      offsetof(struct job_machine, excluded_count), name_fields, 1 },
    { "suspects", offsetof(struct job_machine, suspects), LIMIT_NAME, JM_SUSPECTS_MAX,
      offsetof(struct job_machine, suspect_count), name_fields, 1 },
};

static bool add(json_t *root, const char *name, json_t *value)
{
    return json_object_set_new(root, name, value) == 0;
}

static json_t *encode_machine(const struct job_machine *m)
{
    json_t *root = encode(m, machine, COUNT(machine));
    bool ok = root != NULL;
    for (size_t i = 0; ok && i < COUNT(lists); i++) {
        const struct list *list = &lists[i];
        uint32_t n = (uint32_t)list->n_max;
        if (list->count_offset)
            memcpy(&n, (const char *)m + list->count_offset, sizeof n);
        ok = add(
            root, list->name,
            encode_all((const char *)m + list->offset, list->size, n, list->fields, list->count));
    }
    ok = ok && add(root, "ranks",
                   encode_all(m->ranks, sizeof m->ranks[0], m->config.ranks, rank, COUNT(rank)));
    if (ok)
        return root;
    json_decref(root);
    return NULL;
}

enum status job_encode(const struct job_machine *m, struct buf *out)
{
    json_t *root = encode_machine(m);
    if (!root)
        return ST_NO_MEMORY;
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (!text)
        return ST_NO_MEMORY;
    enum status st = buf_append_text(out, text);
    free(text);
    return st;
}

static bool decode_machine(const json_t *root, struct job_machine *m)
{
    if (!decode(root, m, machine, COUNT(machine)))
        return false;
    for (size_t i = 0; i < COUNT(lists); i++) {
        const struct list *list = &lists[i];
        const json_t *in = json_object_get(root, list->name);
        if (!in)
            continue;
        if (!decode_all(in, (char *)m + list->offset, list->size, list->n_max, list->fields,
                        list->count))
            return false;
        uint32_t n = (uint32_t)json_array_size(in);
        if (list->count_offset)
            memcpy((char *)m + list->count_offset, &n, sizeof n);
    }
    const json_t *ranks = json_object_get(root, "ranks");
    return decode_all(ranks, m->ranks, sizeof m->ranks[0], m->config.ranks, rank, COUNT(rank)) &&
           m->state > JOB_NONE && m->state <= JOB_KILLED && m->end_to <= JOB_KILLED;
}

enum status job_decode(struct job_machine *m, const char *text)
{
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!root)
        return ST_CORRUPT;
    m->swept = UINT32_MAX; /* of a job that an older version began: left as it is */
    bool ok = decode_machine(root, m);
    json_decref(root);
    m->dirty = false;
    return ok ? ST_OK : ST_CORRUPT;
}
