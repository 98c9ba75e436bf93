/*
 * For tests of the relay: a session with its small coordinator, a relay, and a program that speaks
 * library/wire/wire.h as a test tells it to.
 */
#pragma once

#include "library/wire/wire.h"
#include "tests/unit/session/session_world.h"
#include "trainer/relay/relay.h"

struct relay_world {
    struct world *w;
    char copies[96];
    struct session *session;
    struct session_assignment assignment;
    struct jobspec *job;
    struct relay *relay;
    struct relay_options options;
};

struct program {
    int fd;
    uint32_t number;
    struct wire_page *page;          /* NULL: none yet */
    int file_fd;                     /* that came with the last answer; -1: none */
    struct wire_head head;           /* of the last answer */
    _Alignas(16) uint8_t body[4096]; /* likewise, NUL-terminated */
};

/* A relay in a generation of so many ranks, whose job asks for a save each 5 steps, a copy each. */
struct relay_world *relay_world_new(uint32_t ranks);
/* Likewise, of a worker that runs so many processes. */
struct relay_world *relay_world_new_of(uint32_t ranks, uint32_t processes);
void relay_world_free(struct relay_world *r);
/* Looks until a condition of the news holds. */
struct relay_news await_news(struct relay_world *r, bool (*holds)(const struct relay_news *news));

/* Connects; nothing is said. */
void program_connect(struct relay_world *r, struct program *out);
/* Connects as one of the worker's processes. */
void program_connect_as(struct relay_world *r, uint32_t process, struct program *out);
void program_close(struct program *p);
/* Sends a request and takes its answer; returns its status. -1: the connection was ended. */
int32_t program_ask(struct program *p, enum wire_kind kind, const void *body, size_t size);
/* Maps the page that came with the answer to hello. */
void program_map_page(struct program *p);
/* Hello, which must succeed; maps the page. */
void program_greet(struct program *p);
/* Hello, a layout of one replicated and one private tensor, ready at `step` of 20. */
void program_get_ready(struct relay_world *r, struct program *p, uint64_t step);
void program_get_ready_as(struct relay_world *r, uint32_t process, struct program *p,
                          uint64_t step);
int32_t program_say_step(struct program *p, enum wire_kind kind, uint64_t step);
/* Asks whether a save is decided, until it is; returns the newest that is committed. */
uint64_t program_settle(struct program *p, uint64_t step);
/* Writes the data and hashes of the copy that BEGIN began. */
void program_fill(const struct program *p);
int32_t program_say_copied(struct program *p, uint64_t step);
