#include "jobspec/amount.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/check.h"
#include "jobspec/text/number.h"
#include "jobspec/text/suggest.h"

/* Within a group the unit that is printed comes first among equals. */
static const struct {
    const char *word;
    unsigned group; /* UNIT_* */
    double factor;  /* to steps, epochs, milliseconds, bytes */
} units[] = {
    { "steps", UNIT_STEPS, 1 },    { "step", UNIT_STEPS, 1 },     { "epochs", UNIT_EPOCHS, 1 },
    { "epoch", UNIT_EPOCHS, 1 },   { "ms", UNIT_TIME, 1 },        { "s", UNIT_TIME, 1e3 },
    { "m", UNIT_TIME, 60e3 },      { "min", UNIT_TIME, 60e3 },    { "h", UNIT_TIME, 3600e3 },
    { "d", UNIT_TIME, 86400e3 },   { "B", UNIT_BYTES, 1 },        { "kB", UNIT_BYTES, 1e3 },
    { "KiB", UNIT_BYTES, 1024 },   { "MB", UNIT_BYTES, 1e6 },     { "MiB", UNIT_BYTES, 1048576 },
    { "GB", UNIT_BYTES, 1e9 },     { "GiB", UNIT_BYTES, 0x1p30 }, { "TB", UNIT_BYTES, 1e12 },
    { "TiB", UNIT_BYTES, 0x1p40 },
};

#define UNIT_COUNT (sizeof(units) / sizeof(units[0]))

/* How a group of units is described. Bytes are never a duration: their unit says nothing. */
static const struct group {
    unsigned group;
    enum jobspec_unit unit;
    const char *units;   /* the list of them */
    const char *example; /* behind a number */
    const char *base;    /* what can't be cut further; NULL: as it was written */
} groups[] = {
    { UNIT_STEPS, JOBSPEC_STEPS, "steps", "steps", NULL },
    { UNIT_EPOCHS, JOBSPEC_EPOCHS, "epochs", "epochs", NULL },
    { UNIT_TIME, JOBSPEC_MS, "ms, s, m, h, d", "s", "milliseconds" },
    { UNIT_BYTES, JOBSPEC_STEPS, "B, KiB, MiB, GiB, TiB", "MiB", "bytes" },
};

#define GROUP_COUNT (sizeof(groups) / sizeof(groups[0]))

/* Other words that people use for units, in either case. */
static const struct {
    const char *word, *unit;
} synonyms[] = {
    { "sec", "s" },  { "second", "s" }, { "seconds", "s" }, { "minute", "m" }, { "minutes", "m" },
    { "hour", "h" }, { "hours", "h" },  { "day", "d" },     { "days", "d" },   { "bytes", "B" },
    { "K", "KiB" },  { "M", "MiB" },    { "G", "GiB" },     { "T", "TiB" },
};

/* Joins what each of the field's groups says: "A, B or C". number: before each, in quotes. */
static void join_units(const struct field *field, const double *number, char *out, size_t capacity)
{
    size_t left = 0;
    size_t used = 0;
    for (size_t i = 0; i < GROUP_COUNT; i++)
        left += (groups[i].group & field->units) != 0;
    out[0] = '\0';
    for (size_t i = 0; i < GROUP_COUNT; i++) {
        if ((groups[i].group & field->units) == 0)
            continue;
        left--;
        const char *between = used == 0 ? "" : left > 0 ? ", " : " or ";
        char one[64];
        (void)snprintf(one, sizeof(one), "%s", groups[i].units);
        if (number != NULL)
            (void)snprintf(one, sizeof(one), "'%.16g %s'", *number, groups[i].example);
        int size = snprintf(out + used, capacity - used, "%s%s", between, one);
        if (size < 0 || (size_t)size >= capacity - used)
            return;
        used += (size_t)size;
    }
}

static const struct group *find_group(unsigned group)
{
    size_t i = 0;
    while (i < GROUP_COUNT && groups[i].group != group)
        i++;
    CHECK(i < GROUP_COUNT);
    return &groups[i];
}

static unsigned group_of(const char *unit)
{
    size_t i = 0;
    while (strcmp(units[i].word, unit) != 0)
        i++;
    return units[i].group;
}

