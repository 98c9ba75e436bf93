#include "jobspec/value.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/pattern.h"
#include "jobspec/amount.h"
#include "jobspec/text/number.h"
#include "jobspec/text/texts.h"

/* A range as one reads it: "write a number from 0 to below 1". */
static void describe_range(const struct field *field, char *out, size_t capacity)
{
    bool open_low = (field->flags & FIELD_LOW_OPEN) != 0;
    bool open_high = (field->flags & FIELD_HIGH_OPEN) != 0;
    char words[FIELD_WORD_BYTES];
    schema_words(field, words, sizeof(words));
    (void)snprintf(out, capacity, "write a number %s %.16g %s %.16g%s%s",
                   open_low ? "above" : "from", field->low, open_high ? "to below" : "to",
                   field->high, words[0] != '\0' ? ", or " : "", words);
}

static bool in_range(const struct field *field, double value)
{
    if (!(value >= field->low && value <= field->high))
        return false;
    if ((field->flags & FIELD_LOW_OPEN) != 0 && value <= field->low)
        return false;
    return (field->flags & FIELD_HIGH_OPEN) == 0 || value < field->high;
}

static enum status read_word(const struct field *field, const char *text, unsigned *out,
                             struct refusal *refusal)
{
    bool built = false;
    unsigned number = schema_word(field, text, &built);
    if (number == 0)
        return refuse_word(field, text, refusal);
    if (!built)
        return refuse_unbuilt(field, text, refusal);
    if (out != NULL)
        *out = number;
    return ST_OK;
}

static enum status read_int(const struct field *field, const char *text, int64_t *out,
                            struct refusal *refusal)
{
    int64_t value = 0;
    char range[192];
    if (schema_has_word(field, text)) {
        if (out != NULL)
            *out = 0;
        return ST_OK;
    }
    describe_range(field, range, sizeof(range));
    if (!number_whole(text, -INFINITY, INFINITY, &value)) {
        return refuse_value(refusal, range, "%s must be a whole number; it is '%.100s'",
                            field->path, text);
    }
    if (!in_range(field, (double)value))
        return refuse_value(refusal, range, "%s can't be %lld", field->path, (long long)value);
    if (out != NULL)
        *out = value;
    return ST_OK;
}

/* `pipeline: 4` */
static enum status read_stages(const struct field *field, const char *text,
                               struct jobspec_cuts *out, struct refusal *refusal)
{
    int64_t stages = 0;
    const enum status st = read_int(field, text, &stages, refusal);
    if (st == ST_OK && out != NULL)
        *out = (struct jobspec_cuts){ .stages = (uint32_t)stages };
    return st;
}

static enum status read_real(const struct field *field, const char *text, double *out,
                             struct refusal *refusal)
{
    double value = 0;
    char *end = NULL;
    char range[192];
    if (schema_has_word(field, text)) {
        if (out != NULL)
            *out = 0;
        return ST_OK;
    }
    describe_range(field, range, sizeof(range));
    if (!number_real(text, &end, &value) || *end != '\0') {
        return refuse_value(refusal, range, "%s must be a number; it is '%.100s'", field->path,
                            text);
    }
    if (!in_range(field, value))
        return refuse_value(refusal, range, "%s can't be %.16g", field->path, value);
    if (out != NULL)
        *out = value == 0 ? 0 : value; /* no -0 */
    return ST_OK;
}

static enum status read_bool(const struct field *field, const char *text, bool *out,
                             struct refusal *refusal)
{
    bool yes = strcmp(text, "true") == 0;
    if (!yes && strcmp(text, "false") != 0) {
        return refuse_value(refusal, "write true or false",
                            "%s must be true or false; it is '%.100s'", field->path, text);
    }
    if (out != NULL)
        *out = yes;
    return ST_OK;
}

static enum status read_duration(const struct field *field, const char *text,
                                 struct jobspec_duration *out, struct refusal *refusal)
{
    struct jobspec_duration amount;
    enum status st = amount_parse(field, text, &amount, refusal);
    if (st == ST_OK && out != NULL) {
        out->unit = amount.unit; /* by member: equal jobs are equal bytes, padding too */
        out->value = amount.value;
    }
    return st;
}

