"""How an engine ends. Last of the package: the process that the others share is spent on it."""

from tests.engine_contract.engines import Engine
from tests.engine_contract.frontend import Frontend


def test_sigterm_ends_live_streams_with_an_error(engine: Engine) -> None:
    with Frontend(engine.address, engine.new_owner()) as frontend:
        ended = frontend.generate(max_tokens=2)
        frontend.hear(ended)
        live = [frontend.generate(max_tokens=1500, worker=worker) for worker in (0, 1)]
        for stream in live:
            frontend.hear(stream, at_least=3)
        assert engine.terminate() == 0, engine.log
        for stream in live:
            said = frontend.hear(stream)
            assert (said.end, said.message) == ("overloaded", "the engine is shutting down")
            assert len(said.ids) >= 3
        assert frontend.said[ended[:2]].end == "length"
