"""What does the agent see of GPUs, with a driver that fails in every way that it can?"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from berth.agent.gpus import Gpu, GpuProcess, NvmlGpus
from berth.units import Bytes, GiB
from fakes import nvml
from fakes.nvml import Device, Nvml

CODES = [
    value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
]
CALLS = ["handle", "uuid", "name", "capability", "memory", "compute", "graphics"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = nvml.compile_library(tmp_path_factory.mktemp("nvml"))
    nvml.load(path)
    return path


@pytest.fixture
def world(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nvml:
    path = tmp_path / "nvml.txt"
    monkeypatch.setenv(nvml.VARIABLE, str(path))
    shown = Nvml(path, [Device("GPU-a", total=80 * GiB, used=8 * GiB)])
    shown.write()
    return shown


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


A = Gpu("GPU-a", 0, "Fake H200", Bytes(80 * GiB), Bytes(8 * GiB), "9.0")


def test_a_gpu_with_its_figures(world: Nvml):
    world.devices[0].processes = {11: 2 * GiB, 12: None}
    world.write()
    sample = NvmlGpus().sample()
    assert (sample.driver, sample.problem) == ("570.86.15", "")
    (gpu,) = sample.gpus
    assert (gpu.uuid, gpu.name, gpu.total, gpu.used) == ("GPU-a", A.name, A.total, A.used)
    assert gpu.compute_capability == "9.0"
    assert set(gpu.processes) == {GpuProcess(11, Bytes(2 * GiB)), GpuProcess(12, None)}


def test_a_gpu_without_memory_figures_is_unified(world: Nvml):
    world.devices[0].errors = {"memory": pynvml.NVML_ERROR_NOT_SUPPORTED}
    world.write()
    (gpu,) = NvmlGpus().sample().gpus
    assert (gpu.unified, gpu.total, gpu.used) == (True, 0, None)


def test_a_passing_fault_does_not_turn_a_gpu_into_a_unified_one(world: Nvml):
    gpus = NvmlGpus()
    gpus.sample()
    world.devices[0].errors = {"memory": pynvml.NVML_ERROR_UNKNOWN}
    world.write()
    (gpu,) = gpus.sample().gpus
    assert (gpu.unified, gpu.total, gpu.used) == (False, 80 * GiB, None)


def test_a_gpu_that_has_never_told_its_size_is_left_out(world: Nvml):
    world.devices[0].errors = {"memory": pynvml.NVML_ERROR_UNKNOWN}
    world.write()
    assert NvmlGpus().sample().gpus == ()


def test_one_lost_gpu_does_not_hide_the_others(world: Nvml):
    world.devices.append(Device("GPU-b", total=80 * GiB))
    world.devices[0].errors = {"handle": pynvml.NVML_ERROR_GPU_IS_LOST}
    world.write()
    assert [gpu.uuid for gpu in NvmlGpus().sample().gpus] == ["GPU-b"]


def test_processes_that_nobody_tells_are_unknown_not_none(world: Nvml):
    world.devices[0].errors = {"compute": 3, "graphics": 3}
    world.write()
    assert NvmlGpus().sample().gpus[0].processes is None


@pytest.mark.parametrize("call", CALLS)
def test_no_code_of_any_call_raises(world: Nvml, call: str):
    gpus = NvmlGpus()
    gpus.sample()
    for code in CODES:
        world.devices[0].errors = {call: code}
        world.write()
        for gpu in gpus.sample().gpus:
            assert gpu.used is None or gpu.used == 8 * GiB
            assert gpu.unified == (call == "memory" and code == pynvml.NVML_ERROR_NOT_SUPPORTED)
        world.devices[0].errors = {}
        world.write()
        assert gpus.sample().gpus == (A,), code


def test_no_code_at_start_raises_and_it_is_tried_again(world: Nvml):
    for code in CODES:
        clock = Clock()
        gpus = NvmlGpus(clock)
        world.init_error = code
        world.write()
        assert gpus.sample().gpus == ()
        world.init_error = 0
        world.write()
        clock.now = 1.0
        assert gpus.sample().gpus == ()
        clock.now = 31.0
        assert gpus.sample().gpus == (A,), code


def test_no_code_of_the_count_raises(world: Nvml):
    for code in CODES:
        clock = Clock()
        gpus = NvmlGpus(clock)
        gpus.sample()
        world.count_error = code
        world.write()
        sample = gpus.sample()
        assert sample.problem
        assert sample.gpus == (replace(A, used=None, processes=None),), "there, in unknown use"
        world.count_error = 0
        world.write()
        clock.now = 31.0
        assert gpus.sample().gpus == (A,), code


def test_a_node_without_the_library_has_no_gpus_and_no_problem():
    code = "from berth.agent.gpus import NvmlGpus; s = NvmlGpus().sample(); print(s.gpus, repr(s.problem))"
    environment = {**os.environ, "LD_LIBRARY_PATH": "/nonexistent"}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "() ''"
