/* Looks whether the list of webhooks has changed. */
#include "observer/webhook/list.h"

#include <stdlib.h>
#include <string.h>

#define MISTAKES_BYTES ((size_t)64 * 1024)

void webhook_list_release(struct webhook_list *list)
{
    free(list->config);
    free(list->said);
    list->config = NULL;
    list->said = NULL;
}

static bool is_same(const struct io_stat *a, const struct io_stat *b)
{
    return a->size == b->size && a->inode == b->inode && a->mtime_ms == b->mtime_ms &&
           a->changed_ns == b->changed_ns;
}

/* The text without its last newline. */
static void log_mistakes(struct webhook_list *list, struct buf *mistakes)
{
    if (mistakes->size > 0 && mistakes->data[mistakes->size - 1] == '\n')
        mistakes->data[mistakes->size - 1] = '\0';
    const char *text = mistakes->size > 0 ? mistakes->data : list->path;
    if (list->said != NULL && strcmp(list->said, text) == 0)
        return;
    free(list->said);
    list->said = strdup(text); /* NULL: it is said again */
    LOG_ERROR(list->log, "%s; %s", text,
              list->config == NULL ? "no webhook is told anything"
                                   : "the list before it stays in force");
}

static bool read_list(struct webhook_list *list)
{
    auto_buf struct buf mistakes;
    struct webhook_config *config = NULL;
    buf_init(&mistakes, MISTAKES_BYTES);
    enum status st = webhook_config_read(list->path, &config, &mistakes);
    if (st == ST_NOT_FOUND) {
        config = calloc(1, sizeof(*config));
        st = config == NULL ? ST_NO_MEMORY : ST_OK;
    }
    list->bad = st != ST_OK;
    if (list->bad) {
        log_mistakes(list, &mistakes);
        return false;
    }
    if (config->count > 0 || (list->config != NULL && list->config->count > 0)) {
        LOG_INFO(list->log, "%s: %zu webhook%s", list->path, config->count,
                 config->count == 1 ? "" : "s");
    }
    free(list->said);
    list->said = NULL;
    free(list->config);
    list->config = config;
    return true;
}

bool webhook_list_look(struct webhook_list *list)
{
    struct io_stat now = { 0 };
    const struct io *io = io_system();
    if (io->stat(io->self, list->path, &now) != ST_OK)
        now = (struct io_stat){ 0 };
    const bool rests = !list->looked || is_same(&now, &list->was);
    const bool same = list->looked && !list->bad && is_same(&now, &list->is);
    list->was = now;
    list->looked = true;
    if (same || !rests)
        return false;
    list->is = now;
    return read_list(list);
}
