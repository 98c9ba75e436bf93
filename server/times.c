#include "server/times.h"

#include <errno.h>
#include <stdlib.h>

/* Seconds, as ms; 0: none are given. */
static enum status read_seconds(const char *text, const char *name, const char *variable,
                                int64_t *out, struct reason *reason)
{
    const char *value = text != NULL ? text : getenv(variable);
    char *end;
    *out = 0;
    if (value == NULL || !value[0])
        return ST_OK;
    errno = 0;
    const double seconds = strtod(value, &end);
    if (errno != 0 || *end != '\0' || !(seconds > 0 && seconds <= 86400)) {
        reason_set(reason, "%s is '%.40s': a number of seconds, above 0",
                   text != NULL ? name : variable, value);
        return ST_CONFIG;
    }
    *out = (int64_t)(seconds * 1000);
    return ST_OK;
}

static int64_t hang_ms(void)
{
    const char *text = getenv("CAIRN_HANG_MS");
    if (text == NULL)
        return 0;
    char *end;
    errno = 0;
    long long ms = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && ms >= 100 && ms <= 86400000 ? ms : 0;
}

static enum status check(const struct times *times, struct reason *reason)
{
    const int64_t beat = times->beat_ms ? times->beat_ms : 1000;
    const int64_t hang = times->hang_ms ? times->hang_ms : TIMES_HANG_MS;
    if (times->beat_ms != 0 && (beat < TIMES_BEAT_MIN_MS || beat > TIMES_BEAT_MAX_MS)) {
        reason_set(reason, "--beat %.1f: from %d to %d s", (double)beat / 1000.0,
                   TIMES_BEAT_MIN_MS / 1000, TIMES_BEAT_MAX_MS / 1000);
    } else if (times->lost_ms < TIMES_BEATS_MIN * beat || times->lost_ms < TIMES_LOST_MIN_MS) {
        reason_set(reason,
                   "--lost-after %.1f: %d s at least, and %d times the beat of %.1f s, or a lost "
                   "packet counts as a lost node",
                   (double)times->lost_ms / 1000.0, TIMES_LOST_MIN_MS / 1000, TIMES_BEATS_MIN,
                   (double)beat / 1000.0);
    } else if (times->lost_ms >= hang) {
        reason_set(reason,
                   "--lost-after %.1f: less than the %.1f s after which workers without progress "
                   "hang, or a lost node would be called a hang: make it smaller, or set "
                   "CAIRN_HANG_MS",
                   (double)times->lost_ms / 1000.0, (double)hang / 1000.0);
    } else {
        return ST_OK;
    }
    return ST_CONFIG;
}

enum status times_read(const char *beat, const char *lost_after, struct times *out,
                       struct reason *reason)
{
    *out = (struct times){ .hang_ms = hang_ms() };
    enum status st = read_seconds(beat, "--beat", "CAIRN_BEAT", &out->beat_ms, reason);
    if (st == ST_OK)
        st = read_seconds(lost_after, "--lost-after", "CAIRN_LOST_AFTER", &out->lost_ms, reason);
    if (st != ST_OK || (out->beat_ms == 0 && out->lost_ms == 0))
        return st;
    if (out->lost_ms == 0)
        out->lost_ms = 5 * (out->beat_ms > 1000 ? out->beat_ms : 1000);
    return check(out, reason);
}
