"""Constraints: what may come next at each place of a turn, and what a model without a mind of its
own writes under them."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from openai_harmony import HarmonyEncodingName, Role, StreamableParser, load_harmony_encoding

from engine.batch import Sampled
from engine.constraint import (
    CompiledConstraint,
    ConstraintError,
    TurnConstraint,
    allowed_tokens,
    compile_constraint,
)
from engine.core import ModelCore
from engine.penalties import penalties_of
from engine.sampler import Draw, sample
from engine.scheduler import Scheduled
from ipc.grammars import (
    LIMITS,
    MAX_GRAMMAR_BYTES,
    MOST_INTEGER,
    GrammarError,
    _byte_tokenizer,
    check_constraint,
    grammar_text,
)
from ipc.messages import Constraint, EngineInfo, Grammar, Sampling, Tokens
from ipc.vocabulary import (
    CALL,
    CHANNEL,
    END,
    ENDOFTEXT,
    FIRST_SPECIAL,
    MESSAGE,
    RETURN,
    SIZE,
    START,
    install_vocabulary,
)
from tests.engine.builders import OWNER, make_request, make_scheduler
from tests.engine.test_core import RuleRunner, errors_of, run

install_vocabulary()
ENCODING = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
JSON = Grammar("json_schema", json.dumps(SCHEMA))
WORD = Grammar("regex", "[a-z]{2}/[0-9]")
LARK = Grammar("lark", 'start: "a" | "b" start')
FINAL = Constraint(final=JSON)
FREE = Constraint(final=JSON, calls={"f": JSON})
STRICT = Constraint(calls={"f": JSON})
MUST = Constraint(calls={"f": JSON, "g": WORD, "h": LARK}, must_call=True)
ANALYSIS = "<|channel|>analysis<|message|>Hm, {<|end|><|start|>assistant"
FINAL_HEADER = "<|channel|>final<|message|>"
CALL_F = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


def encode(text: str) -> list[int]:
    return ENCODING.encode(text, allowed_special="all")


[JSON_WORD] = encode("json")


def allowed_after(constraint: Constraint, text: str) -> set[int] | None:
    """The tokens that are possible after a text; None for all."""
    turn = TurnConstraint(compile_constraint(constraint))
    for token in encode(text):
        before = allowed_tokens([turn], SIZE)
        assert before is not None
        assert before[0, token], f"{ENCODING.decode([token])!r} is not possible in {text!r}"
        turn.accept(token)
    rows = allowed_tokens([None, turn], SIZE)
    assert rows is not None
    assert rows[0].all()
    return None if rows[1].all() else set(np.flatnonzero(rows[1]).tolist())


def text_of(tokens: set[int] | None) -> set[str]:
    assert tokens is not None
    return {ENCODING.decode([token]) for token in tokens}


@pytest.mark.parametrize(
    ("constraint", "text", "only"),
    [
        (FINAL, "", {CHANNEL}),
        (FINAL, ANALYSIS, {CHANNEL}),
        (FINAL, "<|channel|>analysis<|message|>Hm<|end|>", {START}),
        (FINAL, '<|channel|>final<|message|>{"x":1}', None),
        (FINAL, ANALYSIS + '<|channel|>final <|constrain|>json<|message|>{"x": -3}', None),
        (MUST, "", {CHANNEL}),
        (MUST, ANALYSIS, {CHANNEL}),
        (MUST, "<|channel|>analysis", {MESSAGE}),
        (MUST, CALL_F + '{"x":12}', None),
        (MUST, ANALYSIS + "<|channel|>commentary to=functions.g <|constrain|>json", {MESSAGE}),
        (MUST, "<|channel|>commentary to=functions.g <|constrain|>json<|message|>ab/7", {CALL}),
        (FREE, "<|channel|>commentary to=functions.f<|constrain|>", {JSON_WORD}),
        (MUST, "<|channel|>commentary to=functions.h <|constrain|>json<|message|>ba", {CALL}),
    ],
)
def test_what_may_come_next(constraint: Constraint, text: str, only: set[int] | None) -> None:
    allowed = allowed_after(constraint, text)
    assert allowed is not None
    if only is not None:
        assert allowed == only


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (FINAL_HEADER + "not {", {RETURN}),
        (CALL_F.replace(".f", ".other") + "{ no json", {CALL, END}),
        ("<|channel|>commentary<|message|>I will call f.", {RETURN, END}),
        ("<|channel|>analysis<|message|>Hm", {RETURN, END}),
    ],
)
def test_other_texts_are_free_but_not_broken_off(text: str, ends: set[int]) -> None:
    constraint = Constraint(calls={"f": JSON, "other": None})
    allowed = allowed_after(constraint, text)
    ordinary = set(range(FIRST_SPECIAL))
    assert allowed == ordinary | ends


HEADERS = [
    "<|channel|>analysis",
    "<|channel|>commentary",
    "<|channel|>final",
    "<|channel|>final <|constrain|>json",
    "<|channel|>final<|constrain|>json",
]
CALL_HEADERS = [
    "<|channel|>commentary to=functions.f <|constrain|>json",
    "<|channel|>commentary to=functions.f<|constrain|>json",
    "<|channel|>commentary to=functions.f json",
    "<|channel|>commentary to=functions.f code",
    "<|channel|>commentary to=functions.f",
    "<|channel|>analysis to=functions.f code",
    " to=functions.f<|channel|>commentary <|constrain|>json",
    " to=functions.f<|channel|>commentary json",
    " to=functions.f<|channel|>commentary",
]


@pytest.mark.parametrize("before", ["", ANALYSIS, ANALYSIS * 2,
    "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"])  # fmt: skip
@pytest.mark.parametrize("header", HEADERS + CALL_HEADERS)
def test_headers_as_gpt_oss_writes_them(before: str, header: str) -> None:
    preamble = "<|channel|>commentary<|message|>" in f"{before}{header}<|message|>"
    bound = () if preamble else (FREE, Constraint(final=JSON, calls={"f": None}))
    for constraint in (STRICT, *bound):
        allowed = allowed_after(constraint, before + header)
        assert allowed is not None
        assert MESSAGE in allowed
        assert allowed_after(constraint, before + header + "<|message|>")


def test_beside_a_bound_answer_nothing_is_said() -> None:
    """Clients join all that is said, and read it as JSON."""
    assert text_of(allowed_after(FINAL, "<|channel|>")).isdisjoint({"commentary", "comment"})
    assert MESSAGE not in (allowed_after(FREE, "<|channel|>commentary") or ())
    assert MESSAGE in (allowed_after(STRICT, "<|channel|>commentary") or ())


@pytest.mark.parametrize("header", CALL_HEADERS)
def test_arguments_are_bound_however_the_call_opens(header: str) -> None:
    for constraint in (FREE, STRICT):
        allowed = allowed_after(constraint, header + '<|message|>{"x":4}')
        assert allowed is not None
        assert CALL in allowed
        assert not {RETURN, END} & allowed


def test_what_is_not_offered_is_not_called() -> None:
    for constraint, name in ((FINAL, "f"), (FREE, "other"), (STRICT, "f2"), (MUST, "other")):
        with pytest.raises(AssertionError, match="is not possible"):
            allowed_after(constraint, CALL_F.replace(".f", f".{name}"))


@pytest.mark.parametrize("constraint", [FINAL, STRICT, MUST])
def test_nothing_is_said_after_the_turn(constraint: Constraint) -> None:
    """With `ignore_eos` a sequence goes on, and a worker reads on after a call."""
    turn = CALL_F + '{"x":1}<|call|>'
    if constraint.final is not None:
        turn = '<|channel|>final<|message|>{"x":1}<|return|>'
    assert allowed_after(constraint, turn) == {ENDOFTEXT}
    assert allowed_after(constraint, turn + "<|endoftext|>" * 2) == {ENDOFTEXT}


def test_an_analysis_is_free_but_does_not_end_the_turn() -> None:
    for constraint in (FINAL, MUST):
        allowed = allowed_after(constraint, "<|channel|>analysis<|message|>Let me see: {")
        assert allowed is not None
        ordinary = set(range(FIRST_SPECIAL))
        assert ordinary | {END} <= allowed
        assert not {RETURN, CALL, START, CHANNEL} & allowed


def test_a_constrained_message_ends_only_where_its_grammar_accepts() -> None:
    for constraint, opening, ending, other in (
        (FINAL, "<|channel|>final<|message|>", RETURN, CALL),
        (STRICT, CALL_F, CALL, RETURN),
        (MUST, CALL_F, CALL, RETURN),
    ):
        open_end = allowed_after(constraint, opening + '{"x":')
        assert open_end is not None
        assert not {RETURN, CALL, END} & open_end
        assert "4" in text_of(open_end)
        assert "a" not in text_of(open_end)
        complete = allowed_after(constraint, opening + '{"x":4}')
        assert complete is not None
        assert ending in complete
        assert not {other, END} & complete


def test_a_turn_that_must_call_reasons_once_and_names_a_function() -> None:
    names = text_of(allowed_after(MUST, ANALYSIS + "<|channel|>commentary to=functions."))
    assert names == {"f", "g", "h"}
    starts = text_of(allowed_after(MUST, "<|channel|>"))
    assert {"analysis", "comment"} <= starts
    assert "final" not in starts
    assert "analysis" not in text_of(allowed_after(MUST, ANALYSIS + "<|channel|>"))


def test_masks_do_not_advance_a_turn() -> None:
    turn = TurnConstraint(compile_constraint(MUST))
    first, again = allowed_tokens([turn], SIZE), allowed_tokens([turn], SIZE)
    assert first is not None
    assert again is not None
    assert (first == again).all()


def test_turns_share_their_grammars_but_not_their_places() -> None:
    compiled = compile_constraint(FINAL)
    one, other = TurnConstraint(compiled), TurnConstraint(compiled)
    for token in encode('<|channel|>final<|message|>{"x"'):
        one.accept(token)
    for token in encode("<|channel|>final<|message|>"):
        other.accept(token)
    rows = allowed_tokens([one, other], SIZE)
    assert rows is not None
    assert rows[1, encode('{"')[0]]
    assert not rows[0, encode('{"')[0]]


def test_what_the_grammar_forbids_is_an_error() -> None:
    turn = TurnConstraint(compile_constraint(FINAL))
    for token in encode("<|channel|>final<|message|>"):
        turn.accept(token)
    with pytest.raises(ConstraintError):
        turn.accept(encode("x")[0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_only_possible_token_is_taken_whatever_forbids_it(temperature: float) -> None:
    rows = allowed_tokens([TurnConstraint(compile_constraint(FINAL))], SIZE)
    assert rows is not None
    penalties = penalties_of(
        Sampling(max_tokens=9, presence_penalty=2, frequency_penalty=2, repetition_penalty=2),
        [CHANNEL] * 500,
    )
    draw = Draw(
        temperature, top_p=0.1, top_k=1, min_p=0.5, bias=[(CHANNEL, -100.0)], penalties=penalties
    )
    [sampled] = sample(torch.zeros(1, SIZE), [draw], torch.from_numpy(rows))
    assert sampled.token == CHANNEL


def is_number(value: object) -> bool:
    return isinstance(value, dict) and list(value) == ["x"] and type(value["x"]) is int


def is_listed(value: object) -> bool:
    return value in (1, "a")


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    case=st.sampled_from(
        [
            (FINAL, is_number, None),
            (Constraint(final=JSON, calls={"f": JSON}), is_number, None),
            (Constraint(calls={"f": JSON}, must_call=True), is_number, "functions.f"),
            (Constraint(final=Grammar("json_schema", '{"enum": [1, "a"]}')), is_listed, None),
        ]
    ),
)
def test_random_logits_write_what_is_asked_for(
    seed: int, case: tuple[Constraint, Callable[[object], bool], str | None]
) -> None:
    """A model that knows nothing but likes brackets, quotes and the ends of things."""
    constraint, holds, recipient = case
    generator = torch.Generator().manual_seed(seed)
    turn = TurnConstraint(compile_constraint(constraint))
    parser = StreamableParser(ENCODING, Role.ASSISTANT)
    for token in [] if constraint.must_call else encode("<|channel|>final<|message|>"):
        turn.accept(token)
        parser.process(token)
    likes = encode('{}"": 12x<|end|><|return|><|call|><|message|>analysisfinal')
    for _ in range(400):
        logits = torch.randn(1, SIZE, generator=generator)
        logits[0, likes] += 12
        # So that numbers end.
        logits[0, [RETURN, CALL, END, *encode("}")]] += 18
        allowed = allowed_tokens([turn], SIZE)
        assert allowed is not None
        uniform = torch.rand(1, generator=generator).item()
        [sampled] = sample(logits, [Draw(1.0, uniform=uniform)], torch.from_numpy(allowed))
        turn.accept(sampled.token)
        parser.process(sampled.token)
        if sampled.token in (RETURN, CALL):
            break
    else:
        pytest.fail("the turn does not end")
    parser.process_eos()
    *reasoning, last = parser.messages
    assert last.recipient == recipient
    assert all(message.channel == "analysis" for message in reasoning)
    assert holds(json.loads(last.content[0].text))  # type: ignore[attr-defined]


CIRCLE = {
    "properties": {"x": {"$ref": "#/$defs/a~1b"}},
    "$defs": {"a/b": {"$ref": "#/$defs/c%20d"}, "c d": {"$ref": "#/$defs/a~1b"}},
}


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(final=Grammar("json_schema", '{"type": "strange"}')),
        Constraint(final=Grammar("json_schema", "{")),
        Constraint(final=Grammar("regex", "(")),
        Constraint(final=Grammar("lark", "start: other")),
        Constraint(calls={"f": Grammar("json_schema", '{"type": "strange"}')}, must_call=True),
        Constraint(calls={'f" | "g': JSON}, must_call=True),
        Constraint(calls={"f\n": JSON}),
        Constraint(calls={"functions.f": JSON}),
        Constraint(calls={"": None}, final=JSON),
        Constraint(final=Grammar("json_schema", '{"$ref": "#"}')),
        Constraint(final=Grammar("json_schema", json.dumps(CIRCLE))),
        Constraint(final=Grammar("json_schema", '{"items":' * 2000 + "{}" + "}" * 2000)),
        Constraint(final=Grammar("json_schema", '"' + "x" * MAX_GRAMMAR_BYTES + '"')),
    ],
)
def test_what_cannot_be_compiled_is_told(constraint: Constraint) -> None:
    with pytest.raises(GrammarError):
        check_constraint(constraint)
    with pytest.raises(GrammarError):
        compile_constraint(constraint)


@pytest.mark.parametrize("constraint", [FINAL, STRICT, MUST, Constraint()])
def test_what_can_be_compiled_passes_the_check(constraint: Constraint) -> None:
    check_constraint(constraint)
    compile_constraint(constraint)


@pytest.mark.parametrize("must_call", [False, True])
def test_a_grammar_does_not_break_out_of_its_place(must_call: bool) -> None:
    for grammar, after, only in (
        (Grammar("json_schema", '{"enum": ["a\\n}\\nstart: /.*/"]}'), '"a', {"\\", "\\n", "\\u"}),
        (Grammar("json_schema", '{"title": "}\\nstart: /.*/", "const": 1}'), "", {"1"}),
        (Grammar("regex", "a/\nstart: /b"), "", {"a"}),
        (Grammar("lark", 'start: "a"\n}\nbody_call0: /.*/'), "", None),
    ):
        constraint = Constraint(calls={"f": grammar}, must_call=must_call)
        if only is None:
            with pytest.raises(GrammarError):
                check_constraint(constraint)
            continue
        allowed = text_of(allowed_after(constraint, CALL_F + after))
        assert allowed == only


@pytest.mark.parametrize(
    ("pattern", "text"), [("^a/b$", "a/b"), ("^[à-ü]{2}日$", "éà日"), ("^(a|b/)+$", "ab/")]
)
def test_patterns_with_slashes_and_glyphs(pattern: str, text: str) -> None:
    schema = json.dumps({"type": "string", "pattern": pattern})
    constraint = Constraint(calls={"f": Grammar("json_schema", schema)}, must_call=True)
    check_constraint(constraint)
    assert CALL in (allowed_after(constraint, f'{CALL_F}"{text}"') or ())


BROKEN = Grammar("lark", "start: a\na: a")
"""llguidance compiles it and fails at its first mask."""


@pytest.mark.parametrize(
    ("constraint", "opening"),
    [
        (Constraint(final=BROKEN), FINAL_HEADER),
        (Constraint(calls={"f": BROKEN}), CALL_F),
        (Constraint(calls={"f": BROKEN}, must_call=True), CALL_F),
    ],
)
def test_a_matcher_that_fails_ends_no_message(constraint: Constraint, opening: str) -> None:
    """It offers the end of the message, and then nobody sees that the text is not whole."""
    turn = TurnConstraint(compile_constraint(constraint))
    for token in encode(opening):
        turn.accept(token)
    with pytest.raises(GrammarError):
        allowed_tokens([turn], SIZE)


def test_a_matcher_that_has_failed_is_not_used_again() -> None:
    before = compile_constraint(Constraint(final=BROKEN)).final
    turn = TurnConstraint(compile_constraint(Constraint(final=BROKEN)))
    for token in encode(FINAL_HEADER):
        turn.accept(token)
    with pytest.raises(GrammarError):
        allowed_tokens([turn], SIZE)
    assert compile_constraint(Constraint(final=BROKEN)).final is not before


def test_a_call_does_not_end_before_its_arguments() -> None:
    turn = TurnConstraint(compile_constraint(STRICT))
    for token in encode(CALL_F + '{"x":'):
        turn.accept(token)
    with pytest.raises(ConstraintError):
        turn.accept(CALL)


MISREAD = [
    "<|channel|><|message|>",
    "<|channel|>finally<|message|>",
    "<|channel|>answer<|message|>",
    "<|message|>",
    "Hello",
    " to=f<|channel|>commentary<|message|>",
    "<|channel|>commentary to=f<|message|>",
    "<|channel|>final to=functions.f<|message|>",
    "<|channel|>analysis<|message|>{<|channel|>",
    "<|channel|>analysis<|message|>{<|start|>",
    "<|channel|>analysis<|message|>Hm<|end|><|channel|>",
    "<|start|>",
    "<|channel|>analysis<|message|>Hm<|end|><|start|>user",
]


@pytest.mark.parametrize("constraint", [FINAL, STRICT, FREE, MUST])
@pytest.mark.parametrize("header", MISREAD)
def test_no_message_opens_that_worker_and_engine_read_apart(
    constraint: Constraint, header: str
) -> None:
    with pytest.raises(AssertionError, match="is not possible"):
        allowed_after(constraint, header)


def huge_product(size: int) -> dict[str, object]:
    """A schema of some 2 KB that means 4 ** size alternatives."""

    def alternative(i: int, j: int) -> dict[str, object]:
        pattern = f"^[a-z]{{{j + 1}}}x{i}$"
        members = {f"p{i}_{j}": {"type": "string", "pattern": pattern}}
        return {"type": "object", "properties": members}

    return {"allOf": [{"anyOf": [alternative(i, j) for j in range(4)]} for i in range(size)]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 999_983},
        {"type": "number", "multipleOf": 99.99991},
        {"allOf": [{"type": "integer", "multipleOf": n} for n in (997, 991)]},
        {"properties": {"enum": {"type": "integer", "multipleOf": 999_983}}},
        {"type": "number", "multipleOf": 0.0009765625},
        {"properties": {f"p{n}": {"type": "integer", "multipleOf": n} for n in range(900, 999)}},
        huge_product(5),
    ],
    ids=["multiple", "decimal", "both", "named", "binary", "many", "product"],
)
def test_what_would_take_seconds_is_refused_before_it_is_compiled(schema: object) -> None:
    constraint = Constraint(final=Grammar("json_schema", json.dumps(schema)))
    with pytest.raises(GrammarError):
        check_constraint(constraint)
    with pytest.raises(GrammarError):
        compile_constraint(constraint)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 1000},
        {"properties": {"price": {"type": "number", "multipleOf": 0.01}}},
        {"type": "number", "multipleOf": 5000.0},
        {"properties": {"multipleOf": {"type": "integer"}}},
    ],
)
def test_usual_multiples_can_be_compiled(schema: object) -> None:
    constraint = Constraint(final=Grammar("json_schema", json.dumps(schema)))
    check_constraint(constraint)
    compile_constraint(constraint)


# --- in the core ---------------------------------------------------------------------------------

BIG = EngineInfo(version=2, model="tiny", context_length=64, vocabulary_size=SIZE)


class Compiler:
    """Compiles when it is told to."""

    def __init__(self) -> None:
        self.futures: list[Future[CompiledConstraint]] = []

    def __call__(self, constraint: Constraint) -> Future[CompiledConstraint]:
        self.futures.append(Future())
        return self.futures[-1]


class MaskingRunner(RuleRunner):
    """Asks what is possible, as a runner with a model does, and follows its script."""

    def run(self, scheduled: Sequence[Scheduled]) -> list[Sampled | None]:
        allowed_tokens([item.sequence.constraint for item in scheduled], SIZE)
        return super().run(scheduled)


def constrained_core(compiler: Compiler | None = None) -> ModelCore:
    script = dict(enumerate(encode('<|channel|>final<|message|>{"x":1}<|return|>'), start=3))
    return ModelCore(
        BIG, MaskingRunner(script), make_scheduler(20), lambda: 0, compile_constraint=compiler
    )


def request(stream_id: int = 1, constraint: Constraint = FINAL) -> object:
    base = make_request(stream_id, max_tokens=20)
    return type(base)(
        base.stream_id, base.lease, 0, base.prompt, base.sampling, constraint=constraint
    )


def test_a_sequence_waits_aside_until_its_constraint_is_compiled() -> None:
    compiler = Compiler()
    core = constrained_core(compiler)
    core.add(OWNER, request())  # type: ignore[arg-type]
    assert 0 < (core.wait() or 0) < 1
    assert core.step() == {}
    core.add(OWNER, make_request(2, max_tokens=1))
    [plain] = run_now(core)
    assert plain.stream_id == 2
    compiler.futures[0].set_result(compile_constraint(FINAL))
    assert core.wait() == 0
    said = run_now(core)
    assert [tokens.stream_id for tokens in said] == [1] * 9
    assert said[-1].finish is not None


def run_now(core: ModelCore) -> list[Tokens]:
    said = []
    while core.wait() == 0:
        for step in core.step().values():
            assert not step.errors
            said += step.tokens
    return said


def test_a_grammar_that_cannot_be_compiled_ends_its_sequence() -> None:
    compiler = Compiler()
    core = constrained_core(compiler)
    core.add(OWNER, request())  # type: ignore[arg-type]
    compiler.futures[0].set_exception(GrammarError("no such type"))
    [error] = errors_of(run(core))
    assert (error.code, error.message) == (
        "invalid_request",
        "the grammar cannot be compiled: no such type",
    )
    assert core.wait() is None


@pytest.mark.parametrize("how", ["cancel", "lost", "shut down"])
def test_a_sequence_that_is_given_up_while_it_is_compiled_leaves_nothing(how: str) -> None:
    compiler = Compiler()
    core = constrained_core(compiler)
    core.add(OWNER, request())  # type: ignore[arg-type]
    assert core.status().waiting == 1
    if how == "cancel":
        core.cancel(OWNER, 1, 1)
    elif how == "lost":
        core.owner_lost(OWNER)
    else:
        core.shut_down()
    assert compiler.futures[0].cancelled()
    run(core)
    assert core.wait() is None
    assert (core.status().waiting, core.status().free_blocks) == (0, 20)


def test_a_model_that_leaves_its_constraint_ends_with_an_error_of_its_own() -> None:
    core = ModelCore(BIG, RuleRunner(), make_scheduler(20), lambda: 0)
    core.add(OWNER, request(1, MUST))  # type: ignore[arg-type]
    core.add(OWNER, make_request(2, max_tokens=2))
    steps = []
    while core.wait() is not None:
        steps.append(core.step())
    assert [(e.stream_id, e.code) for e in errors_of(steps)] == [(1, "internal")]
    assert core.status().free_blocks == 20


def test_a_grammar_that_cannot_be_followed_is_the_clients_error() -> None:
    core = constrained_core()
    core.add(OWNER, request(1, Constraint(final=BROKEN)))  # type: ignore[arg-type]
    core.add(OWNER, request(2))  # type: ignore[arg-type]
    steps = []
    while core.wait() is not None:
        steps.append(core.step())
    assert [(e.stream_id, e.code) for e in errors_of(steps)] == [(1, "invalid_request")]


def test_another_vocabulary_cannot_be_constrained() -> None:
    info = EngineInfo(version=2, model="tiny", context_length=64, vocabulary_size=300)
    core = ModelCore(info, RuleRunner(), make_scheduler(20), lambda: 0)
    core.add(OWNER, request())  # type: ignore[arg-type]
    [error] = errors_of(run(core))
    assert error.code == "invalid_request"


def test_min_tokens_do_not_keep_a_constrained_message_open() -> None:
    from tests.engine.builders import make_sequence

    sequence = make_sequence(3)
    sequence.sampling = Sampling(max_tokens=9, min_tokens=5)
    assert not sequence.may_stop
    sequence.constraint = TurnConstraint(compile_constraint(FINAL))
    assert sequence.may_stop


@pytest.mark.parametrize(
    ("schema", "text", "whole"),
    [
        ({"type": "integer"}, str(MOST_INTEGER), True),
        ({"type": "integer"}, str(-MOST_INTEGER), True),
        ({"type": "integer"}, str(MOST_INTEGER + 1), False),
        ({"type": "integer", "title": "N", "default": 10**20}, "9" * 17, False),
        ({"type": "integer", "maximum": 10**17}, "9" * 17, True),
        ({"items": {"type": "integer"}}, f"[1, {'9' * 17}]", False),
        ({"enum": [{"type": "integer"}]}, '{"type": "integer"}', True),
        ({"type": "object", "properties": {"const": {"type": "integer"}}}, '{"const": 1}', True),
    ],
)
def test_no_integer_is_written_for_ever(schema: object, text: str, whole: bool) -> None:
    grammar = grammar_text(Grammar("json_schema", json.dumps(schema)))
    matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=LIMITS)
    tokens = list(text.encode())
    assert (matcher.try_consume_tokens(tokens) == len(tokens)) is whole


SPACES = Constraint(calls={"f": JSON, "n.f": JSON, "p": LARK}, custom=("p",), must_call=True)


def test_tools_of_namespaces_and_custom_ones_are_called() -> None:
    to = "<|channel|>commentary to="
    assert text_of(allowed_after(SPACES, to)) >= {"functions", "n"}
    assert text_of(allowed_after(SPACES, f"{to}n")) == {".f"}
    assert allowed_after(SPACES, f"{to}functions.p") == {MESSAGE}
    assert text_of(allowed_after(SPACES, f"{to}functions.p<|message|>")) >= {"a", "b"}
    assert "{" not in text_of(allowed_after(SPACES, f"{to}functions.p<|message|>"))
    bound = allowed_after(SPACES, f'{to}n.f <|constrain|>json<|message|>{{"x":')
    assert "a" not in text_of(bound)
