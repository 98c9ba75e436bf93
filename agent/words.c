#include "agent/words.h"

#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

/* They travel in a message, beside other fields. */
enum { WORDS_BYTES_MAX = LIMIT_MESSAGE_BYTES - 256 * 1024 };

Cairn__V1__LastWords *words_read(const struct io *io, const char *path, const struct ref *ref)
{
    auto_free char *bytes = NULL;
    size_t size = 0;
    if (io_read_file(io, path, WORDS_BYTES_MAX, &bytes, &size) != ST_OK)
        return NULL;
    Cairn__V1__LastWords *words = cairn__v1__last_words__unpack(NULL, size, (const uint8_t *)bytes);
    if (words == NULL)
        return NULL;
    if (strcmp(words->job, ref->job) == 0 && words->generation == ref->generation &&
        words->rank == ref->rank)
        return words;
    words_free(words);
    return NULL;
}

void words_free(const Cairn__V1__LastWords *words)
{
    union {
        const Cairn__V1__LastWords *in;
        Cairn__V1__LastWords *out;
    } same = { .in = words };
    cairn__v1__last_words__free_unpacked(same.out, NULL);
}
