"""Normal numbers for one step of a sampler: our counter-based ones against PyTorch's `normal_`.

The size is the number of weights of an MLP 784-400-400-10. PyTorch's own run on one thread whatever is granted; ours
are the same bits with any number of threads.
"""

from __future__ import annotations

import torch

from benchmarks.harness import race, report
from torchbayes.native.noise import fill_normal, fill_normal_rows

SIZE, MEMBERS = 478_410, 4


def main() -> None:
    """Print a table for one member and for several, in float32 and float64."""
    for dtype in (torch.float32, torch.float64):
        for members in (1, MEMBERS):
            out_MD = torch.empty(members, SIZE, dtype=dtype)
            generators = [torch.Generator().manual_seed(member) for member in range(members)]

            def pytorch(out_MD: torch.Tensor = out_MD, generators: list[torch.Generator] = generators) -> None:
                for row, generator in zip(out_MD, generators, strict=True):
                    row.normal_(generator=generator)

            def ours(out_MD: torch.Tensor = out_MD, members: int = members) -> None:
                if members == 1:
                    fill_normal(out_MD, seed=0, stream=1)
                else:
                    fill_normal_rows(out_MD, range(members), 1)

            timings = race({"normal_": pytorch, "fill_normal": ours}, rounds=9)
            each = ", ".join(f"{t.name} {t.median / out_MD.numel() * 1e9:.2f} ns a number" for t in timings)
            report(
                f"{members} × {SIZE:,} normal numbers, {str(dtype).removeprefix('torch.')}", timings, "normal_", each
            )


if __name__ == "__main__":
    main()