static enum status read_amount(const struct field *field, const char *text, int64_t *out,
                               struct refusal *refusal)
{
    struct jobspec_duration amount;
    enum status st = amount_parse(field, text, &amount, refusal);
    if (st == ST_OK && out != NULL)
        *out = (int64_t)amount.value;
    return st;
}

static enum status read_name(const struct field *field, const char *text, char *out,
                             struct refusal *refusal)
{
    size_t size = strlen(text);
    bool good = size > 0 && size < 64 && isalnum((unsigned char)text[0]);
    for (size_t i = 0; i < size; i++)
        good = good && (isalnum((unsigned char)text[i]) || strchr("-_.", text[i]) != NULL);
    if (!good) {
        return refuse_value(
            refusal, "letters, digits, '-', '_' and '.', at most 63, a letter or digit first",
            "%s can't be '%.100s'", field->path, text);
    }
    if (strncmp(text, "j-", 2) == 0) {
        return refuse_value(refusal, "take another beginning",
                            "%s can't start with 'j-': that is how ids start", field->path);
    }
    (void)snprintf(out, LIMIT_NAME, "%s", text);
    return ST_OK;
}

/* Appends the components of text to a path without empty and "." ones. */
static bool append_path(char *out, size_t *used, const char *text)
{
    while (*text != '\0') {
        size_t size = strcspn(text, "/");
        if (size > 0 && !(size == 1 && text[0] == '.')) {
            if (*used + 1 + size >= LIMIT_PATH)
                return false;
            out[(*used)++] = '/';
            memcpy(out + *used, text, size);
            *used += size;
        }
        text += size + (text[size] == '/');
    }
    out[*used] = '\0';
    return true;
}

static bool has_control_characters(const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            return true;
    }
    return false;
}

/* "s3:/bucket", "gs://bucket": a scheme, where a folder of that name would be made. */
static bool is_address(const char *text)
{
    size_t size = 0;
    while (isalnum((unsigned char)text[size]) ||
           (size > 0 && strchr("+.-", text[size]) != NULL && text[size] != '\0'))
        size++;
    return (size > 0 && strncmp(text + size, ":/", 2) == 0) || strstr(text, "://") != NULL;
}

static enum status read_path(const struct field *field, const char *text, const char *base_dir,
                             char *out, struct refusal *refusal)
{
    char path[LIMIT_PATH] = "";
    size_t used = 0;
    if (text[0] == '\0')
        return refuse_value(refusal, "write a path", "%s is empty", field->path);
    if (text[0] == '~' || text[0] == '$') {
        return refuse_value(refusal, "write the whole path",
                            "%s: '%.*s' is not replaced in job files", field->path,
                            (int)strcspn(text, "/"), text);
    }
    if (is_address(text)) {
        const char *way_out = field->kind == FIELD_STORE
                                  ? "write the path of a folder, or s3://bucket/prefix"
                                  : "copy or mount it where every node sees it, and write the path";
        return refuse_value(refusal, way_out, "%s: '%.100s' is not supported in this version",
                            field->path, text);
    }
    if ((text[0] != '/' && !append_path(path, &used, base_dir)) || !append_path(path, &used, text))
        return refuse_value(refusal, "use a shorter path", "%s is too long", field->path);
    if (has_control_characters(path))
        return refuse_value(refusal, "remove it", "%s holds a control character", field->path);
    if (out != NULL)
        (void)snprintf(out, LIMIT_PATH, "%s", used == 0 ? "/" : path);
    return ST_OK;
}

/* `s3://bucket/prefix` stays as it is; anything else is a folder. */
static enum status read_store(const struct field *field, const char *text, const char *base_dir,
                              char *out, struct refusal *refusal)
{
    static const char scheme[] = "s3://";
    if (strncmp(text, scheme, sizeof(scheme) - 1) != 0)
        return read_path(field, text, base_dir, out, refusal);
    const char *bucket = text + sizeof(scheme) - 1;
    size_t size = strcspn(bucket, "/");
    bool good = size >= 3 && size <= 63 && isalnum((unsigned char)bucket[0]);
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)bucket[i];
        good = good && (islower(c) || isdigit(c) || c == '-' || c == '.');
    }
    if (!good) {
        return refuse_value(refusal, "a bucket has 3 to 63 lower-case letters, digits, '-' and '.'",
                            "%s: '%.100s' names no bucket", field->path, text);
    }
    if (has_control_characters(text))
        return refuse_value(refusal, "remove it", "%s holds a control character", field->path);
    if (strlen(text) >= LIMIT_PATH)
        return refuse_value(refusal, "use a shorter prefix", "%s is too long", field->path);
    if (out != NULL)
        (void)snprintf(out, LIMIT_PATH, "%s", text);
    return ST_OK;
}

