/* Finds what is new in a job. */
#include "observer/webhook/job_news.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CAUSE_BYTES 64
#define NEXT_BYTES  (LIMIT_NAME + 32)

struct finding {
    const Cairn__V1__Job *job;
    struct webhook_cursor *cursor;
    int64_t since_ms;
    webhook_news_fn fn;
    void *arg;
};

/* 0: it is none. */
static int64_t time_ms(const char *text)
{
    struct tm parts = { 0 };
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);
    if (rest == NULL)
        return 0;
    int64_t ms = 0;
    rest += rest[0] == '.';
    for (int scale = 100; rest[0] >= '0' && rest[0] <= '9' && scale > 0; scale /= 10)
        ms += (int64_t)(*rest++ - '0') * scale;
    return (int64_t)timegm(&parts) * 1000 + ms;
}

static const char *state_word(const Cairn__V1__Job *job)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&cairn__v1__job_state__descriptor, (int)job->state);
    return value == NULL ? "" : value->name;
}

/* A sentence that begins with the job's name. */
static void say(char out[WEBHOOK_MESSAGE], const Cairn__V1__Job *job, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(char out[WEBHOOK_MESSAGE], const Cairn__V1__Job *job, const char *format, ...)
{
    int used = snprintf(out, WEBHOOK_MESSAGE, "%.100s ", job->name);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(out + used, WEBHOOK_MESSAGE - (size_t)used, format, args);
    va_end(args);
}

static struct webhook_news news_of(const struct finding *f, enum webhook_event event)
{
    return (struct webhook_news){ .event = event,
                                  .job = f->job->id,
                                  .name = f->job->name,
                                  .state = state_word(f->job),
                                  .time = "",
                                  .step = (int64_t)f->job->step,
                                  .cause = "",
                                  .node = "",
                                  .rank = -1,
                                  .seconds_lost = (double)NAN,
                                  .steps_lost = -1 };
}

static void tell(const struct finding *f, struct webhook_news *news, const char *verb,
                 const char *key)
{
    char next[NEXT_BYTES];
    (void)snprintf(next, sizeof(next), "cairn %s %s", verb, f->job->id);
    news->next = next;
    f->fn(f->arg, news, key);
}

/* ---- failures, as events tell them: "CAUSE: rank N: MESSAGE" ---- */

struct fault {
    char cause[CAUSE_BYTES];
    int64_t rank;
    const char *node; /* of that rank now */
    const char *message;
};

static const char *node_of(const Cairn__V1__Job *job, int64_t rank)
{
    for (size_t i = 0; rank >= 0 && i < job->n_workers; i++) {
        if (job->workers[i]->rank == (uint64_t)rank)
            return job->workers[i]->node;
    }
    return "";
}

static bool is_fault(const Cairn__V1__Event *event)
{
    return strcmp(event->kind, "fault") == 0;
}

static struct fault read_fault(const Cairn__V1__Job *job, const Cairn__V1__Event *event)
{
    struct fault fault = { .cause = "", .rank = -1, .node = "", .message = event->message };
    const char *colon = strstr(event->message, ": ");
    if (colon == NULL || (size_t)(colon - event->message) >= sizeof(fault.cause))
        return fault;
    (void)snprintf(fault.cause, sizeof(fault.cause), "%.*s", (int)(colon - event->message),
                   event->message);
    fault.message = colon + 2;
    char *end = NULL;
    if (strncmp(fault.message, "rank ", 5) == 0) {
        const unsigned long long rank = strtoull(fault.message + 5, &end, 10);
        if (end != fault.message + 5 && strncmp(end, ": ", 2) == 0 && rank < LIMIT_NUMBERS) {
            fault.rank = (int64_t)rank;
            fault.message = end + 2;
        }
    }
    fault.node = node_of(job, fault.rank);
    return fault;
}

/* The last of them; NULL: there was none. */
static const Cairn__V1__Event *last_fault(const Cairn__V1__Job *job)
{
    for (size_t i = job->n_events; i > 0; i--) {
        if (is_fault(job->events[i - 1]))
            return job->events[i - 1];
    }
    return NULL;
}

static void blame(struct webhook_news *news, const struct fault *fault)
{
    news->cause = fault->cause;
    news->rank = fault->rank;
    news->node = fault->node;
}

/* ---- events ---- */

static uint64_t hash_text(uint64_t hash, const char *text)
{
    const size_t size = strlen(text) + 1; /* with the NUL: it parts them */
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    return hash;
}

/* FNV-1a: only to find it again. Never 0. */
static uint64_t hash_event(const Cairn__V1__Event *event)
{
    char numbers[48];
    (void)snprintf(numbers, sizeof(numbers), "%u/%" PRIu64, event->generation, event->step);
    uint64_t hash = hash_text(0xcbf29ce484222325u, event->time);
    hash = hash_text(hash, numbers);
    hash = hash_text(hash, event->kind);
    hash = hash_text(hash, event->message);
    return hash != 0 ? hash : 1;
}

/* True for a kind of trouble that is told each time: it is not a state that ends. */
static bool is_moment(const char *trouble)
{
    return strcmp(trouble, "damaged") == 0 || strcmp(trouble, "restart") == 0;
}

/* Returns the kind of trouble that an event reports; NULL: none. */
static const char *trouble_of(const Cairn__V1__Event *event)
{
    static const char *const kinds[] = { "store-full", "store-fails", "store-away", "damaged",
                                         "restart" };
    static const char *const faults[] = { "checkpoint store", "damaged checkpoint" };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(event->kind, kinds[i]) == 0)
            return kinds[i];
    }
    for (size_t i = 0; is_fault(event) && i < sizeof(faults) / sizeof(faults[0]); i++) {
        const size_t size = strlen(faults[i]);
        if (strncmp(event->message, faults[i], size) == 0 && event->message[size] == ':')
            return faults[i];
    }
    return NULL;
}

