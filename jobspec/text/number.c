#include "jobspec/text/number.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bool number_whole(const char *text, double low, double high, int64_t *out)
{
    const char *digits = text + (text[0] == '-');
    if (!isdigit((unsigned char)digits[0]))
        return false;
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || (double)value < low || (double)value > high)
        return false;
    *out = value;
    return true;
}

/* No hexadecimal, no "inf" and "nan", which strtod would take. */
bool number_real(const char *text, char **out_end, double *out)
{
    const char *digits = text + (text[0] == '-');
    if (!isdigit((unsigned char)digits[0]) && digits[0] != '.')
        return false;
    if (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X'))
        return false;
    *out = strtod(text, out_end);
    return *out_end != text && isfinite(*out);
}

enum status number_print(double value, struct buf *out)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return buf_append_text(out, text);
}
