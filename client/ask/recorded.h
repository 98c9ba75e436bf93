/*
 * Replies of a coordinator that `cairn bundle` recorded: with --bundle FILE a command prints them
 * by the same code, and no coordinator is asked.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "client/base/client.h"
#include "rpc/client.h"

struct recorded;

/* Reads the replies of a bundle. Errors: those of tar_read; reason says what is wrong */
MUST_CHECK enum status recorded_open(const char *path, struct recorded **out,
                                     struct reason *reason);
/* NULL is fine. */
void recorded_free(struct recorded *recorded);

/* The reply to a call, as rpc_unary has it: a job is meant by its id, the start of one, its
 * name, or nothing where there is one only. */
MUST_CHECK enum status recorded_reply(const struct recorded *recorded, const char *method,
                                      const ProtobufCMessage *request, ProtobufCMessage **out,
                                      struct rpc_result *result);
