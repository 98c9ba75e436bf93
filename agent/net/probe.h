/*
 * Whether two nodes reach each other, asked from here and answered here.
 *
 * A listener gives back the first PROBE_NONCE bytes of each connection. A probe connects to that of
 * another agent, up to PROBE_TRIES times side by side, as a packet may get lost. It has worked when
 * one of these connections gave back what it was sent, within PROBE_MS.
 *
 * So that it can be told how much gets through (measure.h), a listener that expects a token takes
 * all that follows it for MEASURE_MS_MAX at most, and answers with what came. Who has no such token
 * is given back his bytes, as ever.
 *
 * States of a probe: resolving the host -> trying -> over: `done` was called, and what is left of
 * it is freed once libuv has closed its sockets.
 *
 * Bounds: PROBES_MAX probes at a time, of more the newest is left unanswered; PROBE_GUESTS_MAX
 * connections from outside, of more the oldest is closed; each of them lives for 2 x PROBE_MS. A
 * token is expected for PROBE_EXPECT_MS, and there is one at a time.
 *
 * Thread: the loop's; nothing waits.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "agent/net/measure.h"
#include "agent/net/result.h"
#include "common/port_range.h"
#include "common/status.h"

#define PROBE_NONCE      16
#define PROBE_MS         1000
#define PROBE_TRIES      3
#define PROBE_GAP_MS     250 /* from one try to the next */
#define PROBES_MAX       256
#define PROBE_GUESTS_MAX 256
#define PROBE_EXPECT_MS  30000

struct probes;

/*
 * Listens at that address, or, where it is none of this machine's, at all of them; at one of these
 * ports, from the last down. done: called for each probe. Freed by probes_close.
 * Errors: those of the socket; nothing is left then
 */
MUST_CHECK enum status probes_open(uv_loop_t *loop, const char *host, struct port_range ports,
                                   void (*done)(void *arg, const struct probe_result *result),
                                   void *arg, struct probes **out);
/* The port of the listener; 0: nobody can connect, or probes is NULL. */
uint16_t probes_port(const struct probes *probes);
/* Starts a probe. It is left unanswered if PROBES_MAX are under way, or there is no memory. probes
 * NULL: does nothing. */
void probes_start(struct probes *probes, uint64_t id, const char *host, uint32_t port);
/* Sends data there (measure.h): the other agent must expect this token. NULL: nothing. */
void probes_measure(struct probes *probes, const struct measure_ask *ask);
/* Expects that token from now on, instead of an older one. probes NULL: does nothing. */
void probes_expect(struct probes *probes, const uint8_t token[PROBE_NONCE]);
/* Ends everything without another answer; the loop has to run until its handles are closed. NULL is
 * fine. */
void probes_close(struct probes *probes);
