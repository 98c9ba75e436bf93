/* An event, from the state machine over the journal to the actions; and the group. */
#pragma once

#include "server/coord/state.h"

struct fsm_event coord_event(const struct coord *coord, enum fsm_event_kind kind);
/* Makes an event of a rank: its agent or its trainer says it. */
struct fsm_event coord_event_of(const struct coord *coord, enum fsm_event_kind kind,
                                uint32_t generation, uint32_t rank);
enum status coord_apply(struct coord *coord, struct coord_job *job, struct fsm_event *event);
/* Adds an event to the job's history that its machine doesn't decide. */
void coord_note(struct coord *coord, struct coord_job *job, const char *what, const char *message);
/* Ends the group as it is: writes it, and lets go what is to leave. */
enum status coord_write(struct coord *coord);
/* Called at the end of every entry: ends a group that has grown large. */
void coord_bound_group(struct coord *coord);
/* Called before any write: begins the group's transaction, if it has not begun. A write that fails
 * makes the core fail: SQLite may have taken the whole transaction back. */
MUST_CHECK enum status coord_begin(struct coord *coord);
/* Marks the job's state to be written when the group is committed; coord_forget_dirty: it is not
 * written, as the job is gone. */
void coord_mark_dirty(struct coord *coord, struct coord_job *job);
void coord_forget_dirty(struct coord *coord, struct coord_job *job);
/* Resumes a job that was read from the journal. */
void coord_resume(struct coord *coord, struct coord_job *job);
/* Journals metric rows without an event. */
void coord_flush_rows(struct coord *coord, struct coord_job *job);