/* True if an event ends the trouble of that kind. */
static bool is_over(const char *trouble, const Cairn__V1__Event *event)
{
    if (strcmp(event->kind, "store-room") == 0)
        return strcmp(trouble, "store-full") == 0;
    if (strcmp(event->kind, "store-works") == 0)
        return strcmp(trouble, "store-fails") == 0;
    const bool saves = strcmp(trouble, "store-full") == 0 || strcmp(trouble, "store-fails") == 0;
    return strcmp(event->kind, "running") == 0 && !saves;
}

static struct webhook_news news_of_event(const struct finding *f, const Cairn__V1__Event *event,
                                         enum webhook_event kind)
{
    struct webhook_news news = news_of(f, kind);
    news.time = event->time;
    news.step = (int64_t)event->step;
    return news;
}

static void tell_trouble(const struct finding *f, const Cairn__V1__Event *event, bool over,
                         const char *key)
{
    char message[WEBHOOK_MESSAGE];
    struct fault fault = { .cause = "", .rank = -1, .node = "", .message = event->message };
    struct webhook_news news = news_of_event(f, event, WEBHOOK_STORE_TROUBLE);
    if (is_fault(event)) {
        fault = read_fault(f->job, event);
    } else {
        (void)snprintf(fault.cause, sizeof(fault.cause), "%s", event->kind);
    }
    if (!over)
        blame(&news, &fault);
    news.over = over;
    news.message = message;
    say(message, f->job, "%s: %.700s",
        over ? "has no more trouble with its checkpoints"
             : "has trouble with its checkpoints or their store",
        fault.message);
    tell(f, &news, "why", key);
}

static void tell_diverged(const struct finding *f, const Cairn__V1__Event *event, const char *key)
{
    char message[WEBHOOK_MESSAGE];
    struct webhook_news news = news_of_event(f, event, WEBHOOK_DIVERGED);
    struct fault fault = { .cause = "numeric", .rank = -1, .node = "", .message = event->message };
    if (is_fault(event))
        fault.message = read_fault(f->job, event).message;
    blame(&news, &fault);
    news.message = message;
    say(message, f->job, "diverges: %.700s", fault.message);
    tell(f, &news, "why", key);
}

static bool is_diverged(const Cairn__V1__Event *event)
{
    if (strcmp(event->kind, "skip") == 0)
        return true;
    return is_fault(event) && strstr(event->message, ": diverged since step ") != NULL;
}

/* The first event that is new. */
static size_t first_new(const struct finding *f)
{
    const Cairn__V1__Job *job = f->job;
    const struct webhook_cursor *cursor = f->cursor;
    for (size_t i = job->n_events; cursor->event != 0 && i > 0; i--) {
        if (hash_event(job->events[i - 1]) == cursor->event)
            return i;
    }
    /* The cursor's event is not among the newest: the job was never looked at, or long ago. */
    const int64_t after_ms = cursor->seen ? cursor->event_ms + 1 : f->since_ms;
    size_t first = job->n_events;
    while (first > 0 && time_ms(job->events[first - 1]->time) >= after_ms)
        first--;
    return first;
}

