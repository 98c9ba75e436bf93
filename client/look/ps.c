/* ps: the jobs, newest first. */
#include <stdio.h>
#include <stdlib.h>

#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/look/commands.h"
#include "client/print/job.h"

#define PAGE       1000
#define LISTED_MAX ((size_t)1024 << 10)

/* All pages as one list. */
struct job_list {
    ProtobufCMessage **rows; /* borrowed from pages */
    size_t count;
    Cairn__V1__ListJobsReply **pages;
    size_t page_count;
};

static void list_release(struct job_list *list)
{
    for (size_t i = 0; i < list->page_count; i++)
        cairn__v1__list_jobs_reply__free_unpacked(list->pages[i], NULL);
    free(list->pages);
    free(list->rows);
    *list = (struct job_list){ 0 };
}

/* Takes over the page. False: out of memory. */
static bool list_add(struct job_list *list, Cairn__V1__ListJobsReply *page)
{
    Cairn__V1__ListJobsReply **pages =
        realloc(list->pages, (list->page_count + 1) * sizeof(Cairn__V1__ListJobsReply *));
    if (pages == NULL) {
        cairn__v1__list_jobs_reply__free_unpacked(page, NULL);
        return false;
    }
    list->pages = pages;
    list->pages[list->page_count++] = page;
    if (page->n_jobs == 0)
        return true;
    ProtobufCMessage **rows =
        realloc(list->rows, (list->count + page->n_jobs) * sizeof(ProtobufCMessage *));
    if (rows == NULL)
        return false;
    list->rows = rows;
    for (size_t i = 0; i < page->n_jobs; i++)
        list->rows[list->count++] = &page->jobs[i]->base;
    return true;
}

static enum exit_code list_all(struct client *client, struct job_list *list)
{
    char *token = "";
    do {
        Cairn__V1__ListJobsRequest request = CAIRN__V1__LIST_JOBS_REQUEST__INIT;
        request.page_size = PAGE;
        request.page_token = token;
        ProtobufCMessage *reply = NULL;
        enum exit_code code = client_call(client, "ListJobs", &request.base, 0, &reply);
        if (code != EXIT_DONE)
            return code;
        Cairn__V1__ListJobsReply *page = (Cairn__V1__ListJobsReply *)reply;
        token = page->next_page_token;
        if (!list_add(list, page)) {
            client_error("out of memory");
            return EXIT_INTERNAL;
        }
    } while (token[0] != '\0' && list->count < LISTED_MAX);
    return EXIT_DONE;
}

static enum exit_code ps_once(struct client *client)
{
    struct job_list list = { 0 };
    enum exit_code code = list_all(client, &list);
    if (code == EXIT_DONE)
        code = output_list(client, job_columns, list.rows, list.count);
    if (code == EXIT_DONE && list.count == 0 && client->args.output == OUTPUT_TABLE)
        client_note(client, "no jobs yet; submit one with: cairn submit FILE\n");
    list_release(&list);
    return code;
}

enum exit_code cmd_ps(struct client *client)
{
    return interrupt_repeat(client, ps_once);
}
