#include "client/home/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "common/cleanup.h"

#define FILE_BYTES (1 << 20)

char *process_read(pid_t pid, const char *name, size_t *out_size)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%lld/%s", (long long)pid, name);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *text = malloc(FILE_BYTES + 1);
    size_t used = 0;
    ssize_t size = 1;
    while (text != NULL && size > 0 && used < FILE_BYTES) {
        size = read(fd, text + used, FILE_BYTES - used);
        used += size > 0 ? (size_t)size : 0;
    }
    if (text == NULL || size < 0) {
        free(text);
        return NULL;
    }
    text[used] = '\0';
    *out_size = used;
    return text;
}

unsigned process_program(pid_t pid)
{
    static const struct {
        const char *name;
        unsigned program;
    } programs[] = { { "cairnd", HOME_COORDINATOR },
                     { "cairn-agent", HOME_AGENT },
                     { "cairn-observer", HOME_OBSERVER },
                     { "cairn-trainer", HOME_TRAINER },
                     { "cairn", HOME_SUPERVISOR } };
    char exe[64];
    char target[PATH_MAX];
    (void)snprintf(exe, sizeof(exe), "/proc/%lld/exe", (long long)pid);
    ssize_t size = readlink(exe, target, sizeof(target) - 1);
    if (size <= 0)
        return 0;
    target[size] = '\0';
    char *deleted = strstr(target, " (deleted)"); /* the file was replaced by a newer build */
    if (deleted != NULL)
        *deleted = '\0';
    const char *slash = strrchr(target, '/');
    for (size_t i = 0; slash != NULL && i < sizeof(programs) / sizeof(programs[0]); i++) {
        if (strcmp(slash + 1, programs[i].name) == 0)
            return programs[i].program;
    }
    return 0;
}

/* Reads the user from the process's status, not from the owner of its files in /proc: they are
 * root's where a process hides its memory. */
bool process_owner(pid_t pid, uid_t *out)
{
    size_t size = 0;
    auto_free char *text = process_read(pid, "status", &size);
    const char *line = text != NULL ? strstr(text, "\nUid:") : NULL;
    if (line == NULL)
        return false;
    char *real = NULL, *effective = NULL;
    (void)strtoul(line + strlen("\nUid:"), &real, 10);
    *out = (uid_t)strtoul(real, &effective, 10);
    return effective != real;
}

static bool is_ours(pid_t pid)
{
    uid_t owner = 0;
    return process_owner(pid, &owner) && owner == geteuid();
}

/* True if CAIRN_HOME of the process names this folder. */
static bool has_home(pid_t pid, const struct stat *home)
{
    size_t size = 0;
    auto_free char *text = process_read(pid, "environ", &size);
    for (size_t at = 0; text != NULL && at < size; at += strlen(text + at) + 1) {
        struct stat st;
        if (strncmp(text + at, "CAIRN_HOME=", 11) == 0) {
            return stat(text + at + 11, &st) == 0 && st.st_dev == home->st_dev &&
                   st.st_ino == home->st_ino;
        }
    }
    return false;
}

/* True if one of the words after its program's name is this one. limit: how many words are looked
 * at. */
static bool has_word(pid_t pid, const char *word, int limit)
{
    size_t size = 0;
    auto_free char *text = process_read(pid, "cmdline", &size);
    if (text == NULL)
        return false;
    size_t at = strlen(text) + 1;
    for (int i = 0; i < limit && at < size; i++, at += strlen(text + at) + 1) {
        if (strcmp(text + at, word) == 0)
            return true;
    }
    return false;
}

static bool is_zombie(pid_t pid)
{
    size_t size = 0;
    auto_free char *text = process_read(pid, "stat", &size);
    const char *paren = text == NULL ? NULL : strrchr(text, ')');
    return paren != NULL && paren[1] == ' ' && (paren[2] == 'Z' || paren[2] == 'X');
}

bool process_belongs(pid_t pid, unsigned programs, const struct stat *home)
{
    const unsigned program = process_program(pid);
    if ((program & programs) == 0 || !is_ours(pid) || is_zombie(pid) || !has_home(pid, home))
        return false;
    /* `cairn supervise`, not another command of the client. */
    return program != HOME_SUPERVISOR || has_word(pid, "supervise", 1);
}

bool process_supervises(pid_t pid)
{
    return process_program(pid) == HOME_SUPERVISOR && is_ours(pid) && !is_zombie(pid) &&
           (has_word(pid, "supervise", 1) || has_word(pid, "up", INT_MAX)); /* --foreground */
}

/* fd: of the process, or -1 where the system has none to give. */
static void send_to(int fd, pid_t pid, int number)
{
    if (fd >= 0) {
        (void)pidfd_send_signal(fd, number, NULL, 0);
    } else {
        (void)kill(pid, number);
    }
}

void process_signal(pid_t pid, int number, bool group, bool (*still)(pid_t pid, const void *arg),
                    const void *arg)
{
    auto_close int fd = pidfd_open(pid, 0);
    if ((fd < 0 && errno == ESRCH) || !still(pid, arg))
        return;
    if (group && getpgid(pid) == pid)
        (void)kill(-pid, number);
    send_to(fd, pid, number);
    send_to(fd, pid, SIGCONT);
}
