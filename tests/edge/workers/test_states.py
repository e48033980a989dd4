"""What the documents of several workers say together."""

from typing import Any

from kvbudget.edge.workers import states


def own(reserved: int, **more: Any) -> dict[str, Any]:
    pool = {
        "instance": more.pop("of", "a"),
        "usable_blocks": 64,
        "margin_blocks": 4,
        "capacity_blocks": reserved + 3,
        "free_blocks": 3,
    }
    waits = more.pop("waits", [])
    return {
        "schema": "kvbudget.state/1",
        "pool": {**pool, "reserved_blocks": reserved, "peak_sum_blocks": reserved, "held_blocks": reserved},
        "shadow": False,
        "draining": False,
        "reserved_blocks_by_tenant": {"t": reserved},
        "reservations": 1,
        "sequences": 2,
        "queue": {"requests": len(waits), "tokens": 10 * len(waits), "next": [{"waited_ms": wait} for wait in waits]},
        "instances": [instance(reserved)],
        **more,
    }


def instance(promised: int, **more: Any) -> dict[str, Any]:
    told = {"name": "a", "promised_blocks": promised, "reservations": 1, "sequences": 2, "waiting": 1, "up": True}
    return {**told, "draining": False, "ejected": False, "usable_blocks": 64, **more}


def test_the_pool_is_one_and_what_each_promised_of_it_is_added_up() -> None:
    state = states.state([(0, own(20, waits=[5, 9])), (2, own(30, waits=[7], reserved_blocks_by_tenant={"u": 30}))])
    assert state["pool"]["usable_blocks"] == 64
    assert state["pool"]["reserved_blocks"] == 50
    assert state["pool"]["free_blocks"] == 10
    assert state["pool"]["held_blocks"] == 30
    assert state["reserved_blocks_by_tenant"] == {"t": 20, "u": 30}
    assert state["reservations"] == 2
    assert state["sequences"] == 4
    assert state["queue"]["requests"] == 3
    assert [one["waited_ms"] for one in state["queue"]["next"]] == [9, 7, 5]
    assert [(one["worker"], one["pool"]["reserved_blocks"]) for one in state["workers"]] == [(0, 20), (2, 30)]


def test_what_one_lacks_all_lack_and_what_one_is_all_are() -> None:
    both = states.instances([[instance(1, up=True)], [instance(2, up=False, draining=True)]])
    assert both[0]["promised_blocks"] == 3
    assert both[0]["waiting"] == 2
    assert both[0]["up"] is False
    assert both[0]["draining"] is True
    assert both[0]["ejected"] is False
    state = states.state([(0, own(1, shadow=True)), (1, own(1, draining=True))])
    assert state["shadow"] is False
    assert state["draining"] is True


def test_instances_are_told_from_one_another_by_name_in_whichever_order_each_worker_found_them() -> None:
    both = states.instances(
        [[instance(1), instance(20, name="b")], [instance(300, name="b"), instance(4000, name="c"), instance(5)]]
    )
    assert [(one["name"], one["promised_blocks"]) for one in both] == [("a", 6), ("b", 320), ("c", 4000)]
    assert states.instances([[], [instance(1)]])[0]["promised_blocks"] == 1


def test_the_first_pool_is_that_of_one_instance_whoever_each_worker_found_first() -> None:
    state = states.state([(0, own(20)), (1, own(7, of="b", waits=[5])), (2, own(30))])
    assert (state["pool"]["instance"], state["pool"]["reserved_blocks"]) == ("a", 50)
    assert (state["reserved_blocks_by_tenant"], state["reservations"]) == ({"t": 50}, 2)
    assert state["queue"]["requests"] == 0
    assert state["instances"][0]["promised_blocks"] == 57
    assert [one["worker"] for one in state["workers"]] == [0, 1, 2]


def test_a_finding_of_one_worker_is_not_lost_behind_a_healthy_word() -> None:
    def found(verdict: str) -> dict[str, Any]:
        return {"schema": "kvbudget.findings/1", "instances": [{"instance": "a", "verdict": verdict}]}

    both = states.findings([(0, found("healthy")), (1, found("pool_full"))])
    assert both["schema"] == "kvbudget.findings/1"
    assert [(one["verdict"], one["worker"]) for one in both["instances"]] == [("pool_full", 1)]
    both = states.findings([(0, found("pool_full")), (1, found("stuck"))])
    assert [one["verdict"] for one in both["instances"]] == ["pool_full"]
    both = states.findings([(0, found("insufficient_data")), (1, found("healthy"))])
    assert [one["verdict"] for one in both["instances"]] == ["healthy"]
