"""Which card a name means, and how much of it a process sees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.errors import BadValueError, InputError, UnsupportedError
from kvbudget.planner.hardware.gpus import GPUS, gpu_named, gpus_named, slices_of
from kvbudget.units import GIB


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("h100", 79.19),
        ("h200", 139.8),
        ("b200", 178.35),
        ("gb200", 184.31),
        ("b300", 267.69),
        ("a100-40gb", 39.394),
        ("h100-nvl", 93.1),
        ("l40s", 44.42),
        ("l4", 22.04),
        ("a10g", 21.98),
        ("t4", 14.56),
        ("rtx-3090", 23.58),
        ("rtx-4090", 23.55),
        ("rtx-5090", 31.37),
        ("mi300x", 191.69),
        ("mi355x", 287.98),
        ("gb10", 121.69),
    ],
)
def test_the_memory_is_what_drivers_report_and_not_what_the_name_says(name: str, gib: float) -> None:
    assert gpu_named(name).memory_bytes / GIB == pytest.approx(gib, abs=0.001)


@pytest.mark.parametrize(
    ("spelling", "key"),
    [
        ("H100", "h100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("h100_nvl", "h100-nvl"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000"),
        ("DGX Spark", "gb10"),
        ("Intel Gaudi 3", "gaudi3"),
        (" l40s ", "l40s"),
    ],
)
def test_a_card_is_found_by_any_of_its_spellings(spelling: str, key: str) -> None:
    assert gpu_named(spelling) is GPUS[key]


def test_a_count_follows_the_name() -> None:
    assert gpus_named("h100:8") == (GPUS["h100-80gb"], 8)
    assert gpus_named("h100") == (GPUS["h100-80gb"], None)


@pytest.mark.parametrize(
    ("text", "key", "count"),
    [
        ("2xH100", "h100-80gb", 2),
        ("2x3090", "rtx-3090", 2),
        ("8 x h100", "h100-80gb", 8),
        ("8X H200", "h200", 8),
        ("h100 x8", "h100-80gb", 8),
        ("h100*8", "h100-80gb", 8),
        ("4\u00d7l40s", "l40s", 4),
        ("2x rtx4090", "rtx-4090", 2),
        ("rtx4090x2", "rtx-4090", 2),
        ("rtx4090", "rtx-4090", None),
        ("mi300x", "mi300x", None),
        ("8xMI300X", "mi300x", 8),
        ("MI300X x 8", "mi300x", 8),
    ],
)
def test_a_count_is_read_as_people_write_it(text: str, key: str, count: int | None) -> None:
    assert gpus_named(text) == (GPUS[key], count)


def test_a_counted_slice_and_two_counts() -> None:
    part, count = gpus_named("2x h100:3g.40gb")
    assert (part.mig_profile, count) == ("3g.40gb", 2)
    with pytest.raises(BadValueError, match="two counts"):
        gpus_named("2xh100:2")
    with pytest.raises(BadValueError, match="two counts"):
        gpus_named("h100:2:2")


def test_labels_of_nodes_name_card_and_slice() -> None:
    assert gpus_named("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")[0] == slices_of("a100-40gb")["1g.5gb"]
    assert gpu_named("Tesla-T4-SHARED") is GPUS["t4"]  # shared in time: every process sees all of it


def test_the_memory_that_an_error_offers_is_that_of_the_near_card() -> None:
    with pytest.raises(UnsupportedError, match=r"rtx-3090.*--gpu-memory 23\.58GiB"):
        gpus_named("2x3091")
    with pytest.raises(UnsupportedError, match="--gpu-memory SIZE"):
        gpus_named("voodoo")


def test_a_mig_slice_follows_the_name_and_may_be_counted() -> None:
    half, count = gpus_named("h100-80gb:3g.40gb:2")
    assert count == 2
    assert half.name == "H100 80GB MIG 3g.40gb"
    assert half.memory_bytes / GIB == pytest.approx(39.25)
    assert half.bf16_flops == GPUS["h100-80gb"].bf16_flops * 3 // 7
    assert half.memory_bandwidth_bytes_per_s < 0.51 * GPUS["h100-80gb"].memory_bandwidth_bytes_per_s
    assert half.link == "pcie"  # slices have no NVLink


def test_a_whole_card_as_a_slice_is_no_faster_than_the_card() -> None:
    for key, gpu in GPUS.items():
        for part in slices_of(key).values():
            assert part.memory_bytes <= gpu.memory_bytes + GIB
            assert part.bf16_flops <= gpu.bf16_flops
            assert part.memory_bandwidth_bytes_per_s <= gpu.memory_bandwidth_bytes_per_s


def test_an_unknown_card_names_near_ones_and_the_way_out() -> None:
    with pytest.raises(UnsupportedError, match=r"rtx-4090.*--gpu-memory"):
        gpu_named("rtx 4091")


def test_an_unknown_slice_names_those_of_the_card() -> None:
    with pytest.raises(UnsupportedError, match=r"1g\.10gb"):
        gpus_named("h100:9g.99gb")
    with pytest.raises(UnsupportedError, match="has no MIG slices"):
        gpus_named("rtx-4090:1g.10gb")


@pytest.mark.parametrize("name", ["h100:0", "h100:99999999999999999999", "h100:4097"])
def test_a_count_out_of_range_is_refused(name: str) -> None:
    with pytest.raises(BadValueError, match="1 to 4096"):
        gpus_named(name)


def test_a_count_where_one_card_is_meant_is_refused() -> None:
    with pytest.raises(BadValueError, match="--gpus N"):
        gpu_named("h100:8")


def test_every_card_lies_in_its_own_span_and_below_what_its_name_says() -> None:
    for key, gpu in GPUS.items():
        assert 0 < gpu.low_bytes <= gpu.memory_bytes <= gpu.high_bytes, key
        assert gpu.source in {"measured", "estimated"}, key
        assert gpu.memory_bandwidth_bytes_per_s > 10**11, key
        said = [int(word.removesuffix("GB")) for word in gpu.name.split() if word.endswith("GB")]
        assert all(gpu.memory_bytes <= size * GIB for size in said), key


def test_keys_and_names_name_their_own_card() -> None:
    for key, gpu in GPUS.items():
        assert gpu_named(key) is gpu
        assert gpu_named(gpu.name) is gpu


@given(st.text(max_size=200))
def test_any_text_is_a_card_or_a_clear_error(text: str) -> None:
    fix = "a card"
    try:
        gpus_named(text)
    except InputError as error:
        fix = error.fix
    assert fix