static void find_events(const struct finding *f)
{
    const Cairn__V1__Job *job = f->job;
    const size_t first = first_new(f);
    const char *trouble = NULL; /* that isn't over */
    for (size_t i = 0; i < job->n_events; i++) {
        const Cairn__V1__Event *event = job->events[i];
        const char *begins = trouble_of(event);
        const bool ends = trouble != NULL && begins == NULL && is_over(trouble, event);
        const bool told = begins != NULL && (trouble == NULL || strcmp(begins, trouble) != 0);
        const bool stays = begins != NULL && !is_moment(begins);
        char key[WEBHOOK_KEY];
        (void)snprintf(key, sizeof(key), "event/%016" PRIx64, hash_event(event));
        if (i >= first && (told || ends))
            tell_trouble(f, event, ends, key);
        if (i >= first && is_diverged(event))
            tell_diverged(f, event, key);
        if (stays)
            trouble = begins;
        if (ends)
            trouble = NULL;
    }
    if (job->n_events > 0) {
        const Cairn__V1__Event *newest = job->events[job->n_events - 1];
        f->cursor->event = hash_event(newest);
        f->cursor->event_ms = time_ms(newest->time);
    }
}

/* ---- recoveries ---- */

static double seconds_of(const Cairn__V1__Recovery *recovery)
{
    double sum = 0;
    for (size_t i = 0; i < recovery->n_seconds; i++)
        sum += recovery->seconds[i]->seconds;
    return sum;
}

static bool is_planned(const Cairn__V1__Recovery *recovery)
{
    return recovery->cause[0] == '\0' || strcmp(recovery->cause, "planned") == 0;
}

static const char *source_of(const Cairn__V1__Recovery *recovery)
{
    static const char *const words[][2] = {
        { "live", "with the state of workers that went on" },
        { "memory", "from copies in memory" },
        { "checkpoint", "from a checkpoint" },
        { "seed", "from the beginning" },
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(recovery->kind, words[i][0]) == 0)
            return words[i][1];
    }
    return "";
}

/* first: what it all began with; the generations in between didn't get as far. */
static void tell_recovered(const struct finding *f, const Cairn__V1__Recovery *first,
                           const Cairn__V1__Recovery *done, double seconds)
{
    char message[WEBHOOK_MESSAGE], key[WEBHOOK_KEY], who[LIMIT_NAME + 32] = "";
    struct webhook_news news = news_of(f, WEBHOOK_RECOVERED);
    if (first->rank >= 0) {
        (void)snprintf(who, sizeof(who), ", rank %d%s%s", first->rank, first->node[0] ? " on " : "",
                       first->node);
    }
    (void)snprintf(key, sizeof(key), "recovered/%u", done->generation);
    news.time = first->time;
    news.step = (int64_t)done->step;
    news.cause = first->cause;
    news.node = first->node;
    news.rank = first->rank;
    news.seconds_lost = seconds;
    news.steps_lost = (int64_t)first->steps_lost;
    if (done->steps_lost > first->steps_lost)
        news.steps_lost = (int64_t)done->steps_lost;
    news.message = message;
    say(message, f->job,
        "recovered from a failure (%s%s: %.300s): from step %" PRIu64 " %s, %" PRId64
        " steps again, %.1f s lost",
        first->cause, who, first->message, done->step, source_of(done), news.steps_lost, seconds);
    tell(f, &news, "why", key);
}

/* Tells recoveries that are done. How an old one ended doesn't matter, but one that was under way
 * at the last look does. */
static void find_recoveries(const struct finding *f)
{
    const Cairn__V1__Recovery *first = NULL;
    double seconds = 0;
    for (size_t i = 0; i < f->job->n_recoveries; i++) {
        const Cairn__V1__Recovery *r = f->job->recoveries[i];
        const bool done = strcmp(r->state, "done") == 0, cut = strcmp(r->state, "cut") == 0;
        if (!done && !cut)
            break; /* under way: the next look has its end */
        if (first == NULL && !is_planned(r))
            first = r;
        seconds += first != NULL ? seconds_of(r) : 0;
        if (!done)
            continue;
        const bool old = !f->cursor->seen && first != NULL && time_ms(first->time) < f->since_ms;
        if (first != NULL && !old && r->generation > f->cursor->recovered)
            tell_recovered(f, first, r, seconds);
        if (r->generation > f->cursor->recovered)
            f->cursor->recovered = r->generation;
        first = NULL;
        seconds = 0;
    }
}

