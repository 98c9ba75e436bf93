#include "proto/descriptors.h"

__asm__(".section .rodata\n"
        ".global proto_descriptors_begin\n"
        ".global proto_descriptors_end\n"
        "proto_descriptors_begin:\n"
        ".incbin \"" DESCRIPTORS_FILE "\"\n"
        "proto_descriptors_end:\n"
        ".byte 0\n"
        ".previous\n");

extern const uint8_t proto_descriptors_begin[];
extern const uint8_t proto_descriptors_end[];

const uint8_t *proto_descriptors(size_t *out_size)
{
    *out_size = (size_t)(proto_descriptors_end - proto_descriptors_begin);
    return proto_descriptors_begin;
}
