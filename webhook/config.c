/* The list of webhooks: from a tree of keys and values to structs. */
#include "webhook/config.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/own/private.h"
#include "jobspec/text/suggest.h"
#include "jobspec/yaml/report.h"
#include "jobspec/yaml/tree.h"
#include "webhook/mask.h"
#include "webhook/private.h"

#define KEYS "name, url, events, format, secret_file, ca_file, jobs"

struct reading {
    struct jobspec_report report;
    const char *base_dir;
    struct webhook_config *config;
    bool formatted; /* the webhook that is read says its format */
};

struct key {
    const char *word;
    void (*read)(struct reading *r, const struct tree_node *node, struct webhook *hook);
    bool list; /* may be one */
};

static void refuse(struct reading *r, const struct tree_node *node, const char *cause,
                   const char *way_out)
{
    jobspec_report_add(&r->report, node->place, way_out, "%s", cause);
}

/* The word among words that another one was meant to be; NULL: none. */
static const char *meant(const char *word, const char *(*nth)(size_t i), size_t count)
{
    const char *best = NULL;
    size_t distance = suggest_limit(word) + 1;
    for (size_t i = 0; i < count; i++) {
        size_t found = suggest_distance(word, nth(i));
        if (found < distance) {
            distance = found;
            best = nth(i);
        }
    }
    return best;
}

static void refuse_word(struct reading *r, const struct tree_node *node, const char *what,
                        const char *(*nth)(size_t i), size_t count)
{
    char way_out[LIMIT_REASON];
    size_t used = 0;
    const char *near = meant(node->text, nth, count);
    if (near != NULL) {
        (void)snprintf(way_out, sizeof(way_out), "did you mean '%s'?", near);
    } else {
        used = (size_t)snprintf(way_out, sizeof(way_out), "one of: ");
        for (size_t i = 0; i < count && used < sizeof(way_out); i++) {
            used += (size_t)snprintf(way_out + used, sizeof(way_out) - used, "%s%s",
                                     i > 0 ? ", " : "", nth(i));
        }
    }
    refuse(r, node, what, way_out);
}

/* ---- values ---- */

static void read_name(struct reading *r, const struct tree_node *node, struct webhook *hook)
{
    size_t size = strlen(node->text);
    const char *allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (size >= sizeof(hook->name) || strspn(node->text, allowed) != size) {
        refuse(r, node, "a name is at most 32 letters, digits, '.', '_' and '-'", NULL);
        return;
    }
    if (webhook_config_find(r->config, node->text) != NULL) {
        refuse(r, node, "another webhook has this name", "each needs one of its own");
        return;
    }
    memcpy(hook->name, node->text, size + 1);
}

static void read_url(struct reading *r, const struct tree_node *node, struct webhook *hook)
{
    if (webhook_url_check(node->text, hook->shown) != ST_OK) {
        refuse(r, node, "this is no address to send to",
               "write the whole of it, as https://example.org/path");
        return;
    }
    (void)snprintf(hook->url, sizeof(hook->url), "%s", node->text);
}

static const char *nth_event(size_t i)
{
    return webhook_event_word((enum webhook_event)i);
}

static void read_event(struct reading *r, const struct tree_node *node, struct webhook *hook)
{
    for (size_t i = 0; node->kind == TREE_SCALAR && i < WEBHOOK_EVENTS; i++) {
        if (strcmp(node->text, nth_event(i)) == 0) {
            hook->events |= 1u << i;
            return;
        }
    }
    if (node->kind == TREE_SCALAR) {
        refuse_word(r, node, "there is no such event", nth_event, WEBHOOK_EVENTS);
    } else {
        refuse(r, node, "an event is a single word", NULL);
    }
}

static void read_events(struct reading *r, const struct tree_node *node, struct webhook *hook)
{
    if (node->kind == TREE_SCALAR) {
        read_event(r, node, hook);
        return;
    }
    for (const struct tree_node *one = node->first; one != NULL; one = one->next)
        read_event(r, one, hook);
    if (node->first == NULL)
        refuse(r, node, "no event is listed", "remove the key for all of them");
}

static const char *nth_format(size_t i)
{
    return webhook_format_word((enum webhook_format)i);
}

static void read_format(struct reading *r, const struct tree_node *node, struct webhook *hook)
{
    r->formatted = true;
    for (size_t i = 0; i < WEBHOOK_FORMATS; i++) {
        if (strcmp(node->text, nth_format(i)) == 0) {
            hook->format = (enum webhook_format)i;
            return;
        }
    }
    refuse_word(r, node, "there is no such format", nth_format, WEBHOOK_FORMATS);
}

