/* The process in which a library runs. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/limits.h"
#include "jobspec/text/number.h"
#include "jobspec/text/texts.h"
#include "library/model.h"
#include "trainer/graph/library.h"

enum { EXIT_MADE = 0, EXIT_USAGE = 2, EXIT_REFUSED = 3 };

/* The model that a library makes. */
struct made {
    struct cairn_model model; /* first: the library's pointer is this one's */
    struct buf text;
    char names[GRAPH_NODES_MAX][GRAPH_NAME_BYTES];
    int count;
    struct reason why; /* "": no mistake so far */
};

static struct made *made_of(struct cairn_model *model)
{
    return (struct made *)(void *)model;
}

static void say(struct made *m, const char *why)
{
    if (m->why.text[0] == '\0')
        reason_set(&m->why, "%.400s", why);
}

/* ---- a node as text ---- */

static enum status put_text(struct made *m, const char *key, const char *value)
{
    if (value == NULL)
        return ST_OK;
    enum status st = buf_printf(&m->text, ", %s: ", key);
    return st == ST_OK ? texts_print_quoted(value, &m->text) : st;
}

static enum status put_whole(struct made *m, const char *key, int64_t value)
{
    return value == 0 ? ST_OK : buf_printf(&m->text, ", %s: %lld", key, (long long)value);
}

static enum status put_real(struct made *m, const char *key, double value)
{
    if (value == 0)
        return ST_OK;
    enum status st = buf_printf(&m->text, ", %s: ", key);
    return st == ST_OK ? number_print(value, &m->text) : st;
}

/* False: there is no such node. */
static bool put_node(struct made *m, const char *key, int node, enum status *st)
{
    if (node == 0 || *st != ST_OK)
        return true;
    const bool input = node == CAIRN_INPUT;
    if (!input && (node < 0 || node > m->count))
        return false;
    *st = put_text(m, key, input ? GRAPH_INPUT_NAME : m->names[node - 1]);
    return true;
}

static enum status put_numbers(struct made *m, const struct cairn_node *node)
{
    const struct {
        const char *key;
        int64_t value;
    } rows[] = {
        { "out", node->out },           { "kernel", node->kernel }, { "stride", node->stride },
        { "pad", node->pad },           { "rows", node->rows },     { "heads", node->heads },
        { "kv_heads", node->kv_heads }, { "row", node->row },
    };
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < sizeof(rows) / sizeof(rows[0]); i++)
        st = put_whole(m, rows[i].key, rows[i].value);
    if (st == ST_OK)
        st = put_real(m, "std", node->std);
    if (st == ST_OK)
        st = put_real(m, "eps", node->eps);
    if (st == ST_OK)
        st = put_real(m, "rope_theta", node->rope_theta);
    return st == ST_OK ? put_real(m, "p", node->p) : st;
}

/* Nodes without a name get one, by which others can name them. */
static void name_node(struct made *m, const struct cairn_node *node)
{
    char *name = m->names[m->count];
    if (node->name != NULL) {
        (void)snprintf(name, GRAPH_NAME_BYTES, "%s", node->name);
    } else {
        (void)snprintf(name, GRAPH_NAME_BYTES, "%.30s-%d", node->op, m->count);
    }
}

static bool put_all(struct made *m, const struct cairn_node *node, enum status *st)
{
    *st = buf_append_text(&m->text, "- {op: ");
    if (*st == ST_OK)
        *st = texts_print_quoted(node->op, &m->text);
    if (*st == ST_OK)
        *st = put_text(m, "name", node->name != NULL ? node->name : m->names[m->count]);
    if (!put_node(m, "from", node->from, st) || !put_node(m, "residual", node->residual, st) ||
        !put_node(m, "tied", node->tied, st))
        return false;
    if (*st == ST_OK)
        *st = put_text(m, "activation", node->activation);
    if (*st == ST_OK)
        *st = put_text(m, "position", node->position);
    if (*st == ST_OK && node->no_bias != 0)
        *st = buf_append_text(&m->text, ", bias: false");
    if (*st == ST_OK && node->relu != 0)
        *st = buf_append_text(&m->text, ", relu: true");
    if (*st == ST_OK && node->bidirectional != 0)
        *st = buf_append_text(&m->text, ", bidirectional: true");
    if (*st == ST_OK)
        *st = put_numbers(m, node);
    if (*st == ST_OK)
        *st = buf_append_text(&m->text, "}\n");
    return true;
}

