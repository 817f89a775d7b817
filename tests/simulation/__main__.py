"""`python -m tests.simulation --seeds 1000`: as many seeds as you like, or one again."""

import argparse
import time

from tests.simulation.scenario import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--poison", action="store_true", help="with a stream that kills workers")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    start, events = time.perf_counter(), 0
    for seed in seeds:
        try:
            events += simulate(seed, poison=options.poison)
        except BaseException:
            print(f"seed {seed} fails")
            raise
    seconds = time.perf_counter() - start
    print(f"{len(seeds)} seeds, {events:,} events, {events / seconds:,.0f} events a second")


if __name__ == "__main__":
    main()
