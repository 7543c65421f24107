"""A first training script, as a user's Dockerfile copies it into an image. It knows torch, and nothing of the operator: no
signal, no checkpoint, no progress. What it notes is for the test."""
import json
import os
import socket
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
path = os.path.join(os.environ["FOLDER"], socket.gethostname() + ".log")
with open(path, "a", buffering=1) as log:
    for step in range(1, 1_000_000):
        x = torch.randn(32, 4)
        loss = ((model(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step == 1 or step % 10 == 0:
            entry = {"at": time.time(), "what": "first" if step == 1 else "step", "step": step, "rank": rank,
                     "world": world, "round": int(os.environ.get("ETO_ROUND", "0"))}
            log.write(json.dumps(entry) + "\n")
        time.sleep(0.05)
