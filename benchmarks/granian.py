"""What granian serves when the benchmarks ask it to."""

import os

from sessionstore_api.serve import spare_the_collector

from benchmarks.server import application as make

application = make(os.environ["BENCH_DATABASE"])
spare_the_collector()
