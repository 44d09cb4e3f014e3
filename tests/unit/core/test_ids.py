import time

from outrider.core.ids import new_id


def test_an_id_tells_its_kind():
    prefix, _, rest = new_id("ro").partition("-")
    assert (prefix, len(rest), rest.isalnum(), rest.lower()) == ("ro", 16, True, rest)


def test_ids_differ():
    assert len({new_id("at") for _ in range(20_000)}) == 20_000


def test_ids_sort_by_age():
    ids = []
    for _ in range(20):
        ids.append(new_id("ro"))
        now = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == now:
            pass
    assert ids == sorted(ids)