static bool read_path(struct reading *r, const struct tree_node *node, char out[LIMIT_PATH])
{
    const bool absolute = node->text[0] == '/';
    int size = snprintf(out, LIMIT_PATH, "%s%s%s", absolute ? "" : r->base_dir, absolute ? "" : "/",
                        node->text);
    if (size > 0 && size < LIMIT_PATH)
        return true;
    out[0] = '\0';
    refuse(r, node, "this path is too long", NULL);
    return false;
}

static void read_secret_file(struct reading *r, const struct tree_node *node, struct webhook *hook)
{
    char *secret = NULL;
    size_t size = 0;
    struct reason reason = { "" };
    if (!read_path(r, node, hook->secret_file))
        return;
    enum status st = webhook_secret_read(hook->secret_file, &secret, &size, &reason);
    webhook_secret_free(secret, size);
    if (st == ST_NOT_FOUND) {
        refuse(r, node, "there is no such file",
               "make one: (umask 077; openssl rand -hex 32 > FILE)");
    } else if (st != ST_OK) {
        refuse(r, node, "this secret can't be used",
               reason.text[0] != '\0' ? reason.text : status_string(st));
    }
}

static void read_ca_file(struct reading *r, const struct tree_node *node, struct webhook *hook)
{
    FILE *file = read_path(r, node, hook->ca_file) ? fopen(hook->ca_file, "re") : NULL;
    if (file == NULL && hook->ca_file[0] != '\0')
        refuse(r, node, "this file can't be read", "it holds certificates of authorities, as PEM");
    if (file != NULL)
        (void)fclose(file);
}

static void read_jobs(struct reading *r, const struct tree_node *node, struct webhook *hook)
{
    if (strlen(node->text) >= sizeof(hook->jobs)) {
        refuse(r, node, "this pattern is too long", NULL);
        return;
    }
    (void)snprintf(hook->jobs, sizeof(hook->jobs), "%s", node->text);
}

/* ---- one webhook ---- */

static const struct key keys[] = {
    { "name", read_name, false },
    { "url", read_url, false },
    { "events", read_events, true },
    { "format", read_format, false },
    { "secret_file", read_secret_file, false },
    { "ca_file", read_ca_file, false },
    { "jobs", read_jobs, false },
};
#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

static const char *nth_key(size_t i)
{
    return keys[i].word;
}

static void read_key(struct reading *r, const struct tree_node *node, struct webhook *hook)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(node->key, keys[i].word) != 0)
            continue;
        if (node->kind == TREE_ABSENT) {
            jobspec_report_add(&r->report, node->key_place, "write a value, or remove the key",
                               "%s has no value", keys[i].word);
        } else if (node->kind == TREE_SCALAR || (keys[i].list && node->kind == TREE_LIST)) {
            keys[i].read(r, node, hook);
        } else {
            jobspec_report_add(&r->report, node->place, NULL, "%s must be %s", keys[i].word,
                               keys[i].list ? "a list of words" : "a single value");
        }
        return;
    }
    char way_out[LIMIT_REASON] = "keys of a webhook: " KEYS;
    const char *near = meant(node->key, nth_key, KEY_COUNT);
    if (near != NULL)
        (void)snprintf(way_out, sizeof(way_out), "did you mean '%s'?", near);
    jobspec_report_add(&r->report, node->key_place, way_out, "a webhook has no such key");
}

/* Slack takes its own format only. */
static enum webhook_format format_of(const struct webhook *hook)
{
    return strcmp(hook->shown, "https://hooks.slack.com/…") == 0 ? WEBHOOK_SLACK : WEBHOOK_JSON;
}

static void read_hook(struct reading *r, const struct tree_node *node, bool complete)
{
    struct webhook *hook = &r->config->hooks[r->config->count];
    *hook = (struct webhook){ .jobs = "*" };
    r->formatted = false;
    if (node->kind != TREE_MAP) {
        refuse(r, node, "a webhook is a section with keys", "write '- name: NAME'");
        return;
    }
    for (const struct tree_node *one = node->first; one != NULL; one = one->next)
        read_key(r, one, hook);
    static const char *const needed[] = { "name", "url" };
    for (size_t i = 0; complete && i < 2; i++) {
        if (tree_find(node, needed[i]) == NULL) {
            jobspec_report_add(&r->report, node->place,
                               i == 0 ? "add 'name: team'" : "add 'url: …'",
                               "this webhook has no %s", needed[i]);
        }
    }
    if (!r->formatted)
        hook->format = format_of(hook);
    if (hook->events == 0)
        hook->events = (1u << WEBHOOK_EVENTS) - 1;
    r->config->count++;
}

