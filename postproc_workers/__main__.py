"""`python -m postproc_workers`: one worker process."""

import argparse
import logging
import os
from pathlib import Path

import zmq

from ipc.process import WATCH_PARENT, end_with_parent, on_termination
from ipc.security import CurveKey
from postproc_workers.worker import Worker, worker_info


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True, help="ipc:// or tcp:// address")
    parser.add_argument("--worker", type=int, required=True, help="this worker's number")
    parser.add_argument("--curve-key", type=Path, help="key file, needed for tcp://")
    parser.add_argument("--log-level", default="warning")
    parser.add_argument(WATCH_PARENT, action="store_true")
    options = parser.parse_args()
    logging.basicConfig(
        level=options.log_level.upper(),
        format=f"%(asctime)s %(levelname)s worker {options.worker}: %(message)s",
    )
    worker = Worker(
        zmq.Context(),
        options.listen,
        worker_info(options.worker, os.getpid()),
        key=CurveKey.load(options.curve_key) if options.curve_key else None,
    )
    on_termination(worker.stop)
    if options.watch_parent:
        end_with_parent()
    worker.run()


if __name__ == "__main__":
    main()
