#include "trainer/standalone/preview_data.h"

#include <stdlib.h>

#include "common/cleanup.h"

#define SHOWN     12
#define LOOKED_AT 65536 /* tokens, about: a moment */

/* The largest token of the first windows; all are checked against the vocabulary. */
static enum status look(const struct dataset *data, int32_t *room, int32_t *first,
                        int32_t *out_largest, uint64_t *out_count, struct reason *reason)
{
    const uint64_t context = (uint64_t)data->context;
    const uint64_t windows = 1 + LOOKED_AT / context;
    enum status st = ST_OK;
    for (uint64_t w = 0; st == ST_OK && w < windows && w < data->samples; w++) {
        st = dataset_window(data, w, room, reason);
        for (uint64_t i = 0; st == ST_OK && i <= context; i++) {
            if (w == 0 && i < SHOWN)
                first[i] = room[i];
            *out_largest = room[i] > *out_largest ? room[i] : *out_largest;
        }
        *out_count = (w + 1) * context + 1;
    }
    return st;
}

static enum status print_tokens(const struct dataset *data, struct buf *out, struct reason *reason)
{
    int32_t first[SHOWN] = { 0 }, largest = 0;
    uint64_t count = 0;
    auto_free int32_t *room = calloc((size_t)data->context + 1, sizeof(*room));
    if (room == NULL)
        return ST_NO_MEMORY;
    enum status st = look(data, room, first, &largest, &count, reason);
    if (st == ST_OK)
        st = buf_append_text(out, "tokens     begin with");
    for (int64_t i = 0; st == ST_OK && i < SHOWN && i <= data->context; i++)
        st = buf_printf(out, " %d", first[i]);
    if (st == ST_OK) {
        st = buf_printf(out, "; the largest of the first %llu is %d\n", (unsigned long long)count,
                        largest);
    }
    return st;
}

enum status preview_data_print(const struct jobspec *job, const struct dataset *train,
                               const struct dataset *eval, struct buf *out, struct reason *reason)
{
    enum status st = buf_printf(out, "data       %llu samples", (unsigned long long)train->samples);
    if (st == ST_OK && train->context > 0)
        st = buf_printf(out, " of %lld tokens", (long long)train->context);
    if (st == ST_OK && eval != NULL)
        st = buf_printf(out, ", %llu to evaluate on", (unsigned long long)eval->samples);
    if (st == ST_OK)
        st = buf_append_text(out, "\n");
    if (st == ST_OK && job->data.train.format == JOBSPEC_FORMAT_TOKENS)
        st = print_tokens(train, out, reason);
    return st;
}
