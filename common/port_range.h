/*
 * TCP ports from first to last: where a node's firewall lets workers be reached. Written
 * "21000-21999".
 */
#pragma once

#include <stdint.h>
#include <stdlib.h>

#include "common/status.h"

#define PORT_RANGE_FROM 1024
#define PORT_RANGE_TO   65535

struct port_range {
    uint16_t first, last; /* last 0: any port */
};

/* "": any. Errors: ST_INVALID  not two ports from PORT_RANGE_FROM up, the second at least the first
 */
static inline enum status port_range_parse(const char *text, struct port_range *out)
{
    unsigned long ports[2] = { 0, 0 };
    *out = (struct port_range){ 0, 0 };
    for (int i = 0; i < 2 && text[0] != '\0'; i++) {
        char *end = NULL;
        if (text[0] < '1' || text[0] > '9')
            return ST_INVALID;
        ports[i] = strtoul(text, &end, 10);
        if (*end != (i == 0 ? '-' : '\0') || ports[i] < PORT_RANGE_FROM || ports[i] > PORT_RANGE_TO)
            return ST_INVALID;
        text = end + (i == 0);
    }
    if ((ports[0] == 0) != (ports[1] == 0) || ports[1] < ports[0])
        return ST_INVALID;
    *out = (struct port_range){ (uint16_t)ports[0], (uint16_t)ports[1] };
    return ST_OK;
}

/* Returns the number of ports; 0: any. */
static inline uint32_t port_range_count(struct port_range range)
{
    return range.last == 0 ? 0 : (uint32_t)(range.last - range.first) + 1;
}
