/*
 * Index of serialized FileDescriptorSets (protoc --descriptor_set_out --include_imports).
 *
 * Gives the streaming flags that protobuf-c's descriptors lack, and feeds server reflection. The
 * sets that are built into the programs are proto_descriptors (proto/descriptors.h).
 *
 * Memory: the bytes are borrowed for the index's life.
 * Thread: read-only after the last add.
 */
#pragma once

#include "rpc/rpc.h"

enum rpc_method_flags {
    RPC_CLIENT_STREAMING = 1 << 0,
    RPC_SERVER_STREAMING = 1 << 1,
};

struct rpc_descdb;

struct rpc_descdb *rpc_descdb_new(void);
void rpc_descdb_free(struct rpc_descdb *db);

/* Errors: ST_INVALID  not a FileDescriptorSet; the index must be freed */
MUST_CHECK enum status rpc_descdb_add(struct rpc_descdb *db, const uint8_t *data, size_t size);

/* The rpc_method_flags of a method, or -1 if it is not known. */
int rpc_descdb_method_flags(const struct rpc_descdb *db, const char *service, const char *method);

/* The serialized FileDescriptorProto of a file name. Errors: ST_NOT_FOUND */
MUST_CHECK enum status rpc_descdb_file(const struct rpc_descdb *db, const char *name,
                                       struct rpc_bytes *out);

/* Name of the file that declares a full symbol name, or NULL. */
const char *rpc_descdb_symbol(const struct rpc_descdb *db, const char *symbol);

/* Calls fn for the file and everything that it imports, each once. */
void rpc_descdb_closure(const struct rpc_descdb *db, const char *name,
                        void (*fn)(void *arg, struct rpc_bytes file), void *arg);
