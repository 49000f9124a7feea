"""Host memory with and without cgroups of either version, on trees made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.host import NumaNode, read_host, read_kernel_log

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    meminfo = "MemTotal: 1048576 kB\nMemAvailable: 943718 kB\nCached: 2048 kB\nMlocked: 4 kB\nHugePages_Total: 0\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_a_cgroup_the_machine_decides(tmp_path: Path) -> None:
    host = read_host(tree(tmp_path, {}))
    assert (host.total_bytes, host.available_bytes) == (GIB, 943718 * 1024)
    assert (host.page_cache_bytes, host.locked_bytes) == (2 * 2**20, 4096)
    assert host.cgroup_limit_bytes is None
    assert host.oom_kills is None


def test_cgroup_v2_binds_at_the_tightest_level(tmp_path: Path) -> None:
    own, above = "sys/fs/cgroup/job/step", "sys/fs/cgroup/job"
    files = {
        "sys/fs/cgroup/cgroup.controllers": "memory cpu\n",
        "proc/self/cgroup": "0::/job/step\n",
        f"{own}/memory.max": "max\n",
        f"{own}/memory.current": f"{100 * 2**20}\n",
        f"{above}/memory.max": f"{512 * 2**20}\n",
        f"{above}/memory.current": f"{300 * 2**20}\n",
        f"{above}/memory.stat": f"anon 5\ninactive_file {50 * 2**20}\n",
        f"{above}/memory.events": "oom 3\noom_kill 2\n",
    }
    host = read_host(tree(tmp_path, files))
    assert host.total_bytes == host.cgroup_limit_bytes == 512 * 2**20
    assert host.cgroup_used_bytes == 250 * 2**20
    assert host.available_bytes == 262 * 2**20
    assert host.oom_kills == 2


def test_cgroup_v1_inside_a_container_sees_the_mount_alone(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "9:cpu:/x\n8:memory:/docker/0123\n",
        f"{base}/memory.limit_in_bytes": f"{GIB // 2}\n",
        f"{base}/memory.usage_in_bytes": f"{GIB // 4}\n",
        f"{base}/memory.stat": f"total_inactive_file {GIB // 8}\n",
    }
    host = read_host(tree(tmp_path, files))
    assert host.cgroup_limit_bytes == GIB // 2
    assert host.available_bytes == GIB // 2 - GIB // 8


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_no_limit_is_no_limit(tmp_path: Path, limit: str) -> None:
    v2 = limit == "max"
    base = "sys/fs/cgroup" if v2 else "sys/fs/cgroup/memory"
    names = ("memory.max", "memory.current") if v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    files = {f"{base}/{names[0]}": limit, f"{base}/{names[1]}": "5", "proc/self/cgroup": "0::/\n1:memory:/\n"}
    if v2:
        files["sys/fs/cgroup/cgroup.controllers"] = "memory"
    assert read_host(tree(tmp_path, files)).cgroup_limit_bytes is None


def test_numa_nodes(tmp_path: Path) -> None:
    node = "sys/devices/system/node/node1"
    meminfo = "Node 1 MemTotal:  1024 kB\nNode 1 MemFree:  512 kB\n"
    files = {f"{node}/meminfo": meminfo, f"{node}/cpulist": "8-15\n"}
    assert read_host(tree(tmp_path, files)).numa == (NumaNode(1, 2**20, 2**19, "8-15"),)


def test_this_machine_can_be_read() -> None:
    host = read_host()
    assert 0 < host.available_bytes <= host.total_bytes


def test_the_kernel_log_keeps_what_is_about_memory_and_gpus(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,100,-;usb 1-1: new device\n3,2,200,-;Out of memory: Killed process 7 (sglang::schedul)\n")
    assert read_kernel_log(log) == "Out of memory: Killed process 7 (sglang::schedul)"
    assert read_kernel_log(tmp_path / "none") == ""
