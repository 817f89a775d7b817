"""The IO shell around an engine core: one socket, one loop, signals.

Between steps the socket is drained without waiting; only an engine that has nothing to do waits
in it. All decisions are the core's.
"""

import argparse
import gc
import logging
import time

import msgspec
import zmq

from engine.core import EngineCore
from engine.ledger import Steps
from engine.wakeup import Wakeup
from engine.watchdog import DEFAULT_STEP_SECONDS, StepTimer, watch
from ipc import codec
from ipc.listener import Listener, Lost
from ipc.messages import (
    Cancel,
    FrontendToEngine,
    GenerationRequest,
    Goodbye,
    Heartbeat,
    Hello,
    Owner,
    Reassign,
    WatchBlocks,
)
from ipc.process import add_process_options, curve_key, end_with_parent, on_termination

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
"""How long an idle engine may take to notice a signal, or an owner's silence."""
RETRY_SECONDS = 0.005
"""How soon frames that a peer had no room for are tried again by an idle engine."""
FLUSH_SECONDS = 1.0
"""How long a stopping engine tries to get its last frames out."""
MESSAGES_A_STEP = 1000
"""Messages handled before the next step, so that a flood of them delays no sequence for long."""

EngineListener = Listener[FrontendToEngine]


class Executor:
    """Drives `core` by what `listener` receives, until `stop` is called from any thread or a
    signal handler; then ends all sequences with an error and returns. `timer` is told when a step
    begins and ends; `wakeup`, which the listener polls too, is cleared before the core is asked
    what there is to do."""

    def __init__(
        self,
        core: EngineCore,
        listener: EngineListener,
        timer: StepTimer | None = None,
        wakeup: Wakeup | None = None,
    ) -> None:
        self._core = core
        self._listener = listener
        self._timer = timer or StepTimer(float("inf"), time.monotonic)
        self._wakeup = wakeup
        self._stopping = False

    def stop(self) -> None:
        """Make `run` end soon."""
        self._stopping = True

    def run(self) -> None:
        """Serve until stopped."""
        while not self._stopping:
            self._receive()
            self._listener.flush()
            if self._wakeup is not None:
                self._wakeup.clear()
            wait = self._core.wait()
            if wait == 0:
                self._send(self._step())
            else:
                self._listener.poll(self._patience(wait))
        self._finish()

    def _step(self) -> Steps:
        self._timer.begin()
        steps = self._core.step()
        self._timer.end()
        return steps

    def _patience(self, wait: float | None) -> float:
        longest = RETRY_SECONDS if self._listener.unsent else POLL_SECONDS
        return longest if wait is None else min(wait, longest)

    def _receive(self) -> None:
        for _ in range(MESSAGES_A_STEP):
            received = self._listener.receive()
            if received is None:
                return
            self._handle(*received)

    def _handle(self, owner: Owner, message: FrontendToEngine | Lost) -> None:
        match message:
            case GenerationRequest():
                self._core.add(owner, message)
            case Cancel(stream_id, lease):
                self._core.cancel(owner, stream_id, lease)
            case Reassign():
                self._core.reassign(owner, message)
            case WatchBlocks():
                self._core.watch_blocks(owner)
                self._send_events()
            case Heartbeat():
                self._send_status(owner)
            case Hello():
                self._core.hello(owner)
            case Goodbye():
                self._core.owner_lost(owner)
                self._listener.forget(owner)
            case Lost():
                log.warning("%s is lost", owner)
                self._core.owner_lost(owner)

    def _send_status(self, owner: Owner) -> None:
        status = self._core.status()
        rejected = status.rejected + self._listener.rejections.count + self._listener.not_owned
        status = msgspec.structs.replace(status, rejected=rejected)
        self._listener.send(owner, [b"", codec.encode(status)])

    def _send(self, steps: Steps) -> None:
        for (owner, worker), step in steps.items():
            self._listener.send(owner, [str(worker).encode(), codec.encode(step)])
        self._send_events()

    def _send_events(self) -> None:
        for owner, events in self._core.block_events().items():
            self._listener.send(owner, [b"", codec.encode(events)])

    def _finish(self) -> None:
        self._core.shut_down()
        self._send(self._step())
        for _ in range(int(FLUSH_SECONDS / RETRY_SECONDS)):
            self._listener.flush()
            if not self._listener.unsent:
                return
            self._listener.poll(RETRY_SECONDS)
        log.warning("%d messages could not be sent", self._listener.unsent)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """The options of every engine process."""
    parser.add_argument(
        "--step-timeout",
        type=_not_negative,
        default=DEFAULT_STEP_SECONDS,
        metavar="SECONDS",
        help="end the process when one step takes longer; 0: never (%(default)g)",
    )
    add_process_options(parser)


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return value


def serve(core: EngineCore, options: argparse.Namespace, wakeup: Wakeup | None = None) -> None:
    """Serve `core` by the options of `add_engine_options`, until SIGTERM, SIGINT or the parent's
    end. A core that gets work to do from another thread has it set `wakeup`.

    To be called in the main thread. Raises SecurityError and zmq.ZMQError if it cannot listen.
    """
    key = curve_key(options)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        listener: EngineListener = Listener(
            context, options.listen, codec.frontend_to_engine, core.info, key=key, wakeup=wakeup
        )
        try:
            timer = StepTimer(options.step_timeout or float("inf"), time.monotonic)
            executor = Executor(core, listener, timer, wakeup)
            on_termination(executor.stop)
            if options.watch_parent:
                end_with_parent()
            if options.step_timeout:
                watch(timer)
            log.info("%s listens at %s", core.info.model, listener.address)
            # What start-up has made stays: looked through with every full collection, it would
            # hold up a step by 0.1 s now and then (measured).
            gc.collect()
            gc.freeze()
            executor.run()
        finally:
            listener.close()
    finally:
        context.term()
