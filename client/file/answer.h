/* What a helper process says in a line, within a time: it may look at files whose server hangs. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Its first line, or "" when it ends, or takes longer than that. */
void answer_read(int fd, int64_t ms, char *out, size_t capacity);
