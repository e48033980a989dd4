from kvbudget.edge.instances.models import model_in
from kvbudget.edge.request.renaming import renamed


def test_only_the_name_is_changed() -> None:
    raw = b'{"a": {"model": "chat"}, "model" :  "chat", "n": 1e400, "x": "\\u00e9"}'
    assert renamed(raw, "chat", 'm"1') == raw.replace(b'"model" :  "chat"', b'"model" :  "m\\"1"')
    assert renamed(raw, "chat", "chat") is raw


def test_the_model_of_a_body_is_looked_for_only_in_json_objects() -> None:
    bodies = (b'{"model": "m"}', b' {"model": 5}', b"{", b"[1]", b"")
    assert [model_in(body) for body in bodies] == ["m", None, None, None, None]
