"""Miss ratios by libCacheSim, and by models of what differs: the cross-check of `cargo xtask bench mrc`.

usage: miss_ratios.py TRACE FORMAT SEEDS MODELS SIZE...

Reads a trace itself (u32: block numbers of 32 bits; lis: lines of `start count ...`; packed with
zstd or xz), counts misses of every policy at caches of SIZE blocks, and prints one JSON object.
MODELS is 1 to count those of s3fifo in Python too, which take a minute where libCacheSim takes a second.
"""

import array
import collections
import json
import random
import subprocess
import sys

import libcachesim


def unpacked(path):
    for ending, program in ((".zst", "zstd"), (".xz", "xz"), (".gz", "gzip")):
        if path.endswith(ending):
            return subprocess.run([program, "-dc", path], check=True, capture_output=True).stdout
    with open(path, "rb") as file:
        return file.read()


def blocks(path, form):
    data = unpacked(path)
    numbers = array.array("I")
    if form == "u32":
        numbers.frombytes(data)
        return numbers
    for line in data.splitlines():
        start, count = line.split()[:2]
        numbers.extend(range(int(start), int(start) + int(count)))
    return numbers


def by_libcachesim(cache, trace):
    request = libcachesim.Request()
    request.obj_size = 1
    misses = 0
    for block in trace:
        request.obj_id = block
        misses += not cache.get(request)
    return misses / len(trace)


def uniform(capacity, trace, seed):
    """Replacement of a block drawn with equal chances, in ten lines."""
    dice, place, cached, misses = random.Random(seed), {}, [], 0
    for block in trace:
        if block in place:
            continue
        misses += 1
        if len(cached) < capacity:
            place[block] = len(cached)
            cached.append(block)
            continue
        slot = dice.randrange(capacity)
        del place[cached[slot]]
        cached[slot], place[block] = block, slot
    return misses / len(trace)


MASK = (1 << 64) - 1


def spread(number):
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


class Fingerprints:
    """The ghost as Voltier keeps it: eight bits of each, in sets of eight."""

    def __init__(self, capacity):
        self.sets = [[0] * 8 for _ in range(max(capacity // 8 * 3 // 8, 1))]

    def place(self, line):
        bits = spread(line)
        return self.sets[(bits * len(self.sets)) >> 64], max(bits & 255, 1)

    def put(self, line):
        known, bits = self.place(line)
        known.pop()
        known.insert(0, bits)

    def take(self, line):
        known, bits = self.place(line)
        if bits not in known:
            return False
        known.remove(bits)
        known.append(0)
        return True


class Names:
    """The ghost as libCacheSim keeps it: whole names, first in, first out."""

    def __init__(self, capacity):
        self.names, self.limit = collections.OrderedDict(), int(capacity * 0.375)

    def put(self, line):
        if len(self.names) >= self.limit:
            self.names.popitem(last=False)
        self.names[line] = True

    def take(self, line):
        return self.names.pop(line, False)


class S3Fifo:
    """S3-FIFO as Voltier has it, with what differs from libCacheSim's to be chosen."""

    def __init__(self, capacity, ghost, has_queue):
        self.capacity, self.ghost, self.has_queue = capacity, ghost(capacity), has_queue
        slots = capacity + capacity // 13 + 1
        self.slots, self.line_at, self.slot_of = slots, [None] * slots, {}
        self.uses, self.is_small = [0] * slots, [False] * slots
        self.append_at = self.clock = 0
        self.target = max(capacity // 20, 1)
        self.small, self.main = collections.deque(), collections.deque()

    def get(self, line):
        slot = self.slot_of.get(line)
        if slot is not None:
            self.uses[slot] = min(self.uses[slot] + 1, 3)
            return True
        while len(self.slot_of) >= self.capacity:
            slot = self.victim()
            if slot is not None:
                self.remove(slot)
        while self.line_at[self.append_at] is not None:
            self.append_at = (self.append_at + 1) % self.slots
        slot = self.append_at
        self.line_at[slot], self.slot_of[line] = line, slot
        goes_to_small = not self.ghost.take(line) and len(self.small) < self.target
        if goes_to_small:
            self.small.append(line)
        elif self.has_queue:
            self.main.append(line)
        self.is_small[slot], self.uses[slot] = goes_to_small, 0
        return False

    def remove(self, slot):
        line = self.line_at[slot]
        self.line_at[slot] = None
        del self.slot_of[line]
        if self.is_small[slot]:
            self.ghost.put(line)
            self.small.popleft()
        self.is_small[slot], self.uses[slot] = False, 0

    def victim(self):
        first, second = self.of_small, self.of_main
        if len(self.small) < self.target:
            first, second = second, first
        slot = first()
        return second() if slot is None else slot

    def of_small(self):
        while self.small:
            line = self.small[0]
            slot = self.slot_of.get(line)
            if slot is not None and self.is_small[slot]:
                if self.uses[slot] < 2:
                    return slot
                self.is_small[slot], self.uses[slot] = False, 0
                self.main.append(line)
            self.small.popleft()
        return None

    def of_main(self):
        if not self.has_queue:
            return self.of_clock()
        while self.main:
            line = self.main.popleft()
            slot = self.slot_of[line]
            if self.uses[slot] == 0:
                return slot
            self.uses[slot] -= 1
            self.main.append(line)
        return None

    def of_clock(self):
        coldest = None
        for _ in range(min(256, 4 * self.slots)):
            slot = self.clock
            uses = self.uses[slot]
            self.clock = (slot + 1) % self.slots
            if self.is_small[slot]:
                continue
            if self.line_at[slot] is not None:
                if uses == 0:
                    return slot
                if coldest is None or uses < coldest[0]:
                    coldest = (uses, slot)
            self.uses[slot] = max(uses - 1, 0)
        return None if coldest is None else coldest[1]


def by_model(capacity, trace, ghost, has_queue):
    cache = S3Fifo(capacity, ghost, has_queue)
    return sum(not cache.get(block) for block in trace) / len(trace)


def main():
    path, form, seeds, models = sys.argv[1:5]
    trace, points = blocks(path, form), []
    for size in map(int, sys.argv[5:]):
        seeds_of = range(1, int(seeds) + 1)
        point = {
            "lines": size,
            "lru": by_libcachesim(libcachesim.LRU(size), trace),
            "fifo": by_libcachesim(libcachesim.FIFO(size), trace),
            # A table of many places: theirs draws places, and of those that share one only the first.
            "rand": [by_libcachesim(libcachesim.Random(size, hashpower=28), trace) for _ in seeds_of],
            "uniform": [uniform(size, trace, seed) for seed in seeds_of],
            # The sizes of Voltier's small queue and ghost.
            "s3fifo": by_libcachesim(
                libcachesim.S3FIFO(size, small_size_ratio=0.05, ghost_size_ratio=0.375), trace
            ),
            "s3fifo_default": by_libcachesim(libcachesim.S3FIFO(size), trace),
        }
        if models == "1":
            point["s3fifo_model"] = by_model(size, trace, Fingerprints, False)
            point["s3fifo_names_queue_model"] = by_model(size, trace, Names, True)
        points.append(point)
        print(f"{path}: {size} blocks done", file=sys.stderr, flush=True)
    print(json.dumps({"references": len(trace), "blocks": len(set(trace)), "points": points}))


main()
