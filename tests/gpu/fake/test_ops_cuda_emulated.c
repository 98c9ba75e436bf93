/*
 * Every op of the CUDA backend without a device: its host side on fakes of the libraries, the own
 * kernels on the emulator, everything deferred until it is waited for.
 */
#include "tests/gpu/fake/fake.h"
#include "tests/kernel/cuda_cases.h"

int main(void)
{
    fake_cuda_describe("");
    return cuda_cases_run(cairn_cuda_module());
}
