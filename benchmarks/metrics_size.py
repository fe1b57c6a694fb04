"""Print what stored metrics of real nodes take, from the samples of a store in a directory.

    python benchmarks/metrics_size.py DIRECTORY

The size per hour is that of 240 samples (one each 15 s). It is too high for a short recording, because an object has
the labels of its series once.
"""

import argparse
from pathlib import Path

from rayhistory.metrics.samples import decode

SAMPLES_PER_HOUR = 240


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the size of stored metrics per node and hour.")
    parser.add_argument("directory", type=Path)
    for path in sorted(parser.parse_args().directory.glob("**/ray-history/metrics/**/*.msgpack.zst")):
        data = path.read_bytes()
        samples = decode(data)
        minutes = (samples.times[-1] - samples.times[0]) / 60_000
        hourly = len(data) / len(samples.times) * SAMPLES_PER_HOUR / 1000
        print(
            f"{path.parent.name[:12]}: {len(samples.series)} series, {len(samples.times)} samples in "
            f"{minutes:.0f} minutes, {len(data) / 1000:.0f} kB: {hourly:.0f} kB per hour at 15 s"
        )


if __name__ == "__main__":
    main()