static int add_node(struct cairn_model *model, const struct cairn_node *given, size_t size)
{
    struct made *m = made_of(model);
    struct cairn_node node = { 0 };
    enum status st = ST_OK;
    memcpy(&node, given, size < sizeof(node) ? size : sizeof(node));
    if (m->why.text[0] != '\0')
        return -1;
    if (node.op == NULL || m->count == GRAPH_NODES_MAX) {
        say(m, node.op == NULL ? "a node has no op" : "it has more nodes than a graph may have");
        return -1;
    }
    name_node(m, &node);
    if (!put_all(m, &node, &st)) {
        reason_set(&m->why, "node '%s' reads a node that isn't there", m->names[m->count]);
        return -1;
    }
    if (st != ST_OK) {
        say(m, "its texts are too long");
        return -1;
    }
    return ++m->count;
}

static void refuse(struct cairn_model *model, const char *why)
{
    say(made_of(model), why != NULL ? why : "it refuses");
}

/* ---- the library ---- */

typedef int make_function(struct cairn_model *model, const struct cairn_sample *sample);

static bool find_symbols(struct made *m, void *library, make_function **out)
{
    const uint32_t *version = dlsym(library, "cairn_model_version");
    void *make = dlsym(library, "cairn_model_make");
    if (version == NULL || make == NULL) {
        reason_set(&m->why,
                   "it has no symbol %s: include <cairn/model.h> and define "
                   "cairn_model_make",
                   make == NULL ? "cairn_model_make" : "cairn_model_version");
        return false;
    }
    if (*version != CAIRN_MODEL_VERSION) {
        reason_set(&m->why,
                   "it was built for version %u of cairn/model.h, and this Cairn has %d: build it "
                   "again",
                   *version, CAIRN_MODEL_VERSION);
        return false;
    }
    memcpy(out, &make, sizeof(make)); /* ISO C has no cast for it */
    return true;
}

static void run(struct made *m, const char *path, const struct cairn_sample *sample)
{
    make_function *make = NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        say(m, dlerror());
        return;
    }
    if (!find_symbols(m, library, &make))
        return;
    const int code = make(&m->model, sample);
    if (code != 0) {
        char text[64];
        (void)snprintf(text, sizeof(text), "its cairn_model_make returned %d", code);
        say(m, text);
    }
    if (m->count == 0)
        say(m, "its cairn_model_make made no node");
}

/* "1,28,28,10", "128,256" */
static bool read_sample(const char *text, struct cairn_sample *out)
{
    int64_t n[4] = { 0 };
    int count = 0;
    for (; *text != '\0'; count++) {
        char number[24];
        const size_t size = strcspn(text, ",");
        if (count == 4 || size >= sizeof(number))
            return false;
        memcpy(number, text, size);
        number[size] = '\0';
        if (!number_whole(number, 1, 0x1p40, &n[count]))
            return false;
        text += size + (text[size] == ',');
    }
    if (count == 4) {
        *out = (struct cairn_sample){
            .channels = n[0], .height = n[1], .width = n[2], .classes = n[3]
        };
    } else {
        *out = (struct cairn_sample){ .is_tokens = 1, .context = n[0], .vocab = n[1] };
    }
    return count == 4 || count == 2;
}

static bool write_all(int fd, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        const ssize_t n = write(fd, text, left);
        if (n <= 0)
            return false;
        text += n;
        left -= (size_t)n;
    }
    return true;
}

int library_run(const char *path, const char *sample_text)
{
    static const struct cairn_model_calls calls = { .node = add_node, .refuse = refuse };
    struct cairn_sample sample;
    struct made *m = calloc(1, sizeof(*m));
    const int out = dup(STDOUT_FILENO);
    if (m == NULL || out < 0 || !read_sample(sample_text, &sample)) {
        free(m);
        return EXIT_USAGE;
    }
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){ 0 });
    (void)dup2(STDERR_FILENO, STDOUT_FILENO);
    m->model.calls = &calls;
    buf_init(&m->text, (size_t)LIMIT_JOB_FILE_BYTES);
    run(m, path, &sample);
    const bool good = m->why.text[0] == '\0';
    const bool written = write_all(out, good ? m->text.data : m->why.text);
    buf_release(&m->text);
    free(m);
    return good && written ? EXIT_MADE : EXIT_REFUSED;
}
