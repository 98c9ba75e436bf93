/* YAML into a tree, by libfyaml's events; what job files don't use of YAML is a mistake. */
#include <libfyaml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobspec/yaml/tree.h"

/* A document while it is read into a tree. */
struct yaml {
    struct tree *tree;
    struct jobspec_report *report;
    uint32_t source;
    size_t from; /* libfyaml's byte 0 */
    struct tree_node *root;
    struct tree_node *stack[TREE_DEPTH_MAX]; /* open lists and maps */
    size_t depth;
    char *key; /* of the map on top: read, its value not yet */
    struct jobspec_place key_place;
    size_t documents;
    enum status st;
};

/* Messages of libfyaml, and advice for each. */
static const struct {
    const char *cause, *way_out;
} advice[] = {
    { "invalid indentation in mapping", "all keys of one section start in the same column" },
    { "tab character may not be used as indentation", "indent with spaces" },
    { "flow sequence without a closing bracket", "close the list with ']'" },
    { "flow mapping without a closing brace", "close the section with '}'" },
    { "did not find expected node content", "write a value, or remove the key" },
    { "missing comma in flow mapping", "write a ',' between the keys" },
    { "mismatched flow mapping end", "a list '[' is closed by ']', a section '{' by '}'" },
    { "mismatched flow sequence end", "a list '[' is closed by ']', a section '{' by '}'" },
    { "wrongly indented double-quoted scalar", "is the closing quote missing?" },
    { "wrongly indented single-quoted scalar", "is the closing quote missing?" },
};

static const char *advice_for(const char *cause)
{
    for (size_t i = 0; i < sizeof(advice) / sizeof(advice[0]); i++) {
        if (strcmp(advice[i].cause, cause) == 0)
            return advice[i].way_out;
    }
    return "look at indentation, quotes and brackets here";
}

static struct jobspec_place yaml_place(const struct yaml *yaml, const struct fy_mark *start,
                                       const struct fy_mark *end)
{
    const struct jobspec_source *source = &yaml->report->sources[yaml->source];
    size_t at = yaml->from + (start == NULL ? 0 : start->input_pos);
    size_t to = end == NULL ? at : yaml->from + end->input_pos;
    if (at > source->size)
        at = source->size;
    if (to > source->size)
        to = source->size;
    /* The marks of a quoted scalar lie inside its quotes. */
    if (at > yaml->from && (source->text[at - 1] == '"' || source->text[at - 1] == '\'')) {
        at--;
        if (to < source->size && source->text[to] == source->text[at])
            to++;
    }
    return (struct jobspec_place){ yaml->source, (uint32_t)at, (uint32_t)(to > at ? to - at : 0) };
}

static struct jobspec_place yaml_place_of_event(const struct yaml *yaml, struct fy_event *event)
{
    return yaml_place(yaml, fy_event_start_mark(event), fy_event_end_mark(event));
}

static void yaml_refuse(struct yaml *yaml, struct jobspec_place place, const char *cause,
                        const char *way_out)
{
    jobspec_report_add(yaml->report, place, way_out, "%s", cause);
    yaml->st = ST_CONFIG;
}

/* Refuses a feature of YAML that these files don't use. */
static void yaml_refuse_use(struct yaml *yaml, struct jobspec_place place, const char *what,
                            const char *way_out)
{
    jobspec_report_add(yaml->report, place, way_out, "%s are not used in %ss", what,
                       yaml->tree->kind);
    yaml->st = ST_CONFIG;
}

/* Refuses something that no such file has: it may be another kind of file. */
static void yaml_doubt(struct yaml *yaml, struct jobspec_place place, const char *cause)
{
    char way_out[LIMIT_REASON];
    (void)snprintf(way_out, sizeof(way_out), "is this a %s?", yaml->tree->kind);
    yaml_refuse(yaml, place, cause, way_out);
}

/* Quotes in quotes, in a row: libfyaml 0.7.12 loses memory over such a value, 32 bytes a quote. */
static bool has_quotes_in_a_row(const struct yaml *yaml, struct jobspec_place place)
{
    const char *text = yaml->report->sources[place.source].text + place.at;
    uint32_t row = 0;
    for (uint32_t i = 1; i + 1 < place.size && row < 4; i++)
        row = text[i] == '\'' ? row + 1 : 0;
    return row >= 4;
}

static char *text_of(struct fy_token *token)
{
    size_t size = 0;
    const char *text = token == NULL ? NULL : fy_token_get_text(token, &size);
    char *copy = calloc(1, size + 1);
    if (copy == NULL || text == NULL)
        return copy;
    for (size_t i = 0; i < size; i++)
        copy[i] = text[i];
    for (size_t i = 0; i < size; i++) {
        if (copy[i] == '\0')
            copy[i] = '\1'; /* "\0" in quotes: no value of any key */
    }
    return copy;
}

