"""Serve with the stand-in: arm the plugin as vLLM does, run steps, then do what is asked."""

import os
import resource
import signal
import sys
import time

from attnproof.harness.recorder.plugin import arm

steps, ending = int(sys.argv[1]), sys.argv[2]
if ending == "full":  # a write beyond this size fails as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, resource.RLIM_INFINITY))
arm()
from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: E402

runner = GPUModelRunner(requests=8)
for step in range(steps):
    runner.execute_model(runner.scheduled(step))
    time.sleep(0.002)
if ending == "killed":
    time.sleep(1.0)  # a flush is promised for each second
    runner.execute_model(runner.scheduled(1))
    os.kill(os.getpid(), signal.SIGKILL)
print(f"{steps} steps served")
sys.exit(int(ending) if ending.isdigit() else 0)
