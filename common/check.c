#include "common/check.h"

#include <stdio.h>
#include <stdlib.h>

void check_failed(const char *condition, const char *file, int line)
{
    (void)fprintf(stderr, "%s:%d: bug: not true: %s\n", file, line, condition);
    abort();
}