enum status value_read_pattern(const struct field *field, const char *text, char *out,
                               struct refusal *refusal)
{
    struct pattern *pattern = NULL;
    struct reason why = { "" };
    size_t offset = 0;
    if (text[0] == '\0')
        return refuse_value(refusal, "write a pattern", "%s is empty", field->path);
    if (strlen(text) >= JOBSPEC_PATTERN_BYTES) {
        return refuse_value(refusal, "use a shorter pattern", "%s has more than %d bytes",
                            field->path, JOBSPEC_PATTERN_BYTES - 1);
    }
    if (texts_hold_controls(text, false)) {
        return refuse_value(refusal, "write its escape, as \\x1b",
                            "%s holds a control character; patterns are for single lines",
                            field->path);
    }
    const enum status st = pattern_compile(text, &pattern, &offset, &why);
    if (st != ST_OK) {
        return refuse_value(refusal, "write a pattern of PCRE2, as Python's; \\ before ( [ . * +",
                            "%s: %.150s, behind '%.*s'", field->path,
                            why.text[0] != '\0' ? why.text : status_string(st), (int)offset, text);
    }
    const uint32_t groups = pattern_groups(pattern);
    pattern_free(pattern);
    if (field->kind == FIELD_PATTERN && groups == 0) {
        return refuse_value(refusal, "put the number in parentheses, as in 'step (\\d+)'",
                            "%s has no group that says which step is done", field->path);
    }
    if (out != NULL)
        (void)snprintf(out, JOBSPEC_PATTERN_BYTES, "%s", text);
    return ST_OK;
}

static enum status read_kind(const struct field *field, const char *text, const char *base_dir,
                             void *out, struct refusal *refusal)
{
    switch (field->kind) {
    case FIELD_NAME:
        return read_name(field, text, out, refusal);
    case FIELD_WORD:
        return read_word(field, text, out, refusal);
    case FIELD_INT:
        return read_int(field, text, out, refusal);
    case FIELD_REAL:
        return read_real(field, text, out, refusal);
    case FIELD_BOOL:
        return read_bool(field, text, out, refusal);
    case FIELD_DURATION:
        return read_duration(field, text, out, refusal);
    case FIELD_AMOUNT:
        return read_amount(field, text, out, refusal);
    case FIELD_PATH:
        return read_path(field, text, base_dir, out, refusal);
    case FIELD_STORE:
        return read_store(field, text, base_dir, out, refusal);
    case FIELD_CUTS:
        return read_stages(field, text, out, refusal);
    case FIELD_PATTERN:
        return value_read_pattern(field, text, out, refusal);
    case FIELD_WORDS:
    case FIELD_COUNTS:
    case FIELD_STAGES:
    case FIELD_ENV:
    case FIELD_RUN:
    case FIELD_NAMES:
    case FIELD_PATTERNS:
    case FIELD_MODULES:
    case FIELD_CODES:
    case FIELD_SIZES:
    case FIELD_GRAPH:
        break;
    }
    CHECK(false);
    return ST_INVALID;
}

enum status value_read(const struct field *field, const char *text, const char *base_dir,
                       struct jobspec *job, struct refusal *out_refusal)
{
    bool built = true;
    void *out = field->offset == FIELD_NOWHERE ? NULL : (char *)job + field->offset;
    if (field->kind != FIELD_WORD && schema_word(field, text, &built) != 0 && !built)
        return refuse_unbuilt(field, text, out_refusal);
    return read_kind(field, text, base_dir, out, out_refusal);
}

