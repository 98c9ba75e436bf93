#include "trainer/update/scaler.h"

struct scaler_options scaler_dynamic(double most)
{
    return (struct scaler_options){ .dynamic = true,
                                    .scale = most < 65536 ? most : 65536,
                                    .growth = 2,
                                    .backoff = 0.5,
                                    .floor = 1,
                                    .most = most,
                                    .interval = 2000 };
}

struct scaler_options scaler_static(double scale)
{
    return (struct scaler_options){ .scale = scale };
}

struct scaler scaler_start(const struct scaler_options *options)
{
    return (struct scaler){ .scale = options->scale };
}

enum status scaler_next(const struct scaler_options *options, struct scaler before, bool overflow,
                        struct scaler *out)
{
    struct scaler next = before;
    if (overflow) {
        if (!options->dynamic || before.scale <= options->floor)
            return ST_NUMERIC;
        next.scale *= options->backoff;
        if (next.scale < options->floor)
            next.scale = options->floor;
        next.good_steps = 0;
    } else if (options->dynamic) {
        next.good_steps++;
        if (next.good_steps >= options->interval) {
            next.good_steps = 0;
            next.scale *= options->growth;
            if (next.scale > options->most)
                next.scale = options->most;
        }
    }
    *out = next;
    return ST_OK;
}
