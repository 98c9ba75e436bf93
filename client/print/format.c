#include "client/print/format.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

char *format_seconds(double seconds, char *out, size_t capacity)
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e12) {
        (void)snprintf(out, capacity, "-");
    } else if (seconds < 9.95) {
        (void)snprintf(out, capacity, "%.1fs", seconds);
    } else if (seconds < 59.5) {
        (void)snprintf(out, capacity, "%.0fs", seconds);
    } else {
        long long whole = llround(seconds);
        if (whole < 3600) {
            (void)snprintf(out, capacity, "%lldm%02llds", whole / 60, whole % 60);
        } else if (whole < 86400) {
            (void)snprintf(out, capacity, "%lldh%02lldm", whole / 3600, whole / 60 % 60);
        } else {
            (void)snprintf(out, capacity, "%lldd%02lldh", whole / 86400, whole / 3600 % 24);
        }
    }
    return out;
}

char *format_us(uint64_t us, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%.1fms", (double)us / 1e3);
    return us < 1000000 ? out : format_seconds((double)us / 1e6, out, capacity);
}

char *format_bytes(uint64_t bytes, char *out, size_t capacity)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1023.95 && unit < 6) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(out, capacity, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

char *format_number(double value, char *out, size_t capacity)
{
    if (isfinite(value)) {
        (void)snprintf(out, capacity, "%.4g", value);
    } else {
        (void)snprintf(out, capacity, "-");
    }
    return out;
}

bool format_read_time(const char *time, int64_t *out_ms)
{
    struct tm parts = { 0 };
    const char *rest = time == NULL ? NULL : strptime(time, "%Y-%m-%dT%H:%M:%S", &parts);
    if (rest == NULL)
        return false;
    int ms = 0;
    if (rest[0] == '.') {
        rest++;
        for (int scale = 100; rest[0] >= '0' && rest[0] <= '9'; rest++, scale /= 10)
            ms += (rest[0] - '0') * scale;
    }
    if (strcmp(rest, "Z") != 0 && strcmp(rest, "+00:00") != 0)
        return false;
    *out_ms = (int64_t)timegm(&parts) * 1000 + ms;
    return true;
}

char *format_age(const char *time, int64_t now_ms, char *out, size_t capacity)
{
    int64_t then = 0;
    if (!format_read_time(time, &then)) {
        (void)snprintf(out, capacity, "-");
        return out;
    }
    int64_t s = (now_ms - then) / 1000;
    if (s < 0)
        s = 0;
    if (s < 60) {
        (void)snprintf(out, capacity, "%llds", (long long)s);
    } else if (s < 3600) {
        (void)snprintf(out, capacity, "%lldm", (long long)(s / 60));
    } else if (s < 86400) {
        (void)snprintf(out, capacity, "%lldh", (long long)(s / 3600));
    } else {
        (void)snprintf(out, capacity, "%lldd", (long long)(s / 86400));
    }
    return out;
}

/* Appends text if it fits. */
static size_t append_cell(char *out, size_t capacity, size_t used, const char *text)
{
    size_t size = strlen(text);
    if (used + size + 1 > capacity)
        return used;
    memcpy(out + used, text, size + 1);
    return used + size;
}

char *format_bar(double fraction, size_t width, bool utf8, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = '\0';
    if (!(fraction > 0))
        fraction = 0;
    if (fraction > 1)
        fraction = 1;
    size_t filled = (size_t)(fraction * (double)width);
    for (size_t i = 0; i < width; i++) {
        if (i < filled) {
            used = append_cell(out, capacity, used, utf8 ? "█" : "#");
        } else {
            used = append_cell(out, capacity, used, utf8 ? "·" : ".");
        }
    }
    return out;
}

/* The value of cell i of `cells`: the highest of those that fall into it. */
static float cell_value(const float *values, size_t count, size_t i, size_t cells)
{
    size_t first = i * count / cells;
    size_t end = (i + 1) * count / cells;
    float chosen = values[first];
    for (size_t k = first; k < end; k++) {
        if (!isfinite(values[k]))
            return values[k];
        if (values[k] > chosen)
            chosen = values[k];
    }
    return chosen;
}

char *format_sparkline(const float *values, size_t count, size_t width, bool utf8, char *out,
                       size_t capacity)
{
    static const char *const blocks[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    static const char *const ascii[] = { "_", ".", "-", "=", "+", "*", "%", "@" };
    double low = INFINITY;
    double high = -INFINITY;
    out[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i]))
            continue;
        low = fmin(low, (double)values[i]);
        high = fmax(high, (double)values[i]);
    }
    size_t used = 0;
    size_t cells = count < width ? count : width;
    for (size_t i = 0; i < cells; i++) {
        float value = cell_value(values, count, i, cells);
        if (!isfinite(value)) {
            used = append_cell(out, capacity, used, "!");
            continue;
        }
        double at = high > low ? ((double)value - low) / (high - low) : 0;
        size_t level = (size_t)(at * 7.999);
        used = append_cell(out, capacity, used, utf8 ? blocks[level] : ascii[level]);
    }
    return out;
}

/* Bytes of the escape sequence or character at text; *out_cells: what it takes on the screen. */
static size_t next_character(const char *text, size_t *out_cells)
{
    *out_cells = 0;
    if (text[0] == '\033' && text[1] == '[') {
        size_t size = 2;
        while (text[size] != '\0' && (text[size] < '@' || text[size] > '~'))
            size++;
        return text[size] == '\0' ? size : size + 1;
    }
    size_t size = 1;
    *out_cells = 1;
    while (((unsigned char)text[size] & 0xC0) == 0x80)
        size++;
    return size;
}

size_t format_cells(const char *text)
{
    size_t total = 0;
    for (size_t at = 0; text[at] != '\0';) {
        size_t cells = 0;
        at += next_character(text + at, &cells);
        total += cells;
    }
    return total;
}

size_t format_fit(const char *text, size_t cells)
{
    size_t at = 0;
    size_t total = 0;
    while (text[at] != '\0') {
        size_t more = 0;
        size_t size = next_character(text + at, &more);
        if (total + more > cells)
            break;
        total += more;
        at += size;
    }
    return at;
}

char *format_lower(char *text)
{
    for (char *c = text; *c != '\0'; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
    return text;
}
