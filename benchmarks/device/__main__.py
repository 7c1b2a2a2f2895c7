"""Test and time the library on a device: `make gpu`, or `python -m benchmarks.device --device cpu --small`.

The parts run one after the other, and a part that fails or is skipped does not stop the others: the tests of
tests/device, communication in one process, compiled leapfrog steps, and the times of seven kinds of work as ratios to
plain PyTorch on the same device. What was found is printed, and written to one JSON file. Exit status: 0 if all parts
ran or said why they cannot, 1 if one failed, 3 if there is no such device, in which case nothing was run. Times that
miss their aim are reported, and are no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.utils import counters  # no public count of graphs that were not captured
from torch.utils.flop_counter import FlopCounterMode

import torchbayes as tb
from benchmarks import prediction
from benchmarks.device import works
from benchmarks.harness import race
from torchbayes.density.backend import Evaluation, Trajectory
from torchbayes.density.compiled import Compiled, Unrolled
from torchbayes.density.precision import full_precision

ROOT = Path(__file__).parents[2]
NO_DEVICE = 3
Numbers = dict[str, Any]


class Skipped(Exception):
    """A part that cannot run here, with the reason."""


@dataclass(frozen=True)
class Bench:
    """Where the parts run.

    Attributes:
        device: the device.
        sizes: of the work.
        until: when to stop, by `time.monotonic`.
        small: whether this only shows that everything runs.
    """

    device: torch.device
    sizes: works.Sizes
    until: float
    small: bool

    def seconds(self, **ways: works.Work) -> dict[str, float]:
        """Return the median seconds of each way to do some work, timed in turn; work still queued is waited for."""

        def finished(work: works.Work) -> works.Work:
            def run() -> None:
                work()
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)

            return run

        rounds, warmup, block = (1, 1, 0.0) if self.small else (7, 3, 0.2)
        timed = race({n: finished(w) for n, w in ways.items()}, rounds=rounds, warmup=warmup, block=block)
        return {timing.name: timing.median for timing in timed}

    def ratio(self, aim: float, **ways: works.Work) -> Numbers:
        """Return the seconds of `ours` and `plain`, their ratio, and whether it is at most the aim."""
        results = self.seconds(**ways)
        ratio = results["ours"] / results["plain"]
        return {**results, "ratio": ratio, "aim": aim, "met": ratio <= aim}


def tests(bench: Bench) -> Numbers:
    """Run tests/device on the device."""
    # half of the time, so that there is some for the rest
    limit = (bench.until - time.monotonic()) / 2
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/device"]
    command += ["-k", "divergence"] if bench.small else ["--numprocesses", str(min(os.cpu_count() or 1, 8))]
    environment = {**os.environ, "TORCHBAYES_DEVICE": bench.device.type, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=limit)
    lines = run.stdout.strip().splitlines() or [""]
    if run.returncode:
        raise RuntimeError("\n".join(lines[-40:]))
    return {"said": lines[-1]}


def one_process(bench: Bench) -> Numbers:
    """Join a process group of one, by NCCL on a GPU and gloo on a CPU, and add up a tensor there."""
    backend = "nccl" if bench.device.type == "cuda" else "gloo"
    if not dist.is_backend_available(backend):
        raise Skipped(f"this PyTorch has no {backend}")
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        numbers = torch.arange(5.0, device=bench.device)
        dist.all_reduce(numbers)
        assert numbers.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    finally:
        dist.destroy_process_group()
    return {"backend": backend}


def compiled(bench: Bench) -> Numbers:
    """Take leapfrog steps by compiled code, which gives what the plain integrator gives."""
    if bench.small:
        raise Skipped("it compiles for a minute, and tests/density/test_compiled.py does so here")
    model, rows, weights_MD = _small_problem(bench)
    ways: dict[str, works.Work] = {}
    for name, plan in (("ours", "compiled"), ("plain", "vmap")):
        density = tb.LogDensity(model, rows.size, rows, plan=plan)  # type: ignore[arg-type]
        start = {"gradient_MD": density(weights_MD).gradient, "steps_M": torch.full((4,), 8)}
        start["step_size_M"] = torch.full((4,), 1e-3, dtype=torch.float64)
        ways[name] = lambda density=density, start=start: density.leapfrog(weights_MD, weights_MD, **start)
    ends: list[Any] = [work() for work in ways.values()]
    torch.testing.assert_close(ends[0].weights_MD, ends[1].weights_MD, rtol=1e-4, atol=1e-5)
    return bench.ratio(1.0, **ways)


def _small_problem(bench: Bench) -> tuple[tb.Model, tb.Batch, Tensor]:
    """Return a small network, rows and weights of four members, whose leapfrog steps cost mostly launches."""
    inputs, targets = (t[:256] for t in works.images(256, bench.device))
    model = works.model_of(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 32), torch.nn.Tanh(),
                                               torch.nn.Linear(32, works.CLASSES)).to(bench.device))  # fmt: skip
    return model, tb.Batch(inputs, targets), model.starting_weights(range(4))[0]


def graphs(bench: Bench) -> Numbers:
    """Take compiled leapfrog steps as CUDA graphs, which give what those without give, also after further replays."""
    if bench.device.type != "cuda":
        raise Skipped("CUDA graphs need a CUDA device")
    model, rows, weights_MD = _small_problem(bench)
    scales = model.scales(rows.size, rows.size)
    steps, size = torch.full((4,), 8), torch.full((4,), 1e-3, dtype=torch.float64)
    gradient_MD = tb.LogDensity(model, rows.size, rows, plan="vmap")(weights_MD).gradient
    start = Trajectory(weights_MD, weights_MD, gradient_MD, size, steps, None, rows, scales)
    ways: dict[str, works.Work] = {}
    for name, by_graphs in (("ours", True), ("plain", False)):
        unrolled = Unrolled(model, rows, scales, graphs=by_graphs)
        ways[name] = lambda unrolled=unrolled: unrolled(start)
    ends: list[Any] = [ways["ours"](), ways["ours"](), ways["ours"](), ways["plain"]()]
    for end in ends[:-1]:  # recorded at the second call, replayed at the third
        torch.testing.assert_close(end.weights_MD, ends[-1].weights_MD, rtol=1e-4, atol=1e-5)
    return {"not captured": counters["inductor"]["cudagraph_skips"], **bench.ratio(1.0, **ways)}


def replays(bench: Bench) -> Numbers:
    """Take gradients on minibatches, as SG-MCMC does, as CUDA graphs, which give what those without give."""
    if bench.device.type != "cuda":
        raise Skipped("CUDA graphs need a CUDA device")
    model, rows, weights_MD = _small_problem(bench)
    results: dict[str, list[Tensor]] = {}
    ways: dict[str, works.Work] = {}
    for name, by_graphs in (("ours", True), ("plain", False)):
        backend, kept = Compiled(model, graphs=by_graphs), results.setdefault(name, [])

        def way(backend: Compiled = backend, kept: list[Tensor] = kept) -> None:
            gradient_MD = torch.zeros_like(weights_MD)
            scales = model.scales(rows.size, rows.size)
            total_M, _ = backend.evaluate(Evaluation(weights_MD, rows, True, None, None, scales, gradient_MD))
            kept[:] = [*kept[-4:], total_M, gradient_MD]

        ways[name] = way
    for _ in range(3):  # recorded at the second call, replayed at the third
        for work in ways.values():
            work()
    for ours, plain in zip(results["ours"], results["plain"], strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-3)
    return {"not captured": counters["inductor"]["cudagraph_skips"], **bench.ratio(1.0, **ways)}


def training(bench: Bench) -> Numbers:
    """Time steps of MAP against a loop by hand with fused Adam."""
    method = tb.MAP(epochs=10**6, batch_size=bench.sizes.batch, optimizer=tb.Adam(works.LR), schedule=tb.Constant())
    ours = works.stepping(method, bench.sizes, bench.device)
    return bench.ratio(1.05, ours=ours, plain=works.training_by_hand(bench.sizes, bench.device))


def predicting(bench: Bench) -> Numbers:
    """Time a prediction with 30 draws against a loop over networks that hold them."""
    net = works.network(bench.device).eval()
    model = works.model_of(net)
    weights_SD, _ = model.starting_weights(tb.member_seeds(0, bench.sizes.draws))
    functions = tb.Point(model, weights_SD, statistics_known=True).functions()
    inputs, _ = works.images(bench.sizes.batch, bench.device)
    ways = {"ours": prediction.ours(functions, inputs), "plain": prediction.plain(functions, net, inputs)}
    torch.testing.assert_close(ways["ours"](), ways["plain"](), rtol=1e-2, atol=1e-3)
    return bench.ratio(1.0, **ways)


def sampling(bench: Bench) -> Numbers:
    """Time steps of SGHMC against steps by hand."""
    method = tb.SGHMC(1, 10**7, 0, 10**7, step_size=1e-6, batch_size=bench.sizes.batch)
    ours = works.stepping(method, bench.sizes, bench.device)
    return bench.ratio(1.1, ours=ours, plain=works.sampling_by_hand(bench.sizes, bench.device))


def gradient(bench: Bench) -> Numbers:
    """Time the gradient of all the data, as a share of the rate at which the device multiplies float32 matrices."""
    sizes, device = bench.sizes, bench.device
    model = works.model_of(works.network(device))
    rows = tb.Batch(*works.images(sizes.rows, device))
    density = tb.LogDensity(model, sizes.rows, rows, plan="loop", chunk_size=sizes.chunk)
    weights_MD, few = model.starting_weights([0])[0], min(sizes.rows, 8)
    counted = tb.LogDensity(model, few, rows.map(lambda t: t[:few]), plan="loop")
    counted(weights_MD)  # the first call runs the network twice
    with FlopCounterMode(display=False) as flops:
        counted(weights_MD)
    matrix = torch.randn(sizes.product, sizes.product, device=device)
    with full_precision(device):
        results = bench.seconds(product=lambda: matrix @ matrix, gradient=lambda: density(weights_MD))
    rate = 2 * sizes.product**3 / results["product"]
    share = flops.get_total_flops() * sizes.rows / few / results["gradient"] / rate
    return {**results, "tera_per_second": rate / 1e12, "share": share, "aim": 0.5, "met": share >= 0.5}


def kronecker(bench: Bench) -> Numbers:
    """Time a Kronecker-factored Laplace fit of a network like a ResNet-50, in units of its gradient on these rows."""
    sizes, device = bench.sizes, bench.device
    model, rows = works.model_of(works.bottlenecks(sizes, device)), works.images(sizes.batch, device)
    start = model.given_weights()
    density = tb.LogDensity(model, sizes.batch, tb.Batch(*rows), plan="loop", chunk_size=sizes.batch)
    method = tb.Laplace(
        structure="kronecker", curvature="fisher", samples=1, batch_size=sizes.batch, check_mode=False, prior="model"
    )

    def fit() -> object:
        return tb.fit(model, rows, method, start=start, callbacks=())

    return bench.ratio(2.0, ours=fit, plain=lambda: density(start.unsqueeze(0)))


def adapter(bench: Bench) -> Numbers:
    """Time steps of IVON on an adapter of a billion weights against plain LoRA, and say the most memory they take."""
    net, sizes, device = _adapted(bench), bench.sizes, bench.device
    model = tb.Model(net, tb.likelihoods.Categorical(), random="*lora*")
    rows = works.prompts(4 * works.PROMPTS, sizes, device)
    method = tb.IVON(epochs=10**6, batch_size=works.PROMPTS)
    ways = {
        "ours": works.stepping(method, sizes, device, of=(model, rows)),
        "plain": works.adapting_by_hand(net, sizes, device),
    }
    peaks = {f"{name}_gib": _peak(work, device) for name, work in ways.items()}
    return {"base_gib": _gib(sum(p.nbytes for p in net.parameters())), **peaks, **bench.ratio(1.2, **ways)}


def adapter_draws(bench: Bench) -> Numbers:
    """Time predictions of ten draws of an adapter against one pass of the network."""
    net, sizes = _adapted(bench), bench.sizes
    model = tb.Model(net, tb.likelihoods.Categorical(), random="*lora*")
    weights_SD = model.given_weights() + 1e-3 * torch.randn(10, model.layout.size, device=bench.device)
    functions = tb.Point(model, weights_SD, statistics_known=True).functions()
    inputs, _ = works.prompts(works.PROMPTS, sizes, bench.device)

    @torch.no_grad()
    def plain() -> object:
        return net(**inputs)

    return bench.ratio(3.0, ours=lambda: tb.predict(functions, inputs), plain=plain)


def _adapted(bench: Bench) -> torch.nn.Module:
    try:
        return works.adapted(bench.sizes, bench.device)
    except ImportError as error:
        raise Skipped(f"transformers or peft is not there: {error}") from error


def _peak(work: works.Work, device: torch.device) -> float:
    """Return the most memory of the device that is taken during some work, in GiB; 0 on a CPU."""
    if device.type != "cuda":
        return 0.0
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return _gib(torch.cuda.max_memory_allocated(device))


def _gib(size: int) -> float:
    return round(size / 2**30, 2)


PARTS: dict[str, Callable[[Bench], Numbers]] = {
    "tests": tests,
    "one process": one_process,
    "compiled leapfrog": compiled,
    "cuda graphs": graphs,
    "cuda graphs of gradients": replays,
    "training step": training,
    "30-draw prediction": predicting,
    "sghmc step": sampling,
    "full-data gradient": gradient,
    "kronecker fit": kronecker,
    "adapter step": adapter,
    "adapter draws": adapter_draws,
}


def done(name: str, bench: Bench) -> Numbers:
    """Return what a part found, or why it found nothing."""
    began = time.monotonic()
    try:
        if began > bench.until:
            raise Skipped("the time is over")
        results: Numbers = {"status": "done", **PARTS[name](bench)}
    except Skipped as reason:
        results = {"status": "skipped", "reason": str(reason)}
    except Exception as error:
        traceback.print_exc()
        results = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {**results, "took": round(time.monotonic() - began, 2)}


def line(name: str, results: Numbers) -> str:
    """Return a part in a line."""
    if "aim" in results:
        value = f"{results['ratio']:.2f}" if "ratio" in results else f"{results['share']:.0%}"
        said = f"{value}, aim {results['aim']}: {'met' if results['met'] else 'missed'}"
    else:
        said = results.get("reason", results.get("said", results.get("backend", "")))
    return f"{name}: {results['status']}{': ' if said else ''}{said} ({results['took']} s)"


def main(arguments: list[str] | None = None) -> int:
    """Run the parts, and return the exit status.

    Args:
        arguments: those of the command line if None.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to see that this program runs")
    parser.add_argument("--small", action="store_true", help="tiny sizes, whose times mean nothing")
    parser.add_argument("--seconds", type=float, default=570.0, help="no part begins later than this")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="the file that is written")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=[*PARTS], help="all if not given")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing was run")
        return NO_DEVICE
    sizes = works.SMALL if options.small else works.Sizes()
    bench = Bench(device, sizes, time.monotonic() + options.seconds, options.small)
    parts: dict[str, Numbers] = {}
    for name in options.parts:
        parts[name] = done(name, bench)
        print(line(name, parts[name]), flush=True)
    about = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__, "torchbayes": tb.__version__, "small": options.small,
    }  # fmt: skip
    options.out.write_text(json.dumps({**about, "parts": parts}, indent=2) + "\n", encoding="utf-8")
    return int(any(results["status"] == "failed" for results in parts.values()))


if __name__ == "__main__":
    sys.exit(main())
