"""NVML: a driver that answers as in the case, read by `launcher.nvml`, and the clean slate that rests on it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from bench.cases.case import Case, Check, behaviour, compared
from bench.cases.names import MISSING, is_sentence
from launcher.cleanslate import take_baseline
from launcher.gpus import GpuSample
from launcher.host import HostSample, read_host
from launcher.nvml import NvmlGpus
from launcher.process import describe

_MIB = 2**20
_ERRORS = {
    "NotSupported": pynvml.NVML_ERROR_NOT_SUPPORTED,
    "NOT_SUPPORTED": pynvml.NVML_ERROR_NOT_SUPPORTED,
    "GpuIsLost": pynvml.NVML_ERROR_GPU_IS_LOST,
    "GPU_IS_LOST": pynvml.NVML_ERROR_GPU_IS_LOST,
    "NoPermission": pynvml.NVML_ERROR_NO_PERMISSION,
    "NO_PERMISSION": pynvml.NVML_ERROR_NO_PERMISSION,
}


class Driver:
    """Stands in for pynvml: constants are pynvml's, and what the case does not tell is not supported."""

    def __init__(self, devices: list[Mapping[str, Any]]) -> None:
        self._devices = devices

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_"):
            return getattr(pynvml, name)
        own: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: len(self._devices),
            "nvmlDeviceGetHandleByIndex": self._handle,
        }
        return own.get(name) or _answered(name)

    def _handle(self, index: int) -> Mapping[str, Any]:
        device = self._devices[index]
        if "error" in device:
            raise _error(str(device["error"]))
        return device


def _answered(name: str) -> Callable[..., Any]:
    """A call that fails where the case says so under the call's own name, and answers from the case otherwise."""

    def answer(device: Mapping[str, Any], *more: Any) -> Any:
        said = device.get(name)
        if isinstance(said, str) and "NVML" in said:
            raise _error(said)
        known: Callable[..., Any] = _ANSWERS.get(name, _refuse)
        return known(device, *more)

    return answer


def _memory(device: Mapping[str, Any]) -> Any:
    total, used = _told(device, "mem_total_mib") * _MIB, _told(device, "mem_used_mib") * _MIB
    return SimpleNamespace(total=total, used=used, free=total - used)


def _processes(device: Mapping[str, Any]) -> list[Any]:
    found = _told(device, "compute_procs")
    return [SimpleNamespace(pid=one["pid"], usedGpuMemory=_scaled(one.get("used_mib"))) for one in found]


def _scaled(mib: Any) -> int | None:
    """The driver gives None for a process whose memory it does not know."""
    return round(mib * _MIB) if isinstance(mib, int | float) else None


def _refuse(*_: Any) -> Any:
    raise _error("NotSupported")


_ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetName": lambda device: _told(device, "name"),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": lambda device: SimpleNamespace(gpu=_told(device, "utilization_gpu")),
    "nvmlDeviceGetPowerUsage": lambda device: round(_told(device, "power_w") * 1000),
    "nvmlDeviceGetEnforcedPowerLimit": lambda device: round(_told(device, "power_limit_w") * 1000),
    "nvmlDeviceGetTemperature": lambda device, _sensor: _told(device, "temp_c"),
    "nvmlDeviceGetComputeRunningProcesses": _processes,
    "nvmlDeviceGetMigMode": lambda device: (int(bool(_told(device, "mig"))), 0),
    "nvmlDeviceGetUUID": lambda device: _told(device, "uuid"),
}


def _told(device: Mapping[str, Any], name: str) -> Any:
    value = device.get(name)
    if value is None:
        raise _error("NotSupported")
    return value


def _error(text: str) -> Exception:
    code = next((code for word, code in _ERRORS.items() if word in text), pynvml.NVML_ERROR_UNKNOWN)
    return pynvml.NVMLError(code)  # type: ignore[no-any-return]


