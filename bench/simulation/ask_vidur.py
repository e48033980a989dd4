"""Asks Vidur, in its own interpreter, how long it takes for 2,000 requests with its own profiles and lengths."""

import json
import sys
import time

REQUESTS = 2000


def main() -> None:
    """One JSON line: requests, CPU seconds of the run alone. Fails where the profiles cannot be had."""
    sys.argv = ["vidur", "--synthetic_request_generator_config_num_requests", str(REQUESTS)]
    from vidur.config import SimulationConfig
    from vidur.simulator import Simulator

    simulator = Simulator(SimulationConfig.create_from_cli_args())
    begun = time.process_time()
    simulator.run()
    print(json.dumps({"requests": REQUESTS, "seconds": time.process_time() - begun}))


if __name__ == "__main__":
    main()
