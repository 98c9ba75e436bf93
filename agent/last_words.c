#include "agent/last_words.h"

#include <inttypes.h>
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
    if (strcmp(words->job, ref->job) == 0 && words->generation == ref->generation &&
        words->rank == ref->rank)
        return words;
    last_words_free(words);
    return NULL;
}

void last_words_free(const Cairn__V1__LastWords *words)
{
    cairn__v1__last_words__free_unpacked(unconst(words), NULL);
}

static const char *kind_text(uint32_t kind)
{
    switch ((enum flight_kind)kind) {
    case FLIGHT_PHASE:
        return "in phase";
    case FLIGHT_COLLECTIVE_BEGIN:
        return "in collective";
    case FLIGHT_COLLECTIVE_END:
        break;
    }
    return "after collective";
}

void last_mark_read(const struct io *io, const char *path, char *out, size_t capacity)
{
    out[0] = '\0';
    auto_free struct flight_dump *dump = malloc(sizeof(*dump));
    if (dump == NULL || flight_read(io, path, dump) != ST_OK || dump->count == 0)
        return;
    const struct flight_record *last = &dump->records[dump->count - 1];
    (void)snprintf(out, capacity, "%s %s of step %" PRIu64, kind_text(last->kind), last->name,
                   last->step + 1);
}