/* ---- the end ---- */

static void say_where(char out[64], const Cairn__V1__Job *job)
{
    if (job->total_steps > 0) {
        (void)snprintf(out, 64, "at step %" PRIu64 " of %" PRIu64, job->step, job->total_steps);
    } else {
        (void)snprintf(out, 64, "before its first step");
    }
}

/* Tells the end of a job; another end of the same job is of another attempt. */
static void tell_end(const struct finding *f, struct webhook_news *news, const char *verb)
{
    char key[WEBHOOK_KEY];
    (void)snprintf(key, sizeof(key), "ended/%u", f->job->generation);
    tell(f, news, verb, key);
}

static void tell_failed(const struct finding *f)
{
    char message[WEBHOOK_MESSAGE], where[64];
    const Cairn__V1__Job *job = f->job;
    const Cairn__V1__Event *event = last_fault(job);
    struct fault fault = { .cause = "", .rank = -1, .node = "", .message = "" };
    if (event != NULL)
        fault = read_fault(job, event);
    if (strcmp(fault.cause, "numeric") == 0)
        tell_diverged(f, event, "ended/diverged");
    struct webhook_news news = news_of(f, WEBHOOK_FAILED);
    blame(&news, &fault);
    news.time = job->ended_at;
    news.message = message;
    say_where(where, job);
    say(message, job, "failed %s: %.500s", where,
        job->reason[0] != '\0' ? job->reason : fault.message);
    tell_end(f, &news, "why");
}

static void tell_finished(const struct finding *f)
{
    char message[WEBHOOK_MESSAGE], where[64], loss[64] = "", accuracy[64] = "";
    const Cairn__V1__Job *job = f->job;
    struct webhook_news news = news_of(f, WEBHOOK_FINISHED);
    if (isfinite(job->loss))
        (void)snprintf(loss, sizeof(loss), ", loss %.4g", job->loss);
    if (isfinite(job->accuracy))
        (void)snprintf(accuracy, sizeof(accuracy), ", accuracy %.4g", job->accuracy);
    news.time = job->ended_at;
    news.message = message;
    if (job->state == CAIRN__V1__JOB_STATE__SUCCEEDED) {
        say(message, job, "finished: %" PRIu64 " steps%s%s", job->step, loss, accuracy);
    } else {
        const bool killed = job->state == CAIRN__V1__JOB_STATE__KILLED;
        say_where(where, job);
        say(message, job, "was %s %s%s%s", killed ? "killed" : "stopped", where, loss, accuracy);
    }
    tell_end(f, &news, "show");
}

static bool is_final(const Cairn__V1__Job *job)
{
    return job->state == CAIRN__V1__JOB_STATE__SUCCEEDED ||
           job->state == CAIRN__V1__JOB_STATE__FAILED ||
           job->state == CAIRN__V1__JOB_STATE__STOPPED ||
           job->state == CAIRN__V1__JOB_STATE__KILLED;
}

static void find_end(const struct finding *f)
{
    const int64_t ended_ms = time_ms(f->job->ended_at);
    const bool old = !f->cursor->seen && ended_ms < f->since_ms;
    const bool told = f->cursor->ended_ms != 0;
    if (!is_final(f->job))
        f->cursor->ended_ms = 0; /* one that was stopped may be resumed, and end once more */
    if (!is_final(f->job) || told)
        return;
    f->cursor->ended_ms = ended_ms != 0 ? ended_ms : 1;
    if (old)
        return;
    if (f->job->state == CAIRN__V1__JOB_STATE__FAILED) {
        tell_failed(f);
    } else {
        tell_finished(f);
    }
}

void webhook_find(const Cairn__V1__Job *job, int64_t since_ms, struct webhook_cursor *cursor,
                  webhook_news_fn fn, void *arg)
{
    const struct finding f = {
        .job = job, .cursor = cursor, .since_ms = since_ms, .fn = fn, .arg = arg
    };
    find_events(&f);
    find_recoveries(&f);
    find_end(&f);
    cursor->seen = true;
}
