from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.engines.metrics.exposition import labels_in, parsed


def every(name: str) -> bool:
    return True


def test_label_order_blanks_time_stamps_exemplars_and_eof_do_not_matter() -> None:
    told = parsed(
        '# HELP vllm:x What it is.\n# TYPE vllm:x gauge\nvllm:x{b="2",a="1"} 3\n'
        'vllm:x { a="1" , b="2", } 3.0 1700000000000\r\n'
        'y_bucket{le="1"} 4 # {trace_id="a{b}"} 0.5 1700000001.5\ny_created 1.7e9\nz 1 1700000002.5\n# EOF\n',
        every,
    )
    assert [(one.name, dict(one.labels), one.value) for one in told.samples] == [
        ("vllm_x", {"a": "1", "b": "2"}, 3.0),
        ("vllm_x", {"a": "1", "b": "2"}, 3.0),
        ("y_bucket", {"le": "1"}, 4.0),
        ("y_created", {}, 1.7e9),
        ("z", {}, 1.0),
    ]
    assert (told.helps, told.at_s, told.damaged) == ({"vllm_x": "What it is."}, 1700000002.5, 0)


def test_escaped_labels_hold_quotes_braces_and_line_ends() -> None:
    assert labels_in(r'a="x\"y}",b="c:\\d\ne"') == {"a": 'x"y}', "b": "c:\\d\ne"}
    (sample,) = parsed('x{a="}{"} 1\n', every).samples
    assert sample.labels == {"a": "}{"}


def test_damaged_lines_are_counted_only_where_they_are_wanted() -> None:
    told = parsed("good 1\ngood{ 1\ngood\ngood one\ngood 1_0\nbad{\n", lambda name: name == "good")
    assert [sample.value for sample in told.samples] == [1.0]
    assert told.damaged == 4


def test_numbers_that_prometheus_writes_are_taken() -> None:
    told = parsed("a NaN\nb +Inf\nc -Inf\nd 1e+06\ne -0\n", every)
    assert [str(sample.value) for sample in told.samples] == ["nan", "inf", "-inf", "1000000.0", "-0.0"]


def test_a_line_that_never_closes_costs_its_length_only() -> None:
    line = "x{" + 'a="b",' * 10_000 + " " * 60_000
    assert parsed(f"{line}\n" * 20, every).samples == ()


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_text_is_too_strange(text: str) -> None:
    told = parsed(text, every)
    assert len(told.samples) + told.damaged <= text.count("\n") + 1


@settings(deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text(max_size=20), max_size=6))
def test_labels_come_back_as_they_were_written(labels: dict[str, str]) -> None:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    written = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    assert labels_in(written) == labels