def judge(case: Case) -> Iterator[Check]:
    name = next(name for name in case.inputs if name.endswith(".json"))
    content = case.json(name)
    devices = content.get("devices", [content])
    reader = NvmlGpus(api=Driver(devices))
    samples = reader.read()
    yield compared("GPUs shown", len(devices), len(samples))
    yield from _in_use(samples, devices)
    yield from _figures(case, samples, _host(content))
    if "compute_procs" in content:
        yield from _alien_pids(case, reader, content)


def _in_use(samples: tuple[GpuSample, ...], devices: list[Mapping[str, Any]]) -> Iterator[Check]:
    """No healthy GPU is hidden, and what is not told is None and not 0."""
    for device, sample in zip(devices, samples, strict=True):
        broken = "error" in device
        yield compared(f"GPU {sample.index}: lost", broken, sample.lost)
        if not broken and device.get("mem_total_mib") is not None:
            yield compared(f"GPU {sample.index}: used", device["mem_used_mib"] * _MIB, sample.memory_used_bytes)


def _host(content: Mapping[str, Any]) -> HostSample | None:
    """Host memory as /proc/meminfo of the case tells it."""
    if "meminfo" not in content:
        return None
    with tempfile.TemporaryDirectory() as root:
        proc = Path(root, "proc")
        proc.mkdir()
        lines = (f"{name.removesuffix('_kB')}: {value} kB" for name, value in content["meminfo"].items())
        (proc / "meminfo").write_text("\n".join(lines) + "\n")
        return read_host(Path(root))


def _figures(case: Case, samples: tuple[GpuSample, ...], host: HostSample | None) -> Iterator[Check]:
    first = samples[0]
    lost = [sample.index for sample in samples if sample.lost]
    figures: dict[str, Any] = {
        "memory_total": first.memory_total_bytes,
        "memory_used": first.memory_used_bytes,
        "memory_free": first.memory_free_bytes,
        "rows_ok": [sample.index for sample in samples if not sample.lost],
        "lost": lost,
        "index_kept": [sample.index for sample in samples] == list(range(len(samples))),
        "power_w": first.power_w,
        "power_limit": "N/A" if first.power_limit_w is None else first.power_limit_w,
        "utilization": first.utilization_share,
        "temperature": first.temperature_c,
        "gpu_count": len(samples),
        "name": first.name,
        "mig": first.mig,
        "mem_total_mib": _mib(first.memory_total_bytes),
        "mem_used_mib": _mib(first.memory_used_bytes),
        "used_mib": _mib(first.memory_used_bytes),
        "process_memory": next((process.used_bytes for process in first.processes), None),
        "pids": [process.pid for process in first.processes],
    }
    if host is not None:
        figures["or_unified_total_bytes"] = figures["unified_total_bytes"] = host.total_bytes
        figures["unified_used_bytes"] = host.total_bytes - host.available_bytes
    for key, expected in case.expect.items():
        if key.startswith("row_"):
            yield behaviour(f"{key} is shown as lost", int(key.removeprefix("row_")) in lost, lost)
        elif not is_sentence(expected) and not (isinstance(expected, list) and any(map(is_sentence, expected))):
            got = figures.get(key, MISSING)
            yield compared(key, expected, "no such figure" if got is MISSING else got)


def _mib(value: int | None) -> float | None:
    return None if value is None else value / _MIB


def _alien_pids(case: Case, reader: NvmlGpus, content: Mapping[str, Any]) -> Iterator[Check]:
    """Pids of another namespace: named as unknown, and the memory decides whether the GPU is busy."""
    baseline = take_baseline(reader)
    used = content["mem_used_mib"] * _MIB
    yield compared("baseline: used", used, baseline.gpus[0].used_bytes)
    for pid, exists in content.get("proc_exists", {}).items():
        with tempfile.TemporaryDirectory() as proc:
            described = describe(int(pid), Path(proc))
        if not exists and "process_name" in case.expect:
            yield behaviour(f"pid {pid} is called unknown", "unknown" in described, described)
