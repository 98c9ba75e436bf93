/*
 * The nodes that one job keeps away from, and why: its pins or data differ there, it failed there
 * by the node's fault, or was slow there. An entry holds for a time, then the node is tried again;
 * it stays in the list until it is dropped, so that a second failure is known as one.
 *
 * An entry is about a node as it was: about the agent that was there, which has the settings that
 * workers get. Another agent of that name voids it (exclusion_renew), across restarts of the
 * coordinator too; so does a person who resumes the job.
 *
 * Bounded by LIMIT_NODES for each reason. Memory: exclusion_release; without memory a node isn't
 * added, and is tried again. Times: Unix ms, as the list is journalled; a clock that was ahead
 * makes none hold for longer than twice its time, and after a start (exclusion_resume) once.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/reason.h"

#define EXCLUSION_PINS_MS                                                                          \
    (INT64_C(1000) * 60 * 60) /* a machine rarely gets other kernels, or another CPU */
#define EXCLUSION_FAILED_MS (INT64_C(1000) * 60 * 10)
#define EXCLUSION_DATA_MS   (INT64_C(1000) * 60 * 2) /* somebody is about to put them back */
#define EXCLUSION_SLOW_MS   (INT64_C(1000) * 60 * 10)

/* Why a job keeps away from a node. The numbers are journalled. */
enum exclusion_why { EXCLUSION_PINS = 1, EXCLUSION_FAILED, EXCLUSION_DATA, EXCLUSION_SLOW };

struct exclusion {
    char node[LIMIT_NAME];
    enum exclusion_why why;
    uint32_t kind; /* of the failure; the owner's */
    int64_t since;
    uint64_t agent; /* the agent that was there; 0: it isn't known yet */
};

struct exclusion_list {
    struct exclusion *list;
    uint32_t count, capacity;
    bool unnamed; /* an agent isn't known yet */
};

/* Adds the node from now on. true: the node was not in the list for that reason. kind: with
 * EXCLUSION_FAILED. */
bool exclusion_add(struct exclusion_list *exclusions, const char *node, enum exclusion_why why,
                   uint32_t kind, int64_t wall);
/* True if the node is in the list for that reason, and not for too long. */
bool exclusion_holds(const struct exclusion_list *exclusions, const char *node,
                     enum exclusion_why why, int64_t wall);
uint32_t exclusion_count(const struct exclusion_list *exclusions, enum exclusion_why why);
/* Writes "on N nodes: a, b, c": those in the list for that reason. */
void exclusion_name(const struct exclusion_list *exclusions, enum exclusion_why why,
                    struct reason *out);
/* True if a failure of that kind is known of another node. */
bool exclusion_elsewhere(const struct exclusion_list *exclusions, const char *node, uint32_t kind);
void exclusion_drop(struct exclusion_list *exclusions, enum exclusion_why why);
/* Drops entries of EXCLUSION_FAILED of that kind. true: there were some. */
bool exclusion_drop_kind(struct exclusion_list *exclusions, uint32_t kind);
/* True if the node is in the list, for whatever reason, and however long ago. */
bool exclusion_knows(const struct exclusion_list *exclusions, const char *node);
/* Notes that this agent is at that node: entries about another one, or about one that isn't known,
 * go. true: there were some. */
bool exclusion_renew(struct exclusion_list *exclusions, const char *node, uint64_t agent);
/* Sets the agent of each entry whose agent isn't known to what `of` returns; 0: it doesn't know,
 * either. */
void exclusion_identify(struct exclusion_list *exclusions,
                        uint64_t (*of)(void *arg, const char *node), void *arg);
/* Drops all entries: somebody says that things are right now. */
void exclusion_clear(struct exclusion_list *exclusions);
/* Makes no entry begin later than now. */
void exclusion_resume(struct exclusion_list *exclusions, int64_t wall);
/* Writes "n for 58 min (its pins differ), ..." of the entries that hold; "": none does. */
void exclusion_describe(const struct exclusion_list *exclusions, int64_t wall, struct reason *out);
/* Sets the number of entries to `count`; the caller fills them in. false: no memory, or too
 * many. */
bool exclusion_resize(struct exclusion_list *exclusions, uint32_t count);
void exclusion_release(struct exclusion_list *exclusions);
