#include "agent/last_words.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/flight.h"
#include "common/unconst.h"

Cairn__V1__LastWords *last_words_read(const struct io *io, const char *path, const struct ref *ref)
{
    auto_free char *bytes = NULL;
    size_t size = 0;
    if (io_read_file(io, path, LIMIT_LAST_WORDS_BYTES, &bytes, &size) != ST_OK)
        return NULL;
    Cairn__V1__LastWords *words = cairn__v1__last_words__unpack(NULL, size, (const uint8_t *)bytes);
    if (words == NULL)
        return NULL;
    /* Last words may be of a later generation: a trainer may outlive the one that it was started
     * for. */
    if (strcmp(words->job, ref->job) == 0 && words->generation >= ref->generation &&
        words->rank == ref->rank)
        return words;
    last_words_free(words);
    return NULL;
}

void last_words_free(const Cairn__V1__LastWords *words)
{
    cairn__v1__last_words__free_unpacked(unconst(words), NULL);
}

#define PHASES_BEFORE 3 /* that are told beside the one it was in */

/* Appends, as far as there is room. */
static void __attribute__((format(printf, 3, 4)))
add(char *out, size_t capacity, const char *format, ...)
{
    const size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(out + used, capacity - used, format, args);
    va_end(args);
}

static void add_mark(const struct flight_record *mark, char *out, size_t capacity)
{
    switch ((enum flight_kind)mark->kind) {
    case FLIGHT_PHASE:
        add(out, capacity, "in phase %s", mark->name);
        break;
    case FLIGHT_COLLECTIVE_BEGIN:
        add(out, capacity, "in collective %" PRIu64 " (%s)", mark->value, mark->name);
        break;
    case FLIGHT_COLLECTIVE_END:
        add(out, capacity, "after collective %" PRIu64 " (%s)", mark->value, mark->name);
        break;
    }
    add(out, capacity, " of step %" PRIu64, mark->step + 1);
}

/* The phases before the last mark, newest first, and how far it was with collectives. */
static void add_before(const struct flight_dump *dump, char *out, size_t capacity)
{
    const struct flight_record *collective = NULL;
    uint32_t phases = 0;
    for (size_t i = dump->count - 1; i-- > 0 && (phases < PHASES_BEFORE || collective == NULL);) {
        const struct flight_record *mark = &dump->records[i];
        if (mark->kind != FLIGHT_PHASE) {
            collective = collective == NULL ? mark : collective;
        } else if (phases < PHASES_BEFORE) {
            add(out, capacity, "%s %s", phases++ == 0 ? ", before that" : ",", mark->name);
        }
    }
    if (collective == NULL || dump->records[dump->count - 1].kind != FLIGHT_PHASE)
        return;
    add(out, capacity, "; collective %" PRIu64 " (%s) %s", collective->value, collective->name,
        collective->kind == FLIGHT_COLLECTIVE_END ? "has ended" : "has not ended");
}

/* NULL: there is no mark. Freed by the caller. */
static struct flight_dump *read_marks(const struct io *io, const char *path)
{
    struct flight_dump *dump = malloc(sizeof(*dump));
    if (dump != NULL && flight_read(io, path, dump) == ST_OK && dump->count > 0)
        return dump;
    free(dump);
    return NULL;
}

uint64_t last_mark_step(const struct io *io, const char *path)
{
    auto_free struct flight_dump *dump = read_marks(io, path);
    return dump != NULL ? dump->records[dump->count - 1].step : 0;
}

void last_mark_read(const struct io *io, const char *path, char *out, size_t capacity)
{
    out[0] = '\0';
    auto_free struct flight_dump *dump = read_marks(io, path);
    if (dump == NULL)
        return;
    add_mark(&dump->records[dump->count - 1], out, capacity);
    add_before(dump, out, capacity);
}
