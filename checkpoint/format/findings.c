#include "checkpoint/format/findings.h"

#include <stdarg.h>
#include <stdio.h>

#include "common/limits.h"

static int kind_weight(enum status st)
{
    return st == ST_VERSION ? 3 : st == ST_CORRUPT ? 2 : st == ST_INCOMPLETE ? 1 : 0;
}

bool ckpt_is_finding(enum status st)
{
    return kind_weight(st) > 0;
}

bool ckpt_is_damage(enum status st)
{
    return ckpt_is_finding(st) && st != ST_VERSION;
}

enum status ckpt_finding(struct ckpt_findings *findings, enum status st, const char *file,
                         const char *format, ...)
{
    if (kind_weight(st) > kind_weight(findings->worst))
        findings->worst = st;
    if (findings->fn == NULL)
        return st;
    char text[LIMIT_REASON], line[LIMIT_REASON + LIMIT_NAME];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)snprintf(line, sizeof(line), "%.100s: %s", file, text);
    /* Names may hold any bytes; a line goes to terminals, JSON and messages. */
    for (char *c = line; *c != '\0'; c++) {
        if (*c < ' ' || *c > '~')
            *c = '?';
    }
    findings->fn(findings->arg, line);
    return st;
}
