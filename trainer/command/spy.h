/*
 * Where a Python program is that can't say so itself: py-spy (https://github.com/benfred/py-spy)
 * reads its memory, if it is installed. It needs nothing of the program, and leaves it as it is.
 *
 * Thread: the worker's main thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "trainer/command/output.h"

#define SPY_MS 3000 /* for one answer */

/*
 * Adds the stack of the process's main thread to its output, as faulthandler writes one, so that
 * output_python_stack finds it. env: the program's, in whose PATH py-spy is looked for.
 * False: there is no py-spy, it may not read that process, or found no Python in it.
 */
bool spy_add_stack(pid_t pid, char *const *env, int64_t now_ms, struct output *output);
/* Adds the main thread's stack in what py-spy printed of a process (`dump --full-filenames`), as
 * above. False: there is none. text: NUL-terminated. */
bool spy_add_text(const char *text, pid_t pid, int64_t now_ms, struct output *output);
