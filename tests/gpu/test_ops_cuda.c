/*
 * Every op of the CUDA backend on the device of this machine; skipped where there is none.
 */
#include <stdio.h>

#include "tests/kernel/cuda_cases.h"

#define SKIPPED 77 /* SKIP_RETURN_CODE */

int main(void)
{
    const struct module *module = NULL;
    struct reason reason;
    if (module_load("cuda", 0, &module, &reason) != ST_OK) {
        printf("skipped: %s\n", reason.text);
        return SKIPPED;
    }
    return cuda_cases_run(module);
}
