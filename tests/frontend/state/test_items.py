"""Items as they are stored, and the pages of their lists."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from frontend.state.items import input_items, page, response_of
from frontend.store import is_id

ROOT = "0123456789abcdef" * 2
ids = st.sampled_from(["msg_1", "msg_2", "a\x00", "x" * 1000, "", None]) | st.text()
items = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=5)},
        optional={"id": ids, "type": st.sampled_from(["message", "reasoning", "unheard_of"])},
    ),
    max_size=20,
)


@given(items)
def test_each_item_has_an_id_of_its_own_that_can_be_stored(given_items: list[Any]) -> None:
    found = input_items(given_items, ROOT)
    told = [item["id"] for item in found]
    assert len(set(told)) == len(told) == len(given_items)
    assert all(each and is_id(each) for each in told)
    for item, was in zip(found, given_items, strict=True):
        own = was.get("id")
        if item["id"] != own:
            assert response_of(item["id"]) == f"resp_{ROOT}"
            earlier = told[: found.index(item)]
            assert not own or not is_id(own) or own in earlier
        assert item["type"] == (was.get("type") or "message")
        assert {k: v for k, v in item.items() if k in was and k not in ("id", "content")} == {
            k: v for k, v in was.items() if k not in ("id", "content")
        }


def test_a_text_is_a_users_message() -> None:
    assert input_items("Hi", ROOT) == [
        {
            "id": f"msg_{ROOT}i00",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "Hi"}],
        }
    ]


def test_ids_that_lead_nowhere() -> None:
    assert response_of(f"msg_{ROOT}i00") == response_of(f"rs_{ROOT}0") == f"resp_{ROOT}"
    for strange in ("", "msg_1", f"msg_{ROOT}", f"msg_{ROOT.upper()}i00", f"msg_{ROOT}i00\n"):
        assert response_of(strange) is None


@given(st.integers(0, 30), st.integers(1, 12), st.booleans())
def test_pages_put_together_are_the_whole_list(count: int, limit: int, descending: bool) -> None:
    listed = [{"id": f"msg_{n}"} for n in range(count)]
    read: list[Any] = []
    after = None
    while True:
        found = page(listed, after=after, limit=limit, descending=descending)
        assert found is not None
        assert len(found["data"]) <= limit
        read += found["data"]
        if found["data"]:
            assert found["first_id"] == found["data"][0]["id"]
            assert found["last_id"] == found["data"][-1]["id"]
        if not found["has_more"]:
            break
        assert len(found["data"]) == limit
        after = found["last_id"]
    assert read == (listed[::-1] if descending else listed)


@given(st.booleans())
def test_after_an_item_that_is_not_there_is_no_page(descending: bool) -> None:
    for count in (0, 3):
        listed = [{"id": f"msg_{n}"} for n in range(count)]
        assert page(listed, after="msg_9", limit=3, descending=descending) is None
