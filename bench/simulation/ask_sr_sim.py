"""Asks vllm-sr-sim, in its own interpreter, how long it takes for rows of arrival, prompt and output tokens."""

import json
import sys
import time

from fleet_sim.core.fleet import Fleet, FleetConfig, PoolConfig
from fleet_sim.core.request import Request
from fleet_sim.gpu_profiles import H100_80GB


def main(path: str) -> None:
    """One JSON line: requests that it completed, CPU seconds of the run alone."""
    arrivals = []
    with open(path) as rows:
        for number, row in enumerate(rows):
            at, prompt, output = row.split(",")
            arrivals.append((float(at), Request(number, float(at), int(prompt), int(output))))
    pools = [PoolConfig("all", H100_80GB, 1, 131_072)]
    fleet = Fleet(FleetConfig(pools=pools, router_type="RandomRouter"))
    begun = time.process_time()
    result = fleet.run(arrivals)
    seconds = time.process_time() - begun
    print(json.dumps({"requests": len(result.completed), "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1])
