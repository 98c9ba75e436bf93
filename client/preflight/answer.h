/* The answer of a child process, one line within a time: the process may look at files whose server
 * hangs. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Reads the first line that the process writes; "" if it ends without one, or takes longer than
 * that. */
void answer_read(int fd, int64_t ms, char *out, size_t capacity);
