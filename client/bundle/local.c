#include "client/bundle/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "client/home/home.h"
#include "common/cleanup.h"
#include "common/io.h"

#define TEXT_BYTES    ((size_t)1 << 20)
#define FACT_BYTES    ((size_t)16 << 10) /* of one file of the system */
#define PROCESSES_MAX 16                 /* of the home, whose variables are listed */
#define JOBS_MAX      4                  /* of which logs are taken where none is named */
#define ATTEMPTS_MAX  3                  /* of each, the newest */
#define WORKER_BYTES  ((size_t)64 << 10) /* of each worker's log */
#define NAMES_MAX     1024               /* of a folder */

extern char **environ;

/* ---- the machine ---- */

/* The beginning of a file, for free(); NULL: it can't be read. Files of /proc say no size. */
static char *read_fact(const char *path)
{
    char *text = calloc(1, FACT_BYTES + 1);
    size_t used = 0;
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (text != NULL && fd >= 0 && used < FACT_BYTES) {
        const ssize_t size = read(fd, text + used, FACT_BYTES - used);
        if (size <= 0)
            break;
        used += (size_t)size;
    }
    if (used > 0)
        return text;
    free(text);
    return NULL;
}

static enum status put_fact(const char *path, struct buf *out)
{
    auto_free char *text = read_fact(path);
    if (text == NULL)
        return buf_printf(out, "== %s\n(not there)\n", path);
    return buf_printf(out, "== %s\n%s%s", path, text, text[strlen(text) - 1] == '\n' ? "" : "\n");
}

/* The model, and how many there are: /proc/cpuinfo has a page for each. */
static enum status put_processors(struct buf *out)
{
    auto_free char *text = read_fact("/proc/cpuinfo");
    const char *model = text == NULL ? NULL : strstr(text, "model name");
    const char *flags = text == NULL ? NULL : strstr(text, "flags");
    enum status st = buf_printf(out, "== processors\nonline %ld of %ld\n",
                                sysconf(_SC_NPROCESSORS_ONLN), sysconf(_SC_NPROCESSORS_CONF));
    if (st == ST_OK && model != NULL)
        st = buf_printf(out, "%.*s\n", (int)strcspn(model, "\n"), model);
    if (st == ST_OK && flags != NULL)
        st = buf_printf(out, "%.*s\n", (int)strcspn(flags, "\n"), flags);
    return st;
}

static enum status put_room(const char *path, struct buf *out)
{
    struct statvfs info;
    if (statvfs(path, &info) != 0)
        return buf_printf(out, "%s: %s\n", path, strerrordesc_np(errno));
    return buf_printf(out, "%s: %llu MiB free of %llu MiB\n", path,
                      (unsigned long long)info.f_bavail * info.f_frsize >> 20,
                      (unsigned long long)info.f_blocks * info.f_frsize >> 20);
}

void local_machine(struct parcel *parcel)
{
    static const char *const files[] = {
        "/etc/os-release",
        "/proc/meminfo",
        "/proc/loadavg",
        "/proc/uptime",
        "/proc/self/limits",
        "/proc/self/cgroup",
        "/proc/self/mounts",
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/cpu.max",
        "/proc/pressure/memory",
        "/proc/driver/nvidia/version",
    };
    auto_buf struct buf out;
    struct utsname name;
    enum status st = ST_OK;
    buf_init(&out, TEXT_BYTES);
    if (uname(&name) == 0) {
        st = buf_printf(&out, "== uname\n%s %s %s %s %s\n", name.sysname, name.nodename,
                        name.release, name.version, name.machine);
    }
    if (st == ST_OK)
        st = put_processors(&out);
    if (st == ST_OK)
        st = buf_append_text(&out, "== room\n");
    if (st == ST_OK)
        st = put_room("/dev/shm", &out);
    if (st == ST_OK)
        st = put_room("/tmp", &out);
    for (size_t i = 0; st == ST_OK && i < sizeof(files) / sizeof(files[0]); i++)
        st = put_fact(files[i], &out);
    if (st == ST_OK) {
        parcel_text(parcel, "machine.txt", out.data, out.size, TEXT_BYTES, 0);
    } else {
        parcel_missing(parcel, "machine.txt: %s", status_string(st));
    }
}

/* ---- variables ---- */

