"""GPUs through a stand-in for pynvml: what is not supported is None, a lost GPU keeps its place."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from launcher.errors import UsageError
from launcher.nvml import NvmlGpus, open_gpus

MIB = 2**20


class StandIn:
    """pynvml's functions over a list of dicts; a value that is an NVMLError is raised, and calls are counted."""

    NVML_DEVICE_MIG_ENABLE = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    def __init__(self, devices: list[dict[str, Any]]) -> None:
        self.devices = devices
        self.calls: list[str] = []

    def _tell(self, device: dict[str, Any], what: str) -> Any:
        self.calls.append(what)
        value = device.get(what, pynvml.NVMLError_NotSupported())
        if isinstance(value, pynvml.NVMLError):
            raise value
        return value

    def nvmlInit(self) -> None:  # noqa: N802
        self.calls.append("init")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        error = self.devices[index].get("error")
        if error is not None:
            raise error
        return self.devices[index]

    def __getattr__(self, name: str) -> Any:
        return lambda device, *_: self._tell(device, name.removeprefix("nvmlDeviceGet"))


def memory(used_mib: int, total_mib: int) -> SimpleNamespace:
    return SimpleNamespace(used=used_mib * MIB, total=total_mib * MIB)


WHOLE = {
    "Name": "NVIDIA H200",
    "UUID": b"GPU-1",
    "MemoryInfo": memory(100, 1000),
    "UtilizationRates": SimpleNamespace(gpu=80),
    "PowerUsage": 350_000,
    "EnforcedPowerLimit": 700_000,
    "Temperature": 45,
    "CurrentClocksThrottleReasons": 0x1 | 0x4 | 0x40,
    "TotalEccErrors": 2,
    "MigMode": [1, 1],
    "ComputeRunningProcesses": [
        SimpleNamespace(pid=7, usedGpuMemory=5 * MIB),
        SimpleNamespace(pid=8, usedGpuMemory=None),
    ],
}


def test_everything_that_the_driver_tells() -> None:
    (gpu,) = NvmlGpus(StandIn([WHOLE])).read()
    assert (gpu.name, gpu.uuid, gpu.mig, gpu.ecc_uncorrected) == ("NVIDIA H200", "GPU-1", True, 2)
    assert (gpu.utilization_share, gpu.power_w, gpu.power_limit_w, gpu.temperature_c) == (0.8, 350.0, 700.0, 45.0)
    assert gpu.memory_free_bytes == 900 * MIB
    assert gpu.throttle_reasons == ("power cap", "thermal (hardware)")
    assert [(process.pid, process.used_bytes) for process in gpu.processes] == [(7, 5 * MIB), (8, None)]


def test_a_refusal_is_none_and_never_zero() -> None:
    (gpu,) = NvmlGpus(StandIn([{"Name": "bare", "MemoryInfo": memory(1, 2)}])).read()
    assert gpu.utilization_share is gpu.power_w is gpu.power_limit_w is gpu.temperature_c is gpu.ecc_uncorrected is None
    assert gpu.throttle_reasons == gpu.processes == ()
    assert not gpu.mig


def test_the_dear_calls_are_made_once_in_a_while_and_memory_each_time() -> None:
    now = [0.0]
    api = StandIn([WHOLE])
    gpus = NvmlGpus(api, lambda: now[0])
    for _ in range(3):
        gpus.read()
    assert [api.calls.count(what) for what in ("MemoryInfo", "PowerUsage", "Name")] == [3, 1, 1]
    now[0] = 1.0
    gpus.read()
    assert [api.calls.count(what) for what in ("MemoryInfo", "PowerUsage", "Name")] == [4, 2, 1]


def test_memory_only_asks_for_nothing_dear() -> None:
    api = StandIn([WHOLE])
    (gpu,) = NvmlGpus(api).read(memory_only=True)
    assert gpu.memory_used_bytes == 100 * MIB
    assert not {"UtilizationRates", "PowerUsage", "ComputeRunningProcesses", "Temperature"} & set(api.calls)


def test_closed_it_shows_no_gpu() -> None:
    api = StandIn([WHOLE])
    gpus = NvmlGpus(api)
    gpus.close()
    gpus.close()
    assert gpus.read() == ()
    assert api.calls.count("shutdown") == 1


def test_a_unified_memory_gpu_has_no_memory_figure(shared: Path) -> None:
    """Field case 74."""
    folder = shared / "cases" / "74-nvml-gb10-not-supported"
    told = json.loads((folder / "nvml.json").read_text())
    device = {"Name": told["name"], "MemoryInfo": pynvml.NVMLError_NotSupported()}
    device |= {"PowerUsage": told["power_w"] * 1000, "Temperature": told["temp_c"]}
    (gpu,) = NvmlGpus(StandIn([device])).read()
    assert not gpu.lost
    assert gpu.memory_total_bytes is gpu.memory_used_bytes is gpu.memory_free_bytes is None
    assert (gpu.power_w, gpu.temperature_c) == (told["power_w"], told["temp_c"])


@pytest.mark.parametrize("fails", ["error", "MemoryInfo"])
def test_a_lost_gpu_keeps_its_place_and_hides_no_other(shared: Path, fails: str) -> None:
    """Field case 76: one of four GPUs has fallen off the bus, at its handle or at the first call."""
    folder = shared / "cases" / "76-nvml-gpu-lost"
    told = json.loads((folder / "nvml.json").read_text())["devices"]
    expect = json.loads((folder / "case.json").read_text())["expect"]
    devices = [
        {fails: pynvml.NVMLError_GpuIsLost()}
        if "error" in one
        else {"Name": one["name"], "MemoryInfo": memory(one["mem_used_mib"], one["mem_total_mib"])}
        for one in told
    ]
    gpus = NvmlGpus(StandIn(devices)).read()
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert [gpu.index for gpu in gpus if not gpu.lost] == expect["rows_ok"]
    assert "lost" in gpus[2].name.lower()


def test_without_a_driver_there_are_no_gpus() -> None:
    class NoDriver(StandIn):
        def nvmlInit(self) -> None:  # noqa: N802
            raise pynvml.NVMLError_LibraryNotFound

    assert NvmlGpus(NoDriver([WHOLE])).read() == ()


def test_sources(tmp_path: Path) -> None:
    assert isinstance(open_gpus(None), NvmlGpus)
    assert open_gpus(f"simulated:{tmp_path}").read() == ()
    with pytest.raises(UsageError, match="'radeon' is no source"):
        open_gpus("radeon")
