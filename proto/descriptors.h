/*
 * The serialized FileDescriptorSet of every .proto of this program, with its imports: what server
 * reflection shows, and what knows which methods stream.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

const uint8_t *proto_descriptors(size_t *out_size);