bool value_is_set(const struct field *field, const struct jobspec *job)
{
    if (field->offset == FIELD_NOWHERE)
        return false;
    const void *at = (const char *)job + field->offset;
    switch (field->kind) {
    case FIELD_NAME:
    case FIELD_PATH:
    case FIELD_STORE:
    case FIELD_ENV: /* its first name */
    case FIELD_RUN:
    case FIELD_NAMES:
    case FIELD_PATTERN:
    case FIELD_PATTERNS:
    case FIELD_MODULES:
        return *(const char *)at != '\0';
    case FIELD_WORD:
        return *(const unsigned *)at != 0;
    case FIELD_DURATION:
        return field->low <= 0 || ((const struct jobspec_duration *)at)->value > 0 ||
               ((const struct jobspec_duration *)at)->unit == JOBSPEC_AUTO;
    case FIELD_COUNTS: /* a pipeline's are in parallel.stages */
        return *(const uint32_t *)at > 0 && job->parallel.pipeline.stages <= 1;
    case FIELD_STAGES:
        return *(const uint32_t *)at > 0;
    case FIELD_CODES: /* no code is a value, too */
        return job->command.restart.codes_given;
    case FIELD_CUTS:
        return ((const struct jobspec_cuts *)at)->stages > 0;
    case FIELD_SIZES:
    case FIELD_GRAPH: /* its first size; its number of nodes */
        return *(const int64_t *)at != 0;
    case FIELD_INT:
        return field->low <= 0 || field->words != NULL || *(const int64_t *)at != 0;
    case FIELD_AMOUNT:
    case FIELD_REAL:
    case FIELD_BOOL:
    case FIELD_WORDS:
        return true;
    }
    return false;
}

static enum status print_amount(const struct field *field, int64_t value, struct buf *out)
{
    struct jobspec_duration amount = { JOBSPEC_STEPS, (double)value };
    return amount_print(field, &amount, out);
}

static enum status print_counts(const uint32_t *counts, int64_t count, struct buf *out)
{
    enum status st = buf_append_text(out, "[");
    for (int64_t i = 0; st == ST_OK && i < count; i++)
        st = buf_printf(out, "%s%u", i > 0 ? ", " : "", counts[i]);
    return st == ST_OK ? buf_append_text(out, "]") : st;
}

/* `4`, `[12, 24, 36]` */
static enum status print_cuts(const struct jobspec_cuts *cuts, struct buf *out)
{
    if (cuts->stages == 1 || cuts->first_node[1] == 0)
        return buf_printf(out, "%u", cuts->stages);
    return print_counts(cuts->first_node + 1, (int64_t)cuts->stages - 1, out);
}

/* `[{workers: 2, shares: [5, 3]}, {workers: 1, shares: [8]}]` */
static enum status print_stages(const struct jobspec *job, struct buf *out)
{
    const uint32_t *shares = job->workers.shares;
    enum status st = buf_append_text(out, "[");
    for (uint32_t s = 0; st == ST_OK && s < job->parallel.pipeline.stages; s++) {
        const uint32_t workers = job->parallel.stages[s];
        st = buf_printf(out, "%s{workers: %u, shares: ", s > 0 ? ", " : "", workers);
        if (st == ST_OK)
            st = print_counts(shares, workers, out);
        if (st == ST_OK)
            st = buf_append_text(out, "}");
        shares += workers;
    }
    return st == ST_OK ? buf_append_text(out, "]") : st;
}

static enum status print_word(const struct field *field, const struct jobspec *job, struct buf *out)
{
    char word[FIELD_WORD_BYTES];
    schema_value_text(field->path, job, word, sizeof(word));
    return buf_append_text(out, word);
}

static enum status print_words(const struct field *field, const bool *flags, struct buf *out)
{
    enum status st = buf_append_text(out, "[");
    const char *at = field->words;
    bool built = true;
    bool first = true;
    char word[FIELD_WORD_BYTES];
    for (size_t i = 0; st == ST_OK && schema_next_word(&at, &built, word, sizeof(word)); i++) {
        if (!flags[i])
            continue;
        st = buf_printf(out, "%s%s", first ? "" : ", ", word);
        first = false;
    }
    return st == ST_OK ? buf_append_text(out, "]") : st;
}

static enum status print_env(const struct jobspec_env *env, struct buf *out)
{
    enum status st = buf_append_text(out, "{");
    for (size_t i = 0; st == ST_OK && i < JOBSPEC_ENV_MAX && env[i].name[0] != '\0'; i++) {
        st = buf_printf(out, "%s%s: ", i > 0 ? ", " : "", env[i].name);
        if (st == ST_OK)
            st = texts_print_quoted(env[i].value, out);
    }
    return st == ST_OK ? buf_append_text(out, "}") : st;
}

