"""The proof of a takeover for scripts/test-cluster.sh: a client that notes what was acknowledged, and a check of what
is left.

usage: takeover.py write SOCKET EXPORT LOG     writes blocks and flushes until an error; then LOG has all of it
       takeover.py check LOG IMAGE JSON        the image of the new host, by the words of `voltier takeover --json`
       takeover.py kept LOG IMAGE              what the SSD of the old host has, over a copy of the image
"""

import json
import os
import random
import socket
import struct
import sys
import time

BLOCK = 4096
BLOCKS = 2048
READ_MAGIC, REPLY_MAGIC = 0x25609513, 0x67446698
WRITE, FLUSH = 1, 3


def exactly(sock, size):
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise OSError("the server has closed the connection")
        data += part
    return data


def connect(path, export):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    exactly(sock, 18)
    name = export.encode()
    sock.sendall(struct.pack(">IQII", 3, 0x49484156454F5054, 1, len(name)) + name)
    exactly(sock, 10)
    return sock


def request(sock, number, kind, offset, data):
    size = len(data)
    sock.sendall(struct.pack(">IHHQQI", READ_MAGIC, 0, kind, number, offset, size) + data)
    magic, error, handle = struct.unpack(">IIQ", exactly(sock, 16))
    if magic != REPLY_MAGIC or handle != number:
        raise OSError("not a reply")
    if error:
        raise OSError(error, "refused")


def write(path, export, log):
    draw = random.Random(os.getpid())
    done, sock = [], connect(path, export)
    number, until_flush = 0, 1
    try:
        while True:
            number += 1
            block = draw.randrange(BLOCKS)
            until_flush -= 1
            if until_flush == 0:
                until_flush = draw.randrange(1, 48)
                request(sock, number, FLUSH, 0, b"")
                done.append(("flush", number, 0, time.time()))
                continue
            done.append(("begun", number, block, 0))
            request(sock, number, WRITE, block * BLOCK, struct.pack("<Q", number) * (BLOCK // 8))
            done[-1] = ("write", number, block, time.time())
    except OSError:
        pass
    with open(log, "w") as file:
        file.writelines(f"{kind} {number} {block} {at:.6f}\n" for kind, number, block, at in done)


def read_log(log):
    with open(log) as file:
        fields = (line.split() for line in file)
        return [(kind, int(number), int(block), float(at)) for kind, number, block, at in fields]


def read_image(image):
    """The number of the write in each block."""
    found = []
    with open(image, "rb") as file:
        for block in range(BLOCKS):
            data = file.read(BLOCK)
            number = data[:8]
            assert data == number * (BLOCK // 8), f"block {block} is torn"
            found.append(struct.unpack("<Q", number)[0])
    return found


def check(log, image, answer):
    done, found = read_log(log), read_image(image)
    with open(answer) as file:
        taken = json.load(file)
    # The flush that the image holds, and part of the writes up to the next one.
    epoch, epochs, of_block = 0, {0: 0}, [[(0, 0)] for _ in range(BLOCKS)]
    for kind, number, block, _ in done:
        if kind == "flush":
            epoch += 1
        else:
            epochs[number] = epoch
            of_block[block].append((number, epoch))
    least, most = 0, epoch
    for block, number in enumerate(found):
        writes = of_block[block]
        at = next((at for at, write in enumerate(writes) if write[0] == number), None)
        assert at is not None, f"block {block} has {number}, which nobody wrote there"
        least = max(least, writes[at][1])
        if at + 1 < len(writes):
            most = min(most, writes[at + 1][1])
    assert least <= most, f"no moment of the past: writes after flush {least} beside the lack of some before {most}"
    acknowledged = [it for it in done if it[0] == "write"]
    lost = [it for it in acknowledged if found[it[2]] < it[1]]
    # What the answer says: all that was acknowledged before this is there.
    complete = taken["report"]["complete_unix_ms"] / 1000
    too_much = [it for it in lost if it[3] <= complete]
    assert not too_much, f"lost although the answer says that it is there: {too_much[0]}, {complete}"
    reported = taken["report"]["unix_ms"] / 1000
    before = {it[2] for it in lost if it[3] <= reported}
    size = taken["report"]["unshipped_bytes"]
    assert len(before) * BLOCK <= size, f"{len(before)} blocks lost of the {size} bytes that the answer says"
    last = acknowledged[-1][3]
    first = f"the first {(lost[0][3] - complete) * 1000:.0f} ms after the moment that it says" if lost else "none"
    print(
        f"   {len(acknowledged)} writes acknowledged, flush {least} of {epoch} is on the image, {len(lost)} lost: "
        f"{first}; {(last - reported) * 1000:.0f} ms of writes after the last report"
    )


def kept(log, image):
    done, found = read_log(log), read_image(image)
    newest, begun = [0] * BLOCKS, [0] * BLOCKS
    for kind, number, block, _ in done:
        if kind == "write":
            newest[block] = number
        if kind != "flush":
            begun[block] = number
    for block, number in enumerate(found):
        assert newest[block] <= number <= begun[block], f"block {block}: {number}, acknowledged {newest[block]}"


if __name__ == "__main__":
    {"write": write, "check": check, "kept": kept}[sys.argv[1]](*sys.argv[2:])
