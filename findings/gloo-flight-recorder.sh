#!/usr/bin/env bash
# PyTorch 2.15.0: the flight recorder's dump of a process with Gloo says that a collective which timed out was completed, and of those that
# were completed that they are only scheduled.
#
# Expected: last_completed_collective is the last one that succeeded; entries that succeeded have the state "completed"; with
# TORCH_FR_DUMP_ON_TIMEOUT=1 a dump is written when a collective times out.
# Seen, torch 2.15.0, two processes, the fifth collective of rank 0 times out as rank 1 never enters it:
#   rank 0: pg_status {'last_completed_collective': '5', 'last_enqueued_collective': '5', 'last_started_collective': '-1'}
#   rank 0: states {'scheduled'}, all of them retired
#   files: none
# So what Gloo dumps can be compared by what each rank entered, not by what it completed, and a program has to write it itself.
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/packages.sh"
packages torch==2.15.0
look_at "$python" <<'P'
import datetime
import json
import os
import socket
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), WORLD_SIZE="2", TORCH_FR_BUFFER_SIZE="100",
                      TORCH_FR_DUMP_ON_TIMEOUT="1", TORCH_FR_DUMP_TEMP_FILE=os.path.abspath("dump_"))
other = os.fork()
os.environ["RANK"] = "0" if other else "1"
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
for _ in range(4):
    dist.all_reduce(torch.ones(4))
if not other:
    time.sleep(6)
    os._exit(0)
try:
    dist.all_reduce(torch.ones(4))
    raise SystemExit("it was to time out")
except RuntimeError:
    pass
os.waitpid(other, 0)
said = json.loads(_dump_fr_trace_json(True, False))
status, states = said["pg_status"]["0"], {entry["state"] for entry in said["entries"]}
files = [name for name in os.listdir() if name.startswith("dump_")]
print("rank 0: pg_status", dict(sorted(status.items())))
print("rank 0: states", states, "retired", {entry["retired"] for entry in said["entries"]})
print("files:", files)
assert int(status["last_completed_collective"]) == 5 and states == {"scheduled"} and not files, "this has changed"
P
