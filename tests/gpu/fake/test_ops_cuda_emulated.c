/*
 * Every op of the CUDA backend without a device: its host side on fakes of the libraries, the own
 * kernels on the emulator, everything deferred until it is waited for.
 */
#include <stdlib.h>

#include "tests/gpu/fake/fake.h"
#include "tests/kernel/cuda_cases.h"

int main(void)
{
    const char *words = getenv("CAIRN_FAKE_CUDA");
    fake_cuda_describe(words == NULL ? "" : words);
    return cuda_cases_run(cairn_cuda_module());
}
