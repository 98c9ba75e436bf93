#include "common/host/environment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"

extern char **environ;

static const char *const passing[] = {
    /* the system */
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "HOSTNAME",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "XDG_*",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "FAKETIME*",
    "DONT_FAKE_MONOTONIC",
    "MALLOC_*",
    /* ours, and what looks for our mistakes */
    "CAIRN_*",
    "ASAN_OPTIONS",
    "LSAN_OPTIONS",
    "TSAN_OPTIONS",
    "UBSAN_OPTIONS",
    /* stores and connections */
    "AWS_*",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "OPENSSL_*",
    "RES_OPTIONS",
    "LOCALDOMAIN",
    "HOSTALIASES",
    "GRPC_*",
    /* OpenMP: where threads run and how they wait */
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_WAIT_POLICY",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    /* oneDNN: a pin, and what is printed */
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_VERBOSE",
    "ONEDNN_VERBOSE",
    /* GPUs */
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_CACHE_PATH",
    "CUDA_MPS_*",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VERSION",
    "CUBLAS_VERSION",
    "CUDNN_VERSION",
    "NCCL_VERSION",
    /* NCCL: by what way, and what is printed */
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY",
    "NCCL_IB_*",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_DEBUG*",
    /* programs of the jobs' own */
    "PYTHON*",
    "VIRTUAL_ENV",
    "CONDA_*",
    "TORCH_*",
    "HF_*",
    NULL,
};

static const char *const families[] = {
    "OMP_*",          "GOMP_*", "KMP_*",    "DNNL_*",     "ONEDNN_*", "MKL_*",
    "GLIBC_TUNABLES", "CUDA_*", "CUBLAS_*", "CUBLASLT_*", "CUDNN_*",  "NVIDIA_TF32_OVERRIDE",
    "NCCL_*",         NULL,
};

static bool is_in(const char *const *rows, const char *variable)
{
    const size_t size = strcspn(variable, "=");
    for (; *rows != NULL; rows++) {
        const size_t stem = strcspn(*rows, "*");
        if (strncmp(variable, *rows, stem) == 0 && ((*rows)[stem] == '*' || size == stem))
            return true;
    }
    return false;
}

bool environment_passes(const char *variable)
{
    return is_in(passing, variable);
}

bool environment_is_left_out(const char *variable)
{
    return is_in(families, variable) && !is_in(passing, variable);
}

void environment_name_left_out(char *out, unsigned capacity)
{
    size_t at = 0;
    out[0] = '\0';
    for (char **v = environ; v != NULL && *v != NULL && at < capacity; v++) {
        if (environment_is_left_out(*v)) {
            at += (size_t)snprintf(out + at, capacity - at, "%s%.*s", at > 0 ? " " : "",
                                   (int)strcspn(*v, "="), *v);
        }
    }
}

enum status environment_leave_out(char *const argv[], struct reason *why)
{
    char names[LIMIT_REASON / 2];
    size_t count = 0, kept = 0;
    environment_name_left_out(names, sizeof(names));
    if (names[0] == '\0')
        return ST_OK;
    while (environ[count] != NULL)
        count++;
    auto_free char **env = calloc(count + 1, sizeof(*env));
    errno = ENOMEM;
    for (size_t i = 0; env != NULL && i < count; i++) {
        if (!environment_is_left_out(environ[i]))
            env[kept++] = environ[i];
    }
    if (env != NULL)
        (void)execve("/proc/self/exe", argv, env);
    const char *text = strerrordesc_np(errno);
    reason_set(why, "results depend on variables of the environment: unset %s (%s)", names,
               text != NULL ? text : "unknown error");
    return ST_REFUSED;
}

const char *environment_passing(unsigned row)
{
    return row < sizeof(passing) / sizeof(passing[0]) ? passing[row] : NULL;
}

const char *environment_family(unsigned row)
{
    return row < sizeof(families) / sizeof(families[0]) ? families[row] : NULL;
}
