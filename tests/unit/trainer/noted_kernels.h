/*
 * Which op a kernel is of, for tests' own backends: the table's functions aren't told.
 *
 * Thread: one at a time.
 */
#pragma once

#include "kernels/backend.h"

void noted_clear(void);
/* Like the CPU's prepare of the spec's op; remembers the kernel. */
enum status noted_prepare(struct backend *backend, const struct op_spec *spec,
                          struct kernel **out_kernel, struct kernel_info *out_info);
enum op noted_op(const struct kernel *kernel);
