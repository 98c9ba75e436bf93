/* ps: the jobs, newest first, or in the order asked for. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/print/columns.h"
#include "client/print/job_columns.h"
#include "client/query/commands.h"
#include "proto/text/job_state.h"

#define PAGE       1000
#define LISTED_MAX ((size_t)1024 << 10)

/* The jobs that are asked for, of all pages, as one list. */
struct job_list {
    unsigned states;         /* bit s: state s is */
    const char *name;        /* pattern, or NULL */
    size_t most;             /* rows */
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

/* ---- which ---- */

static unsigned states_of(const char *word, size_t size)
{
    const ProtobufCEnumDescriptor *all = &cairn__v1__job_state__descriptor;
    unsigned states = 0;
    for (unsigned i = 0; i < all->n_values; i++) {
        const Cairn__V1__JobState state = (Cairn__V1__JobState)all->values[i].value;
        const char *name = job_state_name(state);
        const bool over = job_is_over(state);
        if ((strncasecmp(name, word, size) == 0 && name[size] == '\0') ||
            (size == 4 && strncasecmp(word, "over", size) == 0 && over) ||
            (size == 6 && strncasecmp(word, "active", size) == 0 && !over))
            states |= 1U << state;
    }
    return states;
}

/* false: a word is no state, which was said. */
static bool parse_states(const char *words, unsigned *out)
{
    *out = words == NULL ? ~0U : 0;
    for (const char *at = words, *next; at != NULL; at = next) {
        const size_t size = strcspn(at, ",");
        const unsigned states = states_of(at, size);
        if (states == 0) {
            client_error("--state: '%.*s' is no state; say active, over, or one of those that "
                         "'cairn ps' shows",
                         (int)size, at);
            return false;
        }
        *out |= states;
        next = at[size] == ',' ? at + size + 1 : NULL;
    }
    return true;
}

static bool is_wanted(const struct job_list *list, const Cairn__V1__Job *job)
{
    const bool state = job->state >= 32 || (list->states >> job->state & 1) != 0;
    return state && (list->name == NULL || fnmatch(list->name, job->name, 0) == 0);
}

/* ---- pages ---- */

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
    const size_t before = list->count;
    for (size_t i = 0; i < page->n_jobs && list->count < list->most; i++) {
        if (is_wanted(list, page->jobs[i]))
            list->rows[list->count++] = &page->jobs[i]->base;
    }
    if (list->count == before) /* of a million jobs few may be wanted */
        cairn__v1__list_jobs_reply__free_unpacked(list->pages[--list->page_count], NULL);
    return true;
}

static enum exit_code list_all(struct client *client, struct job_list *list)
{
    char token[LIMIT_NAME] = "";
    do {
        Cairn__V1__ListJobsRequest request = CAIRN__V1__LIST_JOBS_REQUEST__INIT;
        request.page_size = PAGE;
        request.page_token = token;
        ProtobufCMessage *reply = NULL;
        enum exit_code code = client_call(client, "ListJobs", &request.base, 0, &reply);
        if (code != EXIT_DONE)
            return code;
        Cairn__V1__ListJobsReply *page = (Cairn__V1__ListJobsReply *)reply;
        const int size = snprintf(token, sizeof(token), "%s", page->next_page_token);
        if (size < 0 || (size_t)size >= sizeof(token)) {
            cairn__v1__list_jobs_reply__free_unpacked(page, NULL);
            client_error("the coordinator's list goes on in a way that this client doesn't know");
            return EXIT_INTERNAL;
        }
        if (!list_add(list, page)) {
            client_error("out of memory");
            return EXIT_INTERNAL;
        }
    } while (token[0] != '\0' && list->count < list->most);
    return EXIT_DONE;
}

static enum exit_code ps_once(struct client *client)
{
    struct column chosen[OUTPUT_COLUMNS_MAX + 1];
    const struct column *columns = job_columns;
    struct order order;
    const size_t most = client->args.last >= 0 ? (size_t)client->args.last : LISTED_MAX;
    struct job_list list = { .name = client->args.name };
    enum exit_code code = columns_of_call(client, &columns, chosen, &order);
    if (code == EXIT_DONE && !parse_states(client->args.state, &list.states))
        code = EXIT_USAGE;
    if (code != EXIT_DONE)
        return code;
    list.most = order.count > 0 ? LISTED_MAX : most; /* the first of all, not of the newest */
    const bool all = list.states == ~0U && list.name == NULL;
    code = list_all(client, &list);
    if (code == EXIT_DONE && columns_sort(&order, list.rows, list.count) != ST_OK) {
        client_error("%s", status_string(ST_NO_MEMORY));
        code = EXIT_INTERNAL;
    }
    if (code == EXIT_DONE)
        code = output_list(client, columns, list.rows, list.count < most ? list.count : most);
    if (code == EXIT_DONE && list.count == 0 && all && most > 0 &&
        client->args.output == OUTPUT_TABLE)
        client_note(client, "no jobs yet; submit one with: cairn submit FILE\n");
    list_release(&list);
    return code;
}

enum exit_code cmd_ps(struct client *client)
{
    return columns_asked(client) ? columns_help(job_columns) : interrupt_repeat(client, ps_once);
}
