"""NVML as a test plays it: what the NVIDIA driver would say, under NVML's own function names."""

from __future__ import annotations

from types import SimpleNamespace


class PlayedNvml:
    """One card, with NVML's own function names."""

    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_FUNCTION_NOT_FOUND = 3, 4, 13
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = 15, 16
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlEventTypeXidCriticalError = 1, 0, 8

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__({15: "GPU is lost", 16: "GPU requires restart"}.get(value, f"error {value}"))
            self.value = value

    def __init__(self, *, ecc=0):
        self.ecc, self.broken, self.xids, self.memory, self.cards = ecc, 0, [], {}, 1
        self.is_namespaced = False
        """Whether processes are listed to nobody, as in a container."""
        self.total, self.utilization = 24 * 2**30, 0

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return self.cards

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"card {index}"

    def nvmlEventSetCreate(self):
        return "events"

    def nvmlDeviceRegisterEvents(self, handle, types, events):
        pass

    def nvmlEventSetWait_v2(self, events, timeout_ms):
        if not self.xids:
            raise self.NVMLError(self.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=self.xids.pop(0))

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        if self.broken:
            raise self.NVMLError(self.broken)
        if self.ecc is None:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return self.ecc

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        if self.broken:
            raise self.NVMLError(self.broken)
        if self.is_namespaced:
            return []
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.memory.items()]

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle):
        if self.broken:
            raise self.NVMLError(self.broken)
        return SimpleNamespace(used=sum(self.memory.values()), total=self.total)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=self.utilization)
