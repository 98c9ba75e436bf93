/* Advice on what people can do, by cause. */
#include "server/jobfsm/jobfsm.h"
#include "server/story/story.h"

#define REPEATED  2    /* failures for which the same node is blamed */
#define REPLAY_MS 1000 /* of less it isn't worth speaking */

/* Says where to look first. */
static void say_logs(const struct story_loss *loss, const char *job, const char *then,
                     struct reason *out)
{
    if (loss->rank == RECOVERY_ALL_RANKS) {
        reason_set(out, "`cairn logs %s --attempt %u` has what the workers said before%s", job,
                   loss->ended, then);
    } else {
        reason_set(out, "`cairn logs %s --rank %u --attempt %u` has what it said before%s", job,
                   loss->rank, loss->ended, then);
    }
}

static void say_node(const struct story_loss *loss, struct reason *out)
{
    reason_set(out,
               "look at %s%s: `cairn node ls -o wide` says how it is seen, `cairn node check "
               "--pairs` tries the paths between the nodes",
               loss->node[0] ? "node " : "the nodes", loss->node);
}

/* Advises on a cause. false: there is nothing to be done about it. */
static bool advise_on(enum fsm_fault_kind kind, const struct story_loss *loss, const char *job,
                      struct reason *out)
{
    switch (kind) {
    case FSM_FAULT_NONE:
        return false;
    case FSM_FAULT_PROCESS:
        say_logs(loss, job, "", out);
        return true;
    case FSM_FAULT_HANG:
        say_logs(loss, job,
                 "; where a step takes that long by nature, start the coordinator with a higher "
                 "CAIRN_HANG_MS",
                 out);
        return true;
    case FSM_FAULT_MEMORY:
        reason_set(out, "submit it with a smaller train.micro_batch or checkpoint.memory, or put "
                        "fewer workers on a node; `cairn plan` says what they need");
        return true;
    case FSM_FAULT_FORMATION:
        reason_set(out, "where the message names two versions, install the same one on both nodes; "
                        "else `cairn node check --pairs` tries the paths between the nodes");
        return true;
    case FSM_FAULT_COMMUNICATION:
    case FSM_FAULT_PATH:
        reason_set(out, "`cairn node check --pairs` tries the paths between the nodes, both ways");
        return true;
    case FSM_FAULT_NODE:
    case FSM_FAULT_SESSION:
        say_node(loss, out);
        return true;
    case FSM_FAULT_DAMAGE:
        reason_set(out,
                   "`cairn ckpt scrub %s` reads all its checkpoints and sets aside what is "
                   "damaged; then look at the store's disks",
                   job);
        return true;
    case FSM_FAULT_WRONG:
        reason_set(out,
                   "have the machine of node %s looked at, its memory and processor or device: "
                   "it gets no work until `cairn node undrain`",
                   loss->node[0] ? loss->node : "that differs");
        return true;
    case FSM_FAULT_STORE:
        reason_set(out, "see that the checkpoint store is there on each node, has room and may be "
                        "written to");
        return true;
    case FSM_FAULT_NUMERIC:
        reason_set(out, "submit it with a lower train.optimizer.lr, or clip the gradient "
                        "(train.clip_norm)");
        return true;
    case FSM_FAULT_USER:
        reason_set(out, "mend what the message names, and submit it anew");
        return true;
    case FSM_FAULT_PINS:
        reason_set(out, "run it on nodes of one kind; `exactness: relaxed` accepts what differs");
        return true;
    case FSM_FAULT_DATA:
        reason_set(out, "put the data back as they were; the job looks again by itself");
        return true;
    }
    return false;
}

/* Advises on a cause of a program of the user's, where other keys of the job file help. */
static bool advise_on_command(enum fsm_fault_kind kind, const struct story_loss *loss,
                              const char *job, struct reason *out)
{
    if (kind == FSM_FAULT_HANG) {
        say_logs(loss, job, "; how long it may get nowhere is its command.hang", out);
        return true;
    }
    if (kind == FSM_FAULT_MEMORY) {
        reason_set(out, "submit it with fewer command.processes, have the program take less, or "
                        "put fewer workers on a node");
        return true;
    }
    return false;
}

static bool advise_on_replay(const struct story *story, bool copies, struct reason *out)
{
    int64_t total = 0;
    for (uint32_t i = 0; i < STORY_FAULTS; i++) {
        for (int p = 0; p < RECOVERY_PARTS; p++)
            total += story->of[i].ms[p];
    }
    if (copies || story->stored_ms < REPLAY_MS || story->stored_ms < total / 2)
        return false;
    reason_set(out,
               "most of what was lost, %.1f s, went into training steps again: "
               "`checkpoint.memory_every: 1 step` keeps copies in memory, a shorter "
               "checkpoint.every repeats fewer",
               (double)story->stored_ms / 1e3);
    return true;
}

static bool advise_on_nodes(const struct story *story, struct reason *out)
{
    const struct story_node *worst = NULL;
    for (uint32_t i = 0; i < story->node_count; i++) {
        if (worst == NULL || story->nodes[i].count > worst->count)
            worst = &story->nodes[i];
    }
    if (worst == NULL || worst->count < REPEATED)
        return false;
    reason_set(out, "node %s is blamed for %u failures: `cairn node drain %s` keeps it free",
               worst->name, worst->count, worst->name);
    return true;
}

uint32_t story_advise(const struct story *story, const struct story_facts *facts,
                      struct story_advice out[STORY_ADVICE])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < STORY_FAULTS; i++) {
        const enum fsm_fault_kind kind = (enum fsm_fault_kind)i;
        out[count].about = story_cause(i);
        const struct story_loss *loss = &story->of[i];
        struct reason *text = &out[count].text;
        if (loss->count == 0)
            continue;
        if ((facts->command && advise_on_command(kind, loss, facts->job, text)) ||
            advise_on(kind, loss, facts->job, text))
            count++;
    }
    out[count].about = "node";
    if (facts->spare_node && advise_on_nodes(story, &out[count].text))
        count++;
    out[count].about = "replay";
    if (facts->saves && advise_on_replay(story, facts->copies, &out[count].text))
        count++;
    return count;
}
