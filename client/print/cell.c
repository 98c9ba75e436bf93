#include "client/print/cell.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "client/print/format.h"
#include "common/clock.h"

void cell_text(const void *text, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", *(char *const *)text);
}

void cell_optional_text(const void *text, char *out, size_t capacity)
{
    const char *value = *(char *const *)text;
    (void)snprintf(out, capacity, "%s", value[0] == '\0' ? "-" : value);
}

void cell_u32(const void *value, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%u", *(const uint32_t *)value);
}

void cell_u64(const void *value, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%llu", (unsigned long long)*(const uint64_t *)value);
}

void cell_size(const void *value, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%zu", *(const size_t *)value);
}

void cell_number(const void *value, char *out, size_t capacity)
{
    (void)format_number(*(const double *)value, out, capacity);
}

void cell_bytes(const void *bytes, char *out, size_t capacity)
{
    (void)format_bytes(*(const uint64_t *)bytes, out, capacity);
}

void cell_us(const void *us, char *out, size_t capacity)
{
    (void)format_us(*(const uint64_t *)us, out, capacity);
}

void cell_age(const void *since, char *out, size_t capacity)
{
    (void)format_age(*(char *const *)since, clock_wall_ms(clock_system()), out, capacity);
}

double cell_value_u32(const void *value)
{
    return *(const uint32_t *)value;
}

double cell_value_size(const void *value)
{
    return (double)*(const size_t *)value;
}

double cell_value_number(const void *value)
{
    return *(const double *)value;
}

double cell_value_time(const void *time)
{
    int64_t ms = 0;
    return format_read_time(*(char *const *)time, &ms) ? (double)ms : (double)NAN;
}

double cell_value_age(const void *since)
{
    return -cell_value_time(since);
}
