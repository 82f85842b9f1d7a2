"""Writes the held-out questions of each skill, 200 a skill where there are so many, one JSON object a line.

python -m training.make_suites OUT [--seed 11]
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from training.skills import SKILLS, Sample, draw


def suite(skill: str, seed: int, count: int) -> list[Sample]:
    r = random.Random(seed)
    seen: set[str] = set()
    samples: list[Sample] = []
    tries = 0
    while len(samples) < count and tries < 20_000:
        tries += 1
        sample = draw(r, held=True, skill=skill)
        # a string task is a fixed sentence: held out, it would be a task that no training run saw at all
        unseen_task = skill == "code" and "(nums)" not in sample["answer"]
        if sample["question"] not in seen and not unseen_task:
            seen.add(sample["question"])
            samples.append(sample)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("-n", "--count", type=int, default=200)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for skill in SKILLS:
        samples = suite(skill, args.seed, args.count)
        lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples]
        (args.out / f"{skill}.jsonl").write_text("".join(lines), "utf-8")
        print(skill, len(samples))


if __name__ == "__main__":
    main()