static bool is_absent(struct fy_token *value, const char *text)
{
    if (value != NULL && fy_token_scalar_style(value) != FYSS_PLAIN)
        return false;
    return text[0] == '\0' || strcmp(text, "null") == 0 || strcmp(text, "~") == 0;
}

/* Hangs a new node where the reader is: root, list or map. */
static void place_node(struct yaml *yaml, struct tree_node *node)
{
    if (yaml->depth == 0) {
        yaml->root = node;
        return;
    }
    struct tree_node *parent = yaml->stack[yaml->depth - 1];
    if (parent->kind == TREE_LIST) {
        tree_append(parent, node);
        return;
    }
    const struct tree_node *before = tree_find(parent, yaml->key);
    if (before != NULL) {
        yaml_refuse(yaml, yaml->key_place, "this key is there twice in its section",
                    "keep one of the two");
    }
    node->key = yaml->key;
    node->key_place = yaml->key_place;
    yaml->key = NULL;
    /* A second one is reported and not looked at: hung nowhere. */
    if (before == NULL)
        tree_append(parent, node);
}

static bool wants_key(const struct yaml *yaml)
{
    return yaml->depth > 0 && yaml->stack[yaml->depth - 1]->kind == TREE_MAP && yaml->key == NULL;
}

static struct tree_node *yaml_add(struct yaml *yaml, enum tree_kind kind,
                                  struct jobspec_place place)
{
    struct tree_node *node = tree_add(yaml->tree, kind, place);
    if (node == NULL) {
        yaml_doubt(yaml, place, "the file has more values than it can use");
    }
    return node;
}

/* false: reading can't go on. */
static bool yaml_scalar(struct yaml *yaml, struct fy_event *event)
{
    struct jobspec_place place = yaml_place_of_event(yaml, event);
    if (event->scalar.value == NULL || fy_event_start_mark(event) == NULL)
        place = yaml->key_place;
    const bool quoted = event->scalar.value != NULL &&
                        fy_token_scalar_style(event->scalar.value) == FYSS_SINGLE_QUOTED;
    const bool refused = quoted && has_quotes_in_a_row(yaml, place);
    if (refused) {
        yaml_refuse(yaml, place, "quotes in a row within quotes are not read",
                    "write the value in double quotes");
    }
    char *text = text_of(refused ? NULL : event->scalar.value);
    if (text == NULL) {
        yaml->st = ST_NO_MEMORY;
        return false;
    }
    if (event->scalar.tag != NULL || event->scalar.anchor != NULL) {
        yaml_refuse_use(yaml, place, "anchors and tags", "write the value alone");
    }
    if (wants_key(yaml)) {
        yaml->key = text;
        yaml->key_place = place;
        return true;
    }
    struct tree_node *node =
        yaml_add(yaml, is_absent(event->scalar.value, text) ? TREE_ABSENT : TREE_SCALAR, place);
    if (node == NULL) {
        free(text);
        return false;
    }
    node->text = text;
    place_node(yaml, node);
    return true;
}

static bool yaml_open(struct yaml *yaml, struct fy_event *event, enum tree_kind kind)
{
    struct jobspec_place place = yaml_place_of_event(yaml, event);
    bool marked = kind == TREE_MAP
                      ? event->mapping_start.tag != NULL || event->mapping_start.anchor != NULL
                      : event->sequence_start.tag != NULL || event->sequence_start.anchor != NULL;
    if (marked) {
        yaml_refuse_use(yaml, place, "anchors and tags", "write the value alone");
    }
    if (wants_key(yaml)) {
        yaml_refuse(yaml, place, "a key is a single word", "write 'key: value'");
        return false;
    }
    if (yaml->depth == TREE_DEPTH_MAX) {
        yaml_doubt(yaml, place, "sections are nested too deeply");
        return false;
    }
    struct tree_node *node = yaml_add(yaml, kind, place);
    if (node == NULL)
        return false;
    place_node(yaml, node);
    yaml->stack[yaml->depth++] = node;
    return true;
}

static bool yaml_alias(struct yaml *yaml, struct fy_event *event)
{
    struct jobspec_place place = yaml_place_of_event(yaml, event);
    if (place.at > yaml->from) { /* the mark is behind the '*' */
        place.at--;
        place.size++;
    }
    yaml_refuse_use(yaml, place, "aliases",
                    yaml->source > 0
                        ? "a value that begins with '*' wants quotes of its own: --set "
                          "'KEY=\"*.bin\"'"
                        : "write the value out");
    yaml->tree->complete = false; /* what it stands for is not missing */
    if (wants_key(yaml))
        return false;
    struct tree_node *node = yaml_add(yaml, TREE_ABSENT, place);
    if (node == NULL)
        return false;
    place_node(yaml, node);
    return true;
}

