/* ListJobs: those in memory as they are, those that ended as they were written down then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/api.h"
#include "server/render/render.h"

enum status api_summary(void *arg, struct coord_job *job, struct buf *out)
{
    (void)arg;
    Cairn__V1__Job *shown = render_job(NULL, job, 1);
    if (shown == NULL)
        return ST_NO_MEMORY;
    const size_t size = cairn__v1__job__get_packed_size(shown);
    uint8_t *data = malloc(size ? size : 1);
    enum status st = ST_NO_MEMORY;
    if (data != NULL && size > out->size_max) {
        st = ST_OK; /* none: it is read whole */
    } else if (data != NULL) {
        (void)cairn__v1__job__pack(shown, data);
        st = buf_append(out, data, size);
    }
    free(data);
    cairn__v1__job__free_unpacked(shown, NULL);
    return st;
}

/* A page before its jobs are rendered: the journal must not change while it is read. */
struct listing {
    struct listed {
        char id[16];
        void *row; /* owned; NULL: it has no summary */
        size_t size;
    } * list;
    size_t count, bytes;
    bool cut; /* there are more */
    bool failed;
};

static bool add_listed(void *arg, const char *id, const void *row, size_t size)
{
    struct listing *listing = arg;
    struct listed *one = &listing->list[listing->count];
    *one = (struct listed){ .size = size };
    (void)snprintf(one->id, sizeof(one->id), "%s", id);
    if (size > 0) {
        one->row = malloc(size);
        listing->failed = one->row == NULL;
        if (one->row == NULL)
            return false;
        memcpy(one->row, row, size);
    }
    listing->count++;
    listing->bytes += size;
    listing->cut = listing->bytes >= API_PAGE_BYTES;
    return !listing->cut;
}

/* Returns a listed job. NULL: it is to be left out (forgotten meanwhile, or the journal failed), or
 * no memory. */
static Cairn__V1__Job *render_listed(struct api *api, const struct listed *one, size_t *loads)
{
    struct coord_job *job = coord_loaded(api->coord, one->id);
    Cairn__V1__Job *out = NULL;
    if (job == NULL && one->row != NULL)
        out = cairn__v1__job__unpack(NULL, one->size, one->row);
    auto_buf struct buf row;
    buf_init(&row, (size_t)LIMIT_MESSAGE_BYTES);
    if (job == NULL && out == NULL && coord_summarise(api->coord, one->id, &row) == ST_OK &&
        row.size > 0) {
        ++*loads;
        out = cairn__v1__job__unpack(NULL, row.size, (const uint8_t *)row.data);
    }
    if (job == NULL && out == NULL && ++*loads && coord_find(api->coord, one->id, &job) != ST_OK)
        return NULL;
    return out != NULL ? out : render_job(api->coord, job, 1);
}

/* The listing has one job more than the page, so that it is known whether there is another. */
static bool fill(struct api *api, const struct listing *listing, size_t size,
                 Cairn__V1__ListJobsReply *page)
{
    size_t bytes = 0, loads = 0, i = 0;
    while (i < listing->count && i < size && bytes < API_PAGE_BYTES && loads < API_LOADS_MAX) {
        Cairn__V1__Job *one = render_listed(api, &listing->list[i++], &loads);
        if (one == NULL)
            continue;
        bytes += cairn__v1__job__get_packed_size(one);
        page->jobs[page->n_jobs++] = one;
    }
    if (i == 0 || (i == listing->count && !listing->cut))
        return true;
    page->next_page_token = strdup(listing->list[i - 1].id);
    return page->next_page_token != NULL;
}

Cairn__V1__ListJobsReply *api_list(struct api *api, size_t size, const char *token)
{
    const size_t max = size > 0 && size < RENDER_PAGE ? size : RENDER_PAGE;
    struct listing listing = { .list = calloc(max + 1, sizeof(*listing.list)) };
    Cairn__V1__ListJobsReply *page = malloc(sizeof(*page));
    bool ok = listing.list != NULL && page != NULL;
    if (page != NULL) {
        cairn__v1__list_jobs_reply__init(page);
        page->jobs = calloc(max, sizeof(void *));
        ok = ok && page->jobs != NULL;
    }
    ok = ok && journal_list_jobs(coord_options(api->coord)->journal, token, (uint32_t)max + 1,
                                 add_listed, &listing) == ST_OK;
    ok = ok && !listing.failed && fill(api, &listing, max, page);
    for (size_t i = 0; i < listing.count; i++)
        free(listing.list[i].row);
    free(listing.list);
    if (ok)
        return page;
    cairn__v1__list_jobs_reply__free_unpacked(page, NULL);
    return NULL;
}

void api_debug_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                   Cairn__V1__DebugJobReply_Closure reply, void *call)
{
    struct api *api = ((struct api_service_control *)service)->api;
    struct coord_job *job = api_job(api, call, in->job);
    if (job == NULL)
        return;
    Cairn__V1__DebugJobReply out = CAIRN__V1__DEBUG_JOB_REPLY__INIT;
    out.id = job->id;
    out.json = render_debug(api->coord, job);
    if (out.json != NULL) {
        reply(&out, call);
    } else {
        api_refuse(call, RPC_INTERNAL, "no memory");
    }
    free(out.json);
}
