/*
 * A pointer without its const, for interfaces that lack the const but don't write: protobuf-c's
 * messages, gRPC's arguments, argv.
 */
#pragma once

static inline void *unconst(const void *pointer)
{
    union {
        const void *in;
        void *out;
    } same = { .in = pointer };
    return same.out;
}
