"""Files that the pages take for given: a table, images and a module of a user, in the folder where lines are tried."""

from pathlib import Path

import numpy as np
from PIL import Image

MODULE = '''"""What a user would write."""

import numpy as np
from torch import nn


def load(rows=200):
    inputs = np.random.default_rng(0).normal(size=(rows, 3))
    return inputs, np.where(inputs[:, 0] > 0, "yes", "no")


def build(input_shape, num_outputs, width=20):
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Tanh(), nn.Linear(width, num_outputs))
'''


def write_examples(folder: Path) -> None:
    """Write houses.csv, new_houses.csv, photos/, new_photos/ and my_module.py.

    Args:
        folder: where.
    """
    rng = np.random.default_rng(0)
    for name, rows in {"houses.csv": 300, "new_houses.csv": 20}.items():
        area, age, place = rng.uniform(40, 200, rows), rng.uniform(0, 80, rows), rng.integers(0, 3, rows)
        price = 3000 * area - 1500 * age + 40_000 * place + 8000 * rng.normal(size=rows)
        places = np.array(["centre", "suburb", "village"])[place]
        lines = [f"{a:.1f},{b:.0f},{c},{d:.0f}" for a, b, c, d in zip(area, age, places, price, strict=True)]
        (folder / name).write_text("\n".join(["area,age,place,price", *lines]) + "\n")
    for kind, shade in {"cat": 90, "dog": 150}.items():
        for name, count in {"photos": 60, "new_photos": 5}.items():
            place = folder / name / (kind if name == "photos" else "")
            place.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = np.clip(shade + 40 * rng.normal(size=(16, 16, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{kind}{i}.png")
    (folder / "my_module.py").write_text(MODULE)
