"""What the metadata of a web task may say."""

from typing import Any

import pytest

from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.web.task import PageCheck, web_task


def task(**metadata: Any) -> Task:
    return Task(task_id="t1", question="?", answer=metadata.pop("answer", "42"), metadata=metadata)


def test_metadata_that_is_not_ours_is_left_alone():
    assert web_task(task(site="shop", level="hard", source=["a"])).site == "shop"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"site": 3}, "site"),
        ({"check": "done"}, "check"),
        ({"check": {"javascript": "1"}}, "javascript"),
        ({"allowed_hosts": "example.com"}, "allowed_hosts"),
        ({"answer": None}, "neither an answer nor a metadata.check"),
    ],
)
def test_metadata_that_cannot_be_used_is_pointed_at(metadata: dict[str, Any], message: str):
    with pytest.raises(InvalidInput, match=rf"'t1'.*{message}"):
        web_task(task(**metadata))


def test_an_address_is_compared_with_stars_for_anything():
    assert PageCheck(url="http://shop.test/cart.html").fits("http://shop.test/cart.html")
    assert not PageCheck(url="http://shop.test/cart.html").fits("http://shop.test/cartXhtml")
    assert PageCheck(url="http://shop.test/*id=3*").fits("http://shop.test/product.html?id=3&x=1")
    assert PageCheck(js="true").fits("anything")
