/*
 * What the agent says to the coordinator. Each message is dropped when no stream is open: what must
 * be heard (exits) is repeated, all else follows from the hello of the next stream.
 *
 * Thread: the loop's.
 */
#pragma once

#include "agent/agent.h"

void agent_send_hello(struct agent *agent);
void agent_send_beat(struct agent *agent);
/* Says that the agent leaves, or that it has left. */
void agent_send_leaving(struct agent *agent);
void agent_send_left(struct agent *agent);
void agent_send_started(struct agent *agent, struct trainer *trainer);
void agent_send_exited(struct agent *agent, struct trainer *trainer);
/* Reports a trainer that isn't there: it isn't known here, or it wasn't started. No record of it is
 * kept. */
void agent_send_no_trainer(struct agent *agent, struct ref *ref,
                           Cairn__V1__TrainerExited__Cause cause, const char *message);
/* Answers with a piece of a trainer's output. */
void agent_send_log(struct agent *agent, const Cairn__V1__LogRequest *request);
/* Reports the result of an order to probe. */
void agent_send_probed(struct agent *agent, const struct probe_result *result);

/* agent_connect opens the stream to the coordinator, and keeps it open; agent_disconnect ends it.
 * Errors: logged. */
MUST_CHECK enum status agent_connect(struct agent *agent);
void agent_disconnect(struct agent *agent);
