/* plan: a preview of a job, which the trainer makes. */
#include "client/base/client.h"
#include "client/base/trainer.h"
#include "client/cmd/commands.h"

enum exit_code cmd_plan(struct client *client)
{
    if (client->args.output != OUTPUT_TABLE && client->args.output != OUTPUT_WIDE) {
        client_error("plan prints a text for people only: leave -o away");
        return EXIT_USAGE;
    }
    struct trainer_call call = { .count = 0 };
    trainer_add(&call, "--plan");
    trainer_add(&call, client->args.operands[0]);
    trainer_add_sets(&call, &client->args);
    return trainer_become(&call);
}
