/* plan: a preview of a job, which the trainer makes. */
#include "client/base/trainer.h"
#include "client/cmd/commands.h"

enum exit_code cmd_plan(struct client *client)
{
    struct trainer_call call = { .count = 0 };
    trainer_add(&call, "--plan");
    trainer_add(&call, client->args.operands[0]);
    trainer_add_sets(&call, &client->args);
    return trainer_become(&call);
}