static enum status print_names(const char *texts, struct buf *out)
{
    enum status st = buf_append_text(out, "{");
    const char *text = texts_next(texts, NULL);
    for (bool first = true; st == ST_OK && text != NULL; first = false) {
        const size_t size = strcspn(text, "=");
        /* In quotes: `n` and `y` would be no texts. */
        st = buf_printf(out, "%s\"%.*s\": ", first ? "" : ", ", (int)size, text);
        if (st == ST_OK)
            st = texts_print_quoted(text + size + 1, out);
        text = texts_next(texts, text);
    }
    return st == ST_OK ? buf_append_text(out, "}") : st;
}

static enum status print_codes(const struct jobspec *job, struct buf *out)
{
    enum status st = buf_append_text(out, "[");
    for (size_t i = 0; st == ST_OK && i < job->command.restart.code_count; i++)
        st = buf_printf(out, "%s%u", i > 0 ? ", " : "", job->command.restart.codes[i]);
    return st == ST_OK ? buf_append_text(out, "]") : st;
}

static enum status print_texts(const struct field *field, const struct jobspec *job,
                               struct buf *out)
{
    const char *texts = (const char *)job + field->offset;
    if (field->kind == FIELD_CODES)
        return print_codes(job, out);
    if (field->kind == FIELD_NAMES)
        return print_names(texts, out);
    if (field->kind == FIELD_RUN && job->command.shell)
        return texts_print_quoted(texts_next(texts, NULL), out);
    return texts_print_list(texts, out);
}

/* `[3, 32, 32]` */
static enum status print_sizes(const int64_t *sizes, struct buf *out)
{
    return buf_printf(out, "[%lld, %lld, %lld]", (long long)sizes[0], (long long)sizes[1],
                      (long long)sizes[2]);
}

/* A line per node, below the key. */
static enum status print_graph(const struct jobspec_graph *graph, struct buf *out)
{
    enum status st = ST_OK;
    for (int64_t n = 0; st == ST_OK && n < graph->count; n++) {
        st = buf_append_text(out, "\n    - ");
        if (st == ST_OK)
            st = graph_print_node(graph, n, out);
    }
    return st;
}

/* A number, or the word that stands for 0. */
static enum status print_number(const struct field *field, double value, struct buf *out)
{
    char word[FIELD_WORD_BYTES];
    schema_words(field, word, sizeof(word));
    if (value == 0 && word[0] != '\0')
        return buf_append_text(out, word);
    return number_print(value, out);
}

enum status value_print(const struct field *field, const struct jobspec *job, struct buf *out)
{
    CHECK(field->offset != FIELD_NOWHERE);
    const void *at = (const char *)job + field->offset;
    switch (field->kind) {
    case FIELD_NAME:
    case FIELD_PATH:
    case FIELD_STORE:
    case FIELD_PATTERN:
        return texts_print_quoted(at, out);
    case FIELD_WORD:
        return print_word(field, job, out);
    case FIELD_INT:
        if (*(const int64_t *)at == 0)
            return print_number(field, 0, out);
        return buf_printf(out, "%lld", (long long)*(const int64_t *)at);
    case FIELD_REAL:
        return print_number(field, *(const double *)at, out);
    case FIELD_BOOL:
        return buf_append_text(out, *(const bool *)at ? "true" : "false");
    case FIELD_DURATION:
        return amount_print(field, at, out);
    case FIELD_AMOUNT:
        return print_amount(field, *(const int64_t *)at, out);
    case FIELD_COUNTS:
        return job->workers.by_speed ? buf_append_text(out, field->words)
                                     : print_counts(at, job->workers.count, out);
    case FIELD_CUTS:
        return print_cuts(at, out);
    case FIELD_STAGES:
        return print_stages(job, out);
    case FIELD_WORDS:
        return print_words(field, at, out);
    case FIELD_ENV:
        return print_env(at, out);
    case FIELD_SIZES:
        return print_sizes(at, out);
    case FIELD_GRAPH:
        return print_graph(at, out);
    case FIELD_RUN:
    case FIELD_NAMES:
    case FIELD_PATTERNS:
    case FIELD_MODULES:
    case FIELD_CODES:
        return print_texts(field, job, out);
    }
    CHECK(false);
    return ST_INVALID;
}