static bool yaml_event(struct yaml *yaml, struct fy_event *event)
{
    switch (event->type) {
    case FYET_SCALAR:
        return yaml_scalar(yaml, event);
    case FYET_ALIAS:
        return yaml_alias(yaml, event);
    case FYET_MAPPING_START:
        return yaml_open(yaml, event, TREE_MAP);
    case FYET_SEQUENCE_START:
        return yaml_open(yaml, event, TREE_LIST);
    case FYET_MAPPING_END:
    case FYET_SEQUENCE_END:
        yaml->depth--;
        return true;
    case FYET_DOCUMENT_START:
        if (++yaml->documents == 1)
            return true;
        yaml_refuse(yaml, yaml_place_of_event(yaml, event), "a second document starts here",
                    "one file holds one document");
        return false;
    case FYET_NONE:
    case FYET_STREAM_START:
    case FYET_STREAM_END:
    case FYET_DOCUMENT_END:
        break;
    }
    return true;
}

static void report_syntax(struct yaml *yaml, struct fy_diag *diag)
{
    void *iterator = NULL;
    struct fy_diag_error *error;
    while ((error = fy_diag_errors_iterate(diag, &iterator)) != NULL) {
        struct fy_token *token = error->fyt;
        const struct fy_mark *start = token == NULL ? NULL : fy_token_start_mark(token);
        const struct fy_mark *end = token == NULL ? NULL : fy_token_end_mark(token);
        jobspec_report_add(yaml->report, yaml_place(yaml, start, end), advice_for(error->msg), "%s",
                           error->msg);
    }
    if (jobspec_report_empty(yaml->report)) {
        jobspec_report_add(yaml->report, yaml_place(yaml, NULL, NULL), advice_for(""),
                           "this isn't YAML");
    }
    yaml->st = ST_CONFIG;
}

static void read_events(struct yaml *yaml, struct fy_parser *parser, struct fy_diag *diag)
{
    struct fy_event *event;
    bool more = true;
    while (more && (event = fy_parser_parse(parser)) != NULL) {
        more = yaml_event(yaml, event);
        fy_parser_event_free(parser, event);
    }
    if (!more || fy_parser_get_stream_error(parser))
        yaml->tree->complete = false;
    if (more && fy_parser_get_stream_error(parser))
        report_syntax(yaml, diag);
}

/* The bytes of the UTF-8 character at text; 0: it isn't one, or a control character. */
static size_t character(const unsigned char *text, size_t size)
{
    if (text[0] < 0x80) {
        return text[0] >= 0x20 ? text[0] != 0x7F
                               : strchr("\t\n\r", text[0]) != NULL && text[0] != 0;
    }
    size_t length = text[0] >= 0xF0 ? 4 : text[0] >= 0xE0 ? 3 : 2;
    if (text[0] < 0xC2 || text[0] > 0xF4 || length > size)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    }
    if ((text[0] == 0xE0 && text[1] < 0xA0) || (text[0] == 0xED && text[1] > 0x9F) ||
        (text[0] == 0xF0 && text[1] < 0x90) || (text[0] == 0xF4 && text[1] > 0x8F))
        return 0;
    return length;
}

static bool is_text(struct yaml *yaml)
{
    const struct jobspec_source *source = &yaml->report->sources[yaml->source];
    const unsigned char *text = (const unsigned char *)source->text;
    size_t length = 0;
    for (size_t i = yaml->from; i < source->size; i += length) {
        length = character(text + i, source->size - i);
        if (length == 0) {
            yaml_doubt(yaml, (struct jobspec_place){ yaml->source, (uint32_t)i, 1 },
                       "this byte is not text (UTF-8)");
            return false;
        }
    }
    return true;
}

enum status tree_read_yaml(struct tree *tree, uint32_t source, size_t from,
                           struct jobspec_report *report, struct tree_node **out_root)
{
    struct yaml yaml = { .tree = tree, .report = report, .source = source, .from = from };
    *out_root = NULL;
    if (!is_text(&yaml)) {
        tree->complete = false;
        return yaml.st;
    }
    struct fy_diag_cfg diag_options;
    fy_diag_cfg_default(&diag_options);
    diag_options.fp = NULL;
    struct fy_diag *diag = fy_diag_create(&diag_options);
    if (diag == NULL)
        return ST_NO_MEMORY;
    fy_diag_set_collect_errors(diag, true);
    struct fy_parse_cfg options = {
        .flags = FYPCF_QUIET | FYPCF_COLLECT_DIAG | FYPCF_ALLOW_DUPLICATE_KEYS | FYPCF_JSON_NONE,
        .diag = diag,
    };
    struct fy_parser *parser = fy_parser_create(&options);
    const struct jobspec_source *text = &report->sources[source];
    if (parser == NULL || fy_parser_set_string(parser, text->text + from, text->size - from) != 0) {
        yaml.st = ST_NO_MEMORY;
    } else {
        read_events(&yaml, parser, diag);
    }
    if (parser != NULL)
        fy_parser_destroy(parser);
    fy_diag_destroy(diag);
    free(yaml.key);
    *out_root = yaml.root;
    return yaml.st;
}