/* The unit of the field's that is meant by a text; NULL: none. */
static const char *near_unit(const struct field *field, const char *text)
{
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        if ((units[i].group & field->units) != 0 && strcasecmp(text, units[i].word) == 0)
            return units[i].word;
    }
    for (size_t i = 0; i < sizeof(synonyms) / sizeof(synonyms[0]); i++) {
        if ((group_of(synonyms[i].unit) & field->units) != 0 &&
            strcasecmp(text, synonyms[i].word) == 0)
            return synonyms[i].unit;
    }
    for (size_t i = 0; i < UNIT_COUNT; i++) { /* its beginning: 10ep */
        if ((units[i].group & field->units) != 0 &&
            strncasecmp(text, units[i].word, strlen(text)) == 0)
            return units[i].word;
    }
    const char *best = NULL;
    size_t nearest = 3;
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        size_t distance = suggest_distance(text, units[i].word);
        if ((units[i].group & field->units) == 0 || distance >= nearest ||
            distance >= strlen(units[i].word))
            continue;
        nearest = distance;
        best = units[i].word;
    }
    return best;
}

static enum status refuse_unit(const struct field *field, double value, const char *unit,
                               struct refusal *refusal)
{
    char list[LIMIT_REASON / 2];
    char way_out[LIMIT_REASON];
    if (unit[0] == '\0') {
        join_units(field, &value, list, sizeof(list));
        (void)snprintf(way_out, sizeof(way_out), "write %s", list);
        return refuse_value(refusal, way_out, "%s needs a unit", field->path);
    }
    const char *near = near_unit(field, unit);
    if (near != NULL) {
        (void)snprintf(way_out, sizeof(way_out), "did you mean '%.16g %s'?", value, near);
    } else {
        join_units(field, NULL, list, sizeof(list));
        (void)snprintf(way_out, sizeof(way_out), "units are %s", list);
    }
    return refuse_value(refusal, way_out, "%s: '%.100s' is not a unit", field->path, unit);
}

static enum status refuse_group(const struct field *field, unsigned group, struct refusal *refusal)
{
    char list[LIMIT_REASON / 2];
    char way_out[LIMIT_REASON];
    join_units(field, NULL, list, sizeof(list));
    (void)snprintf(way_out, sizeof(way_out), "write it in %s", list);
    if (group == UNIT_TIME && field->kind == FIELD_DURATION) {
        return refuse_value(refusal, way_out, "%s: a time is not supported in this version",
                            field->path);
    }
    return refuse_value(refusal, way_out, "%s can't have that unit", field->path);
}

/* The unit in which an amount is said: the largest that leaves it whole. */
static size_t best_unit(unsigned group, double amount)
{
    size_t best = UNIT_COUNT;
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        double count = amount / units[i].factor;
        bool whole = count == (double)(int64_t)count && count >= 1;
        bool better = best == UNIT_COUNT || units[i].factor > units[best].factor;
        if (units[i].group == group && (best == UNIT_COUNT || (whole && better)))
            best = i;
    }
    return best;
}

static void say_amount(unsigned group, double amount, char *out, size_t capacity)
{
    size_t unit = best_unit(group, amount);
    double count = amount / units[unit].factor;
    bool counted = group == UNIT_STEPS || group == UNIT_EPOCHS;
    if (counted && count == 1)
        unit++; /* one step, not one steps */
    (void)snprintf(out, capacity, "%.16g %s", count, units[unit].word);
}

/* Bounds in the field's base unit; steps and epochs are counted, times where both are possible
 * have their own. */
static enum status check_range(const struct field *field, size_t unit, double count,
                               struct refusal *refusal)
{
    unsigned group = units[unit].group;
    bool time_of_several = group == UNIT_TIME && field->kind == FIELD_DURATION;
    double low = time_of_several ? AMOUNT_MS_MIN : field->low;
    double high = time_of_several ? AMOUNT_MS_MAX : field->high;
    double amount = count * units[unit].factor;
    char range[192];
    if (group == UNIT_STEPS || group == UNIT_EPOCHS) {
        (void)snprintf(range, sizeof(range), "write a number from %.16g to %.16g", low, high);
    } else {
        char from[64];
        char to[64];
        say_amount(group, low, from, sizeof(from));
        say_amount(group, high, to, sizeof(to));
        (void)snprintf(range, sizeof(range), "from %s to %s", from, to);
    }
    if (!(amount >= low && amount <= high)) {
        return refuse_value(refusal, range, "%s can't be %.16g %s", field->path, count,
                            units[unit].word);
    }
    if (amount != (double)(int64_t)amount) {
        const char *base = find_group(group)->base;
        return refuse_value(refusal, range, "%s must be a whole number of %s", field->path,
                            base == NULL ? units[unit].word : base);
    }
    return ST_OK;
}

