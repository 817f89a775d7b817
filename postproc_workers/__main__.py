"""`python -m postproc_workers`: one worker process."""

import argparse
import logging
import os
import sys

import zmq

from ipc.process import (
    EXIT_CONFIGURATION,
    add_process_options,
    curve_key,
    end_with_parent,
    log_to_standard_error,
    on_termination,
)
from ipc.security import SecurityError
from ipc.vocabulary import VocabularyError
from postproc_workers.worker import Worker, worker_info


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m postproc_workers", description=__doc__)
    parser.add_argument("--worker", type=int, required=True, help="this worker's number")
    add_process_options(parser)
    options = parser.parse_args()
    log_to_standard_error(f"worker {options.worker}", options.log_level)
    try:
        info = worker_info(options.worker, os.getpid())
        worker = Worker(zmq.Context(), options.listen, info, key=curve_key(options))
        on_termination(worker.stop)
        if options.watch_parent:
            end_with_parent()
        worker.run()
    except (SecurityError, VocabularyError) as error:
        logging.getLogger(__name__).critical("%s", error)
        sys.exit(EXIT_CONFIGURATION)


if __name__ == "__main__":
    main()
