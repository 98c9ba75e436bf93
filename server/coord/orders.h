/* Orders to agents and trainers. Each function puts a message into the outbox; it leaves once the
 * group of turns is journalled (outbox.h). */
#pragma once

#include "server/coord/state.h"

/* Orders the rank's agent to start it. A worker that was kept gets its new generation instead. */
void coord_send_start(struct coord *coord, struct coord_job *job, uint32_t rank);
/* Orders the rank to leave its generation and stay; nothing is sent to one that is gone or to be
 * ended. */
void coord_send_park(struct coord *coord, struct coord_job *job, uint32_t rank);
/* Tells a worker that was kept which generation forms and its rank there, over whatever stream it
 * has. */
void coord_send_regroup(struct coord *coord, struct coord_job *job, uint32_t rank,
                        struct coord_conn *conn);
/* Holds the slot of a trainer that nobody saw go: no other one gets it until somebody did. If it
 * lives on, it is ended: by its agent's stream as soon as that is heard, or after its next
 * hello. */
void coord_hold_slot(struct coord *coord, struct coord_job *job, uint32_t rank);
/* Kills the trainer, if it isn't gone; coord_send_end_of: kills one that should not run. */
void coord_send_end(struct coord *coord, struct coord_job *job, uint32_t rank);
void coord_send_end_of(struct coord *coord, struct coord_conn *conn, Cairn__V1__TrainerRef *ref);
/* Tells an agent how often to beat: in a welcome, or because that has changed. */
void coord_send_beat_interval(struct coord *coord, struct coord_conn *conn, bool welcome);
/* Asks the agent of `who` whether it reaches that of `whom`. The order's id, and what it says of a
 * measurement, are in `probe`. */
void coord_send_probe(struct coord *coord, const struct coord_node *who,
                      const struct coord_node *whom, Cairn__V1__Probe *probe);
/* Asks for a probe without a measurement. */
void coord_ask_probe(struct coord *coord, const struct coord_node *who,
                     const struct coord_node *whom, uint64_t round);
/* Tells every agent that is there and needs no copies of the job to forget them; others tell of
 * their copies in a hello. */
void coord_send_forget(struct coord *coord, const struct coord_job *job);
/* Tells the agent which of the copies that its hello names nobody needs. */
void coord_check_copies(struct coord *coord, struct coord_node *node,
                        const Cairn__V1__AgentHello *hello);
/* Sends an order to a rank, if it has a session. message: of the type that the body names. */
void coord_send_order(struct coord *coord, struct coord_job *job, uint32_t rank,
                      enum coord_urgency urgency, Cairn__V1__TrainerOrder__BodyCase body,
                      void *message);
/* Says that the generation is over: to one connection, which ends; coord_send_over: to a rank, or
 * all ranks, of the job. */
void coord_send_over_to(struct coord *coord, struct coord_conn *conn, const char *reason);
void coord_send_over(struct coord *coord, struct coord_job *job, uint32_t rank, const char *reason);
/* Sends a rank its assignment (message Plan). */
void coord_send_assignment(struct coord *coord, struct coord_job *job, uint32_t rank);
void coord_send_save_at(struct coord *coord, struct coord_job *job, uint32_t rank, uint64_t step,
                        bool exit);
void coord_send_stay(struct coord *coord, struct coord_job *job, uint32_t rank, uint64_t step);
void coord_send_folder(struct coord *coord, struct coord_job *job, uint32_t rank,
                       const struct fsm_action *act);
void coord_send_read_back(struct coord *coord, struct coord_job *job, uint32_t rank,
                          const struct fsm_action *act);
void coord_send_done(struct coord *coord, struct coord_job *job, uint32_t rank, uint64_t step,
                     bool committed);
