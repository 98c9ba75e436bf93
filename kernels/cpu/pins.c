/*
 * Pins of this backend, on which its bits depend, as members of a JSON object: the processor
 * (oneDNN sizes its blocks by the caches), the instruction set in use, the libraries, the number of
 * threads.
 */
#include <cpuid.h>
#include <gnu/libc-version.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/device/cpu.h"
#include "kernels/cpu/gemm/dnn.h"

struct processor {
    char vendor[13];
    unsigned family, model;
};

static struct processor processor_read(void)
{
    struct processor p = { .vendor = "unknown" };
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(0, &a, &b, &c, &d) == 1) {
        memcpy(p.vendor, &b, 4);
        memcpy(p.vendor + 4, &d, 4);
        memcpy(p.vendor + 8, &c, 4);
    }
    if (__get_cpuid(1, &a, &b, &c, &d) == 1) {
        p.family = (a >> 8) & 0xf;
        p.model = (a >> 4) & 0xf;
        if (p.family == 6 || p.family == 15)
            p.model |= ((a >> 16) & 0xf) << 4;
        if (p.family == 15)
            p.family += (a >> 20) & 0xff;
    }
    return p;
}

static const char *isa_name(void)
{
    switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_all:
        return "all";
    case dnnl_cpu_isa_sse41:
        return "sse41";
    case dnnl_cpu_isa_avx:
        return "avx";
    case dnnl_cpu_isa_avx2:
        return "avx2";
    case dnnl_cpu_isa_avx512_mic:
        return "avx512_mic";
    case dnnl_cpu_isa_avx512_mic_4ops:
        return "avx512_mic_4ops";
    case dnnl_cpu_isa_avx512_core:
        return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
        return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
        return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
        return "avx512_core_amx";
    case dnnl_cpu_isa_avx2_vnni:
        return "avx2_vnni";
    }
    return "other";
}

static long cache_bytes(int name)
{
    long bytes = sysconf(name);
    return bytes < 0 ? 0 : bytes;
}

enum status cpu_pins(struct backend *backend, struct buf *out)
{
    const struct processor p = processor_read();
    const dnnl_version_t *v = dnnl_version();
    return buf_printf(
        out,
        "\"cpu\":{\"vendor\":\"%s\",\"family\":%u,\"model\":%u,\"l1d\":%ld,\"l2\":%ld,\"l3\":%ld,"
        "\"isa\":\"%s\",\"loops\":\"%s\",\"glibc\":\"%s\",\"onednn\":\"%d.%d.%d\",\"threads\":%d,"
        "\"denormals\":\"flush\"}",
        p.vendor, p.family, p.model, cache_bytes(_SC_LEVEL1_DCACHE_SIZE),
        cache_bytes(_SC_LEVEL2_CACHE_SIZE), cache_bytes(_SC_LEVEL3_CACHE_SIZE), isa_name(),
        backend->loops.name, gnu_get_libc_version(), v->major, v->minor, v->patch,
        backend->threads);
}
