/*
 * A world for the agent: a home of its own, the real cairn-agent as a child, and a coordinator that
 * notes what it hears and says what the test wants.
 *
 * Every wait has a deadline and fails the test; nothing here measures time.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "agent/ref.h"
#include "rpc/server.h"

struct world;

int world_set_up(void **state);
int world_tear_down(void **state); /* also: no process of this home is left */

const struct paths *world_paths(const struct world *world);

/* The coordinator. It may come and go while the agent lives. */
void world_coordinator_start(struct world *world);
void world_coordinator_stop(struct world *world);
void world_ack_exits(struct world *world, bool on); /* default on */

/* The agent. faults: CAIRN_FAULT, or NULL. */
void world_agent_start(struct world *world, const char *faults);
void world_agent_leaves(struct world *world, const char *grace); /* those started from now on */
void world_agent_term(struct world *world);                      /* SIGTERM */
int world_agent_wait(struct world *world);                       /* its exit code */
void world_agent_kill(struct world *world);                      /* SIGKILL, waited for */
int world_agent_stop(struct world *world);                       /* SIGTERM: its exit code */
void world_agent_wait_killed(struct world *world);               /* until a fault killed it */
int world_second_agent(struct world *world); /* of the same name: its exit code */

/* Orders. mode: MODE of trainer.sh, or NULL. */
/* Rank of generation 1; slots from 3 on are GPUs. */
void world_order_start_in(struct world *world, uint32_t rank, uint32_t slot);
void world_order_start(struct world *world, uint32_t generation, uint32_t rank, const char *mode);
void world_order_start_bad(struct world *world, const char *job);
void world_order_end(struct world *world, uint32_t generation, uint32_t rank, int signal_number,
                     uint32_t grace_ms);
void world_order_log(struct world *world, uint64_t id, uint32_t rank, uint64_t offset,
                     uint32_t size_max);

/* What was heard, the newest of its kind; valid until tear_down. times: since the beginning. */
unsigned world_hellos(struct world *world);
void world_wait_hellos(struct world *world, unsigned count);
void world_wait_beats(struct world *world, unsigned more);
const Cairn__V1__AgentBeat *world_beat(struct world *world); /* the newest */
const Cairn__V1__AgentLeaving *world_wait_leaving(struct world *world);
bool world_heard_left(struct world *world);
const Cairn__V1__AgentHello *world_hello(struct world *world); /* the newest */
pid_t world_wait_started(struct world *world, uint32_t generation, uint32_t rank, unsigned times);
const Cairn__V1__TrainerExited *world_wait_exited(struct world *world, uint32_t generation,
                                                  uint32_t rank, unsigned times);
/* Text of the whole log of rank, asked from the agent, once it holds `text`. */
const char *world_wait_log(struct world *world, uint32_t rank, const char *text);
const Cairn__V1__LogChunk *world_wait_chunk(struct world *world, uint64_t id);

bool process_lives(pid_t pid); /* no zombie */
void wait_process_gone(pid_t pid);
/* Processes that have this home in their environment, but for the agent. */
unsigned world_processes(const struct world *world);
