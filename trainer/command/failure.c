#include "trainer/command/failure.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum { TAIL = 20 }; /* lines from the end that are looked through */

bool failure_is_success(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Words of libraries for a peer that is gone, or doesn't come. A rank that says one of them last
 * has most likely not failed first. */
static bool blames_peer(const struct output *output)
{
    static const char *const words[] = {
        "Connection closed by peer",
        "Connection reset by peer",
        "Broken pipe",
        "DistNetworkError",
        "DistBackendError",
        "DistStoreError",
        "Socket Timeout",
        "Read error",
        "Timed out waiting",
        "collective operation timeout",
    };
    const char *line = NULL;
    for (size_t n = 0; n < TAIL && (line = output_last(output, n)) != NULL; n++) {
        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
            if (strstr(line, words[i]) != NULL)
                return true;
        }
    }
    return false;
}

/* True for the signals by which people and systems end processes. */
static bool is_outside(int status)
{
    const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return number == SIGKILL || number == SIGTERM || number == SIGINT || number == SIGHUP;
}

static bool is_restarted(const struct jobspec *job, const struct failure_patterns *patterns,
                         int status, const struct output *output)
{
    const uint32_t code =
        (uint32_t)(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    bool listed = !job->command.restart.codes_given || is_outside(status);
    for (size_t i = 0; i < job->command.restart.code_count && !listed; i++)
        listed = job->command.restart.codes[i] == code;
    const char *line = NULL;
    for (size_t n = 0; n < TAIL && !listed && (line = output_last(output, n)) != NULL; n++) {
        for (size_t i = 0; i < patterns->count && !listed; i++)
            listed = pattern_find(patterns->list[i], line, strlen(line), NULL, 0);
    }
    return listed;
}

struct command_failure failure_of_exit(const struct jobspec *job,
                                       const struct failure_patterns *patterns, uint32_t rank,
                                       int status, const struct output *output)
{
    struct command_failure failure = { .kind = CAIRN__V1__FAULT_KIND__PROCESS_GONE,
                                       .outside = is_outside(status) };
    /* what it wrote before somebody else ended it explains nothing */
    const char *words = failure.outside ? NULL : output_last_words(output);
    const char *sep = words != NULL ? ": " : "";
    words = words != NULL ? words : "";
    if (WIFSIGNALED(status)) {
        const char *name = sigabbrev_np(WTERMSIG(status));
        reason_set(&failure.why, "the program of rank %u was killed by SIG%s%s%.240s", rank,
                   name != NULL ? name : "?", sep, words);
    } else {
        reason_set(&failure.why, "the program of rank %u ended with code %d%s%.240s", rank,
                   WEXITSTATUS(status), sep, words);
    }
    failure.late = !failure.outside && blames_peer(output);
    if (!failure.late && !is_restarted(job, patterns, status, output))
        failure.kind = CAIRN__V1__FAULT_KIND__USER;
    return failure;
}