/* ---- the file ---- */

static void read_list(struct reading *r, const struct tree_node *list, bool complete)
{
    if (list->kind == TREE_ABSENT)
        return; /* none is fine */
    if (list->kind != TREE_LIST) {
        refuse(r, list, "webhooks must be a list", "write each as '- name: NAME', with its keys");
        return;
    }
    for (const struct tree_node *one = list->first; one != NULL; one = one->next) {
        if (r->config->count == WEBHOOK_MAX) {
            jobspec_report_add(&r->report, one->place, "one service can pass messages on to others",
                               "there are more than %d webhooks", WEBHOOK_MAX);
            return;
        }
        read_hook(r, one, complete);
    }
}

static void read_root(struct reading *r, const struct tree_node *root, bool complete)
{
    if (root == NULL || root->kind == TREE_ABSENT)
        return; /* empty: no webhooks */
    if (root->kind != TREE_MAP) {
        refuse(r, root, "this is no list of webhooks", "begin with 'webhooks:'");
        return;
    }
    for (const struct tree_node *node = root->first; node != NULL; node = node->next) {
        if (strcmp(node->key, "webhooks") == 0) {
            read_list(r, node, complete);
        } else {
            jobspec_report_add(&r->report, node->key_place, "the file has one key: webhooks",
                               "there is no such key");
        }
    }
}

/* The mistakes, over a text in which secrets are covered. */
static enum status print(struct reading *r, struct jobspec_source *source, struct buf *errors)
{
    auto_free char *covered = calloc(1, source->size + 1);
    if (covered == NULL)
        return ST_NO_MEMORY;
    memcpy(covered, source->text, source->size);
    webhook_mask(covered, source->size);
    source->text = covered;
    enum status st = jobspec_report_print(&r->report, errors);
    return st == ST_OK || st == ST_FULL ? ST_CONFIG : st;
}

enum status webhook_config_parse(const char *text, size_t size, const char *name,
                                 const char *base_dir, struct webhook_config **out,
                                 struct buf *errors)
{
    struct jobspec_source source = { .name = name, .text = text, .size = size, .line = 1 };
    struct reading r = { .base_dir = base_dir, .config = calloc(1, sizeof(*r.config)) };
    struct tree tree = { 0 };
    struct tree_node *root = NULL;
    enum status st = r.config == NULL ? ST_NO_MEMORY : tree_init(&tree);
    if (st == ST_OK)
        st = jobspec_report_init(&r.report, &source, 1);
    tree.kind = "webhook list";
    if (st == ST_OK)
        st = tree_read_yaml(&tree, 0, 0, &r.report, &root);
    if (st == ST_OK || st == ST_CONFIG) {
        read_root(&r, root, tree.complete);
        st = jobspec_report_empty(&r.report) ? ST_OK : print(&r, &source, errors);
    }
    jobspec_report_release(&r.report);
    tree_release(&tree);
    if (st == ST_OK) {
        *out = r.config;
    } else {
        free(r.config);
    }
    return st;
}

enum status webhook_config_read(const char *path, struct webhook_config **out, struct buf *errors)
{
    char *text = NULL;
    size_t size = 0;
    char folder[LIMIT_PATH];
    struct reason reason = { "" };
    enum status st = private_read(path, WEBHOOK_FILE_BYTES, &text, &size, &reason);
    if (st == ST_NOT_FOUND)
        return st;
    if (st != ST_OK) {
        const char *why = reason.text[0] != '\0' ? reason.text : status_string(st);
        const char *more = st == ST_REFUSED ? "\n  its addresses are secrets" : "";
        return buf_printf(errors, "%s: %s%s\n", path, why, more) == ST_OK ? st : ST_NO_MEMORY;
    }
    (void)snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        (void)snprintf(folder, sizeof(folder), ".");
    } else {
        *slash = '\0';
    }
    st = webhook_config_parse(text, size, path, folder, out, errors);
    webhook_secret_free(text, size);
    return st;
}

const struct webhook *webhook_config_find(const struct webhook_config *config, const char *name)
{
    for (size_t i = 0; i < config->count; i++) {
        if (strcmp(config->hooks[i].name, name) == 0)
            return &config->hooks[i];
    }
    return NULL;
}

bool webhook_wants(const struct webhook *hook, enum webhook_event event, const char *job_name)
{
    if (event == WEBHOOK_TEST)
        return true;
    return (hook->events & (1u << event)) != 0 && fnmatch(hook->jobs, job_name, 0) == 0;
}