/* True for a variable whose name is told, by the beginning of the name. */
static bool is_told(const char *variable)
{
    static const char *const heads[] = {
        "CAIRN_",      "OMP_",     "GOMP_",    "KMP_",           "DNNL_",       "ONEDNN_",
        "MKL_",        "CUDA_",    "CUBLAS",   "CUDNN",          "NCCL_",       "NVIDIA_",
        "AWS_",        "GRPC_",    "MALLOC_",  "GLIBC_TUNABLES", "LD_",         "XDG_",
        "LANG",        "LC_",      "TZ",       "http_proxy",     "https_proxy", "HTTP_PROXY",
        "HTTPS_PROXY", "no_proxy", "NO_PROXY", "SSL_",           "SLURM_JOB",   "KUBERNETES_",
    };
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        if (strncmp(variable, heads[i], strlen(heads[i])) == 0)
            return true;
    }
    return false;
}

/* True for a variable whose value is told, too: Cairn's own and what changes speed or results.
 * All else might be anything. */
static bool is_open(const char *variable, size_t size)
{
    static const char *const heads[] = { "CAIRN_",  "OMP_", "GOMP_", "KMP_",  "DNNL_",
                                         "ONEDNN_", "MKL_", "CUDA_", "NCCL_", "MALLOC_",
                                         "LANG",    "LC_",  "TZ" };
    if (redact_is_secret_name(variable, size) || memmem(variable, size, "TOKEN", 5) != NULL ||
        memmem(variable, size, "SECRET", 6) != NULL)
        return strncmp(variable, "CAIRN_TOKEN_FILE", size) == 0 && size == 16;
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        if (strncmp(variable, heads[i], strlen(heads[i])) == 0)
            return true;
    }
    return false;
}

/* "NAME=VALUE" */
static enum status put_variable(const char *text, struct buf *out)
{
    const size_t size = strcspn(text, "=");
    if (text[size] == '\0' || !is_told(text))
        return ST_OK;
    if (is_open(text, size))
        return buf_printf(out, "%s\n", text);
    return buf_printf(out, "%.*s is set\n", (int)size, text);
}

void local_environment(const struct client *client, struct parcel *parcel)
{
    const unsigned all = HOME_COORDINATOR | HOME_AGENT | HOME_OBSERVER | HOME_SUPERVISOR;
    pid_t pids[PROCESSES_MAX];
    auto_buf struct buf out;
    buf_init(&out, TEXT_BYTES);
    enum status st = buf_append_text(&out, "== this command\n");
    for (char **variable = environ; st == ST_OK && *variable != NULL; variable++)
        st = put_variable(*variable, &out);
    const size_t count = home_processes(&client->paths, all, pids, PROCESSES_MAX);
    for (size_t i = 0; st == ST_OK && i < count; i++) {
        size_t size = 0, words_size = 0;
        auto_free char *text = home_environment(pids[i], &size);
        auto_free char *words = process_read(pids[i], "cmdline", &words_size);
        for (size_t at = 0; words != NULL && at + 1 < words_size; at++)
            words[at] = (char)(words[at] == '\0' ? ' ' : words[at]);
        st = buf_printf(&out, "== process %d: %s\n", (int)pids[i], words == NULL ? "" : words);
        for (size_t at = 0; st == ST_OK && text != NULL && at < size; at += strlen(text + at) + 1)
            st = put_variable(text + at, &out);
    }
    if (st == ST_OK) {
        parcel_text(parcel, "environment.txt", out.data, out.size, TEXT_BYTES, 0);
    } else {
        parcel_missing(parcel, "environment.txt: %s", status_string(st));
    }
}

/* ---- logs ---- */

/* The newest `most` bytes of a file, which may grow meanwhile. */
static void put_log(struct parcel *parcel, const char *path, const char *name, size_t most)
{
    struct stat info;
    const size_t wanted = most + PARCEL_HEAD_BYTES;
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        parcel_missing(parcel, "%s: %s can't be read: %s", name, path,
                       fd < 0 ? strerrordesc_np(errno) : "it is no file");
        return;
    }
    auto_free char *text = malloc(wanted);
    const off_t from = info.st_size > (off_t)wanted ? info.st_size - (off_t)wanted : 0;
    const ssize_t size = text == NULL ? -1 : pread(fd, text, wanted, from);
    if (size < 0) {
        parcel_missing(parcel, "%s: %s can't be read", name, path);
    } else if (size > 0) {
        parcel_text(parcel, name, text, (size_t)size, most, (size_t)from);
    }
}

