/*
 * The file of last words: written beside, then renamed. Not synced: it has to outlive the process,
 * not the machine.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/cleanup.h"
#include "session/internal.h"

static enum status replace_file(const struct io *io, const char *path, const uint8_t *bytes,
                                size_t size)
{
    char beside[LIMIT_PATH];
    const int length = snprintf(beside, sizeof(beside), "%s.new", path);
    if (length < 0 || (size_t)length >= sizeof(beside))
        return ST_FULL;
    (void)io->unlink(io->self, beside); /* of an earlier life */
    int fd = -1;
    enum status st = io->open(io->self, beside, IO_CREATE_NEW, &fd);
    if (st != ST_OK)
        return st;
    st = io_write_all(io, fd, bytes, size, 0);
    const enum status closed = io->close(io->self, fd);
    if (st == ST_OK)
        st = closed;
    return st == ST_OK ? io->rename(io->self, beside, path) : st;
}

void session_write_last_words(struct session *session)
{
    const struct session_options *o = &session->options;
    if (o->last_words_path == NULL)
        return;
    auto_free uint8_t *bytes = NULL;
    size_t size = 0;
    const struct session_progress progress = session_progress_of(session);
    (void)pthread_mutex_lock(&session->last_words_mutex);
    (void)pthread_mutex_lock(&session->mutex);
    const uint64_t version = session->fsm.last_words_version;
    enum status st = ST_OK;
    if (version != session->last_words_written && !session->retired)
        st = session_fsm_last_words(&session->fsm, &progress, &bytes, &size);
    (void)pthread_mutex_unlock(&session->mutex);
    if (bytes != NULL)
        st = replace_file(o->io, o->last_words_path, bytes, size);
    if (st == ST_OK) {
        session->last_words_written = version;
    } else {
        LOG_WARN(o->log, "%s: last words not written, ignoring: %s", o->last_words_path,
                 status_string(st));
    }
    (void)pthread_mutex_unlock(&session->last_words_mutex);
}