/* Returns the amount that a word of the field stands for. */
static struct jobspec_duration amount_of_word(const struct field *field, const char *word)
{
    bool built = false;
    if (field->kind == FIELD_AMOUNT) {
        return (struct jobspec_duration){ JOBSPEC_STEPS,
                                          1 - (double)schema_word(field, word, &built) };
    }
    return (struct jobspec_duration){ strcmp(word, "auto") == 0 ? JOBSPEC_AUTO : JOBSPEC_STEPS, 0 };
}

enum status amount_parse(const struct field *field, const char *text, struct jobspec_duration *out,
                         struct refusal *refusal)
{
    double count = 0;
    char *end = NULL;
    if (schema_has_word(field, text)) {
        *out = amount_of_word(field, text);
        return ST_OK;
    }
    if (!number_real(text, &end, &count)) {
        char list[LIMIT_REASON / 2];
        char words[FIELD_WORD_BYTES];
        char way_out[LIMIT_REASON];
        double example = field->kind == FIELD_DURATION ? 100 : 64;
        join_units(field, &example, list, sizeof(list));
        schema_words(field, words, sizeof(words));
        (void)snprintf(way_out, sizeof(way_out), "write it as in %s%s%s", list,
                       words[0] != '\0' ? ", or " : "", words);
        return refuse_value(refusal, way_out, "%s must be a number and a unit; it is '%.100s'",
                            field->path, text);
    }
    end += strspn(end, " ");
    size_t unit = 0;
    while (unit < UNIT_COUNT && strcmp(units[unit].word, end) != 0)
        unit++;
    bool none = unit == UNIT_COUNT;
    if (none && count == 0 && end[0] == 0 && field->kind == FIELD_AMOUNT && field->low <= 0) {
        *out = (struct jobspec_duration){ find_group(field->units)->unit,
                                          0 }; /* nothing needs no unit */
        return ST_OK;
    }
    if (none)
        return refuse_unit(field, count, end, refusal);
    if ((units[unit].group & field->units) == 0)
        return refuse_group(field, units[unit].group, refusal);
    enum status st = check_range(field, unit, count, refusal);
    if (st != ST_OK)
        return st;
    *out = (struct jobspec_duration){ find_group(units[unit].group)->unit,
                                      count * units[unit].factor };
    return ST_OK;
}

/* The units that a duration is written in. */
static unsigned group_of_duration(enum jobspec_unit unit)
{
    switch (unit) {
    case JOBSPEC_EPOCHS:
        return UNIT_EPOCHS;
    case JOBSPEC_MS:
        return UNIT_TIME;
    case JOBSPEC_STEPS:
    case JOBSPEC_AUTO:
        return UNIT_STEPS;
    }
    CHECK(false);
    return UNIT_STEPS;
}

enum status amount_print(const struct field *field, const struct jobspec_duration *amount,
                         struct buf *out)
{
    unsigned group = field->kind == FIELD_AMOUNT ? field->units : group_of_duration(amount->unit);
    bool word = field->kind == FIELD_AMOUNT ? amount->value <= 0 : amount->unit == JOBSPEC_AUTO;
    char text[FIELD_WORD_BYTES];
    const char *at = field->words;
    bool built = true;
    bool found = word && schema_next_word(&at, &built, text, sizeof(text));
    if (found && field->kind == FIELD_AMOUNT && amount->value < 0)
        found = schema_next_word(&at, &built, text, sizeof(text));
    if (!found)
        say_amount(group, amount->value, text, sizeof(text));
    return buf_append_text(out, text);
}

enum status jobspec_duration_steps(const struct jobspec_duration *duration,
                                   uint64_t steps_per_epoch, uint64_t *out)
{
    double value = duration->value;
    switch (duration->unit) {
    case JOBSPEC_STEPS:
        break;
    case JOBSPEC_EPOCHS:
        if (steps_per_epoch == 0 && value > 0)
            return ST_CONFIG;
        value *= (double)steps_per_epoch;
        break;
    case JOBSPEC_MS:
    case JOBSPEC_AUTO:
        return ST_CONFIG;
    }
    if (!(value >= 0 && value <= 1e15))
        return ST_CONFIG;
    const uint64_t steps = (uint64_t)value;
    *out = steps == 0 && value > 0 ? 1 : steps;
    return ST_OK;
}