void local_logs(const struct client *client, struct parcel *parcel)
{
    static const char *const programs[] = { "cairnd", "agent", "observer", "supervisor" };
    char path[LIMIT_PATH], name[LIMIT_NAME];
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
        for (int old = 1; old >= 0; old--) {
            (void)snprintf(name, sizeof(name), "logs/%s.log%s", programs[i], old ? ".1" : "");
            if (paths_join(&client->paths, path, sizeof(path), "log/%s.log%s", programs[i],
                           old ? ".1" : "") == ST_OK &&
                (!old || access(path, F_OK) == 0))
                put_log(parcel, path, name, PARCEL_LOG_BYTES);
        }
    }
}

/* ---- logs of workers ---- */

/* The names in a folder, the newest first. */
struct listing {
    const char *folder;
    size_t count;
    struct listed {
        char name[LIMIT_NAME];
        int64_t changed_ms;
    } list[NAMES_MAX];
};

static bool add_name(void *arg, const char *name)
{
    struct listing *listing = arg;
    struct io_stat info;
    char path[LIMIT_PATH];
    const int size = snprintf(path, sizeof(path), "%s/%s", listing->folder, name);
    if (size < 0 || size >= LIMIT_PATH || strlen(name) >= LIMIT_NAME ||
        io_system()->stat(NULL, path, &info) != ST_OK)
        return true;
    struct listed *listed = &listing->list[listing->count++];
    (void)snprintf(listed->name, sizeof(listed->name), "%s", name);
    listed->changed_ms = info.mtime_ms;
    return listing->count < NAMES_MAX;
}

static int compare_listed(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    return (x->changed_ms < y->changed_ms) - (x->changed_ms > y->changed_ms);
}

/* For free(); NULL: there is no such folder. */
static struct listing *list_folder(const char *folder)
{
    struct listing *listing = calloc(1, sizeof(*listing));
    if (listing == NULL)
        return NULL;
    listing->folder = folder;
    if (io_system()->list(NULL, folder, add_name, listing) != ST_OK) {
        free(listing);
        return NULL;
    }
    qsort(listing->list, listing->count, sizeof(listing->list[0]), compare_listed);
    return listing;
}

/* One attempt's logs: files rN.log of gN. */
static void put_attempt(struct parcel *parcel, const char *folder, const char *job,
                        const char *attempt)
{
    char path[LIMIT_PATH], name[LIMIT_PATH];
    auto_free struct listing *files = list_folder(folder);
    for (size_t i = 0; files != NULL && i < files->count; i++) {
        const char *file = files->list[i].name;
        const size_t length = strlen(file);
        if (length < 4 || strcmp(file + length - 4, ".log") != 0)
            continue;
        const int size = snprintf(path, sizeof(path), "%s/%s", folder, file);
        (void)snprintf(name, sizeof(name), "jobs/%s/logs/%s-%s", job, attempt, file);
        if (size > 0 && size < LIMIT_PATH)
            put_log(parcel, path, name, WORKER_BYTES);
    }
}

static bool is_meant(const struct client *client, const char *id)
{
    for (size_t i = 0; i < client->args.operand_count; i++) {
        if (strncmp(client->args.operands[i], id, strlen(client->args.operands[i])) == 0)
            return true;
    }
    return client->args.operand_count == 0;
}

void local_workers(const struct client *client, struct parcel *parcel)
{
    char jobs_folder[LIMIT_PATH], folder[LIMIT_PATH], path[LIMIT_PATH];
    size_t taken = 0;
    if (paths_join(&client->paths, jobs_folder, sizeof(jobs_folder), "jobs") != ST_OK)
        return;
    auto_free struct listing *jobs = list_folder(jobs_folder);
    for (size_t i = 0; jobs != NULL && i < jobs->count && taken < JOBS_MAX; i++) {
        const char *id = jobs->list[i].name;
        if (!is_meant(client, id) ||
            paths_join(&client->paths, folder, sizeof(folder), "jobs/%s", id) != ST_OK)
            continue;
        taken++;
        auto_free struct listing *attempts = list_folder(folder);
        for (size_t k = 0; attempts != NULL && k < attempts->count && k < ATTEMPTS_MAX; k++) {
            const char *attempt = attempts->list[k].name;
            if (paths_join(&client->paths, path, sizeof(path), "jobs/%s/%s", id, attempt) == ST_OK)
                put_attempt(parcel, path, id, attempt);
        }
    }
    if (taken == 0)
        parcel_missing(parcel, "jobs/: %s has no logs of workers of such a job", jobs_folder);
}
