from dataclasses import fields, replace

from hypothesis import given
from hypothesis import strategies as st

from launcher.gpus import GpuProcess, GpuSample
from launcher.observe.sample import RankSample, ServerFacts, ServerSample
from tui.frame import ServerReading
from tui.memory import Tenant, gpu_views, parts_of
from tui.snapshot import MemoryParts

GIB = 2**30
gib = st.floats(0, 140)


def total_of(parts: MemoryParts) -> int:
    return sum(getattr(parts, field.name) for field in fields(parts))


@given(
    gib,
    gib,
    st.one_of(st.none(), gib),
    st.one_of(st.none(), gib),
    st.one_of(st.none(), gib),
    gib,
    st.integers(0, 10**6),
)
def test_parts_add_up_to_the_drivers_total(
    total: float,
    used: float,
    weights: float | None,
    kv: float | None,
    graphs: float | None,
    stranger: float,
    tokens: int,
) -> None:
    gpu = GpuSample(0, "x", memory_total_bytes=int(total * GIB), memory_used_bytes=int(min(used, total) * GIB))
    facts = ServerFacts(weights_gib=weights, kv_cache_gib=kv, graphs_gib=graphs)
    rank = RankSample(used_tokens=tokens, evictable_tokens=tokens // 3, capacity_tokens=200_000)
    parts = parts_of(gpu, Tenant(facts, rank), int(stranger * GIB))
    assert parts is not None
    assert total_of(parts) == int(total * GIB)
    assert all(getattr(parts, field.name) >= 0 for field in fields(parts))


def test_the_parts_of_a_known_server() -> None:
    gpu = GpuSample(0, "x", memory_total_bytes=100 * GIB, memory_used_bytes=95 * GIB)
    facts = ServerFacts(weights_gib=70.0, kv_cache_gib=20.0, graphs_gib=2.0)
    rank = RankSample(used_tokens=50, evictable_tokens=25, capacity_tokens=100)
    assert parts_of(gpu, Tenant(facts, rank), 0) == MemoryParts(
        70 * GIB, 10 * GIB, 5 * GIB, 5 * GIB, 0, 2 * GIB, 3 * GIB, 0, 0, 5 * GIB
    )


def test_figures_that_cannot_be_true_are_not_shown() -> None:
    """A server that tells more than the driver shows in use is of another GPU, or wrong."""
    gpu = GpuSample(0, "x", memory_total_bytes=100 * GIB, memory_used_bytes=50 * GIB)
    parts = parts_of(gpu, Tenant(ServerFacts(weights_gib=70.0, kv_cache_gib=20.0), RankSample()), 0)
    assert parts == MemoryParts(unattributed=50 * GIB, free=50 * GIB)


def test_a_gpu_that_does_not_tell_its_memory_has_no_parts() -> None:
    assert parts_of(GpuSample(0, "NVIDIA GB10"), None, 0) is None


def test_strangers_are_apart() -> None:
    mine, theirs = GpuProcess(11, 60 * GIB, "sglang::scheduler"), GpuProcess(99, 7 * GIB, "python train.py")
    gpu = GpuSample(0, "x", memory_total_bytes=100 * GIB, memory_used_bytes=70 * GIB, processes=(mine, theirs))
    facts = ServerFacts(weights_gib=40.0, kv_cache_gib=15.0)
    sample = ServerSample(0.0, "http://a:1", facts, (RankSample(),))
    (view,) = gpu_views([gpu], [ServerReading("http://a:1", sample, pids=(10, 11))])
    assert view.server_url == "http://a:1"
    assert view.strangers == ((99, 7 * GIB, "python train.py"),)
    assert view.parts is not None
    assert view.parts.strangers == 7 * GIB
    assert view.parts.kv_unsplit == 15 * GIB


def test_each_dp_rank_has_its_own_gpu() -> None:
    gpus = [
        GpuSample(
            index,
            "x",
            memory_total_bytes=100 * GIB,
            memory_used_bytes=90 * GIB,
            processes=(GpuProcess(10 + index, 90 * GIB),),
        )
        for index in (2, 3)
    ]
    ranks = tuple(RankSample(dp, used_tokens=10 * (dp + 1), capacity_tokens=100) for dp in (0, 1))
    sample = ServerSample(0.0, "http://a:1", ServerFacts(weights_gib=40.0, kv_cache_gib=40.0), ranks)
    views = gpu_views(gpus, [ServerReading("http://a:1", sample, pids=(12, 13))])
    assert [view.parts.kv_used for view in views if view.parts] == [4 * GIB, 8 * GIB]


def test_a_lost_gpu_shows_nothing() -> None:
    (view,) = gpu_views([replace(GpuSample(2, "x"), lost=True, memory_total_bytes=5, memory_used_bytes=1)], [])
    assert view.parts is None


def test_in_a_container_the_only_server_owns_what_its_figures_fit_into() -> None:
    """The driver tells the host's pid 28290, which cannot be seen from here (field case 77)."""
    alien = GpuProcess(28290, 90 * GIB, None)
    busy = GpuSample(0, "x", memory_total_bytes=100 * GIB, memory_used_bytes=92 * GIB, processes=(alien,))
    idle = GpuSample(1, "x", memory_total_bytes=100 * GIB, memory_used_bytes=1 * GIB)
    sample = ServerSample(0.0, "http://a:1", ServerFacts(weights_gib=60.0, kv_cache_gib=20.0), (RankSample(),))
    views = gpu_views([busy, idle], [ServerReading("http://a:1", sample, pids=(112,))])
    assert [view.server_url for view in views] == ["http://a:1", None]
    assert views[0].strangers == ()
    assert views[0].parts is not None
    assert views[0].parts.weights == 60 * GIB


def test_two_servers_in_a_container_are_not_guessed_apart() -> None:
    alien = GpuProcess(28290, 90 * GIB, None)
    gpu = GpuSample(0, "x", memory_total_bytes=100 * GIB, memory_used_bytes=92 * GIB, processes=(alien,))
    sample = ServerSample(0.0, "http://a:1", ServerFacts(weights_gib=60.0, kv_cache_gib=20.0), (RankSample(),))
    servers = [ServerReading(f"http://a:{port}", sample, pids=(port,)) for port in (1, 2)]
    (view,) = gpu_views([gpu], servers)
    assert view.server_url is None
    assert view.parts == MemoryParts(unattributed=92 * GIB, free=8 * GIB)
