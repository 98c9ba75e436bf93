/*
 * Memory of files that another process may shrink: reading what is gone is a SIGBUS, which would
 * end this process. A handler puts zeros in the place of the whole file instead, and counts. What
 * was to be read is lost; who compares hashes finds that out.
 *
 * A SIGBUS elsewhere ends the process as ever.
 *
 * Thread: any. The handler is installed with each file, for the process's life.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define COPY_GUARDS_MAX 16 /* files at a time; of more, the rest isn't guarded */

void copy_guard_add(void *memory, size_t size);
/* Before it is unmapped. */
void copy_guard_remove(void *memory);
/* Returns how many files were found shrunk by now. */
uint32_t copy_guard_shrunk(void);
