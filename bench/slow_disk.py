#!/usr/bin/env python3
"""Training from a disk that answers late, as a remote one does: how long steps wait for data, and who reads.

    bench/slow_disk.py --tokenizer FILE [--latency MS] [--shards N] [--steps N] [--program PATH] [FLAGS OF witan train]

Mounts a file system of its own (FUSE, spoken here, so that nothing needs to be installed; as root) that answers each
request for up to 128 KiB, each lookup and each open after a fixed time, 64 at once, and holds shards of tokens.
`witan train` reads them; its model is small, so that it asks for as many tokens in a second as a large one on GPUs. Of
every request the kernel tells which thread made it.
"""
import argparse
import collections
import ctypes
import errno
import heapq
import json
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

IN_HEADER = struct.Struct("<IIQQIIIHH")
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH = 1, 2, 3, 14, 15, 18, 25
INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET, READDIRPLUS = 26, 27, 28, 29, 36, 42, 44
SILENT = {FORGET, INTERRUPT, BATCH_FORGET}
DELAYED = {LOOKUP, OPEN, READ}
ASYNC_READ, PARALLEL_DIROPS = 1, 1 << 18
KEEP_CACHE = 2
AT_ONCE = 64  # requests in flight, as of an NFS client
VALID_S = 3600  # names and sizes do not change
PATTERN = 1 << 20  # bytes after which a file of random bytes repeats


class SlowFolder:
    """One folder of `files` (bytes, or the size of a file of random bytes), answered after `latency` seconds."""

    def __init__(self, files, mount_point, latency):
        self.latency = latency
        self.names, self.files = list(files), list(files.values())
        self.nodes = {name: i + 2 for i, name in enumerate(self.names)}  # 1 is the folder
        self.random = tokens_below_256(PATTERN)
        self.reads = []  # (time, thread's name, bytes)
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        MS_RDONLY = 1
        if libc.mount(b"witan-slow", mount_point.encode(), b"fuse", MS_RDONLY, options) != 0:
            raise OSError(ctypes.get_errno(), "mounting a FUSE file system")
        self.due, self.changed = [], threading.Condition()
        threading.Thread(target=self.answer_in_time, daemon=True).start()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            try:
                request = os.read(self.device, 1 << 20)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                raise
            _, opcode, unique, node, _, _, thread, _, _ = IN_HEADER.unpack_from(request)
            body = request[IN_HEADER.size :]
            if opcode in SILENT:
                continue
            if opcode == READ:
                self.reads.append((time.time(), thread_name(thread), struct.unpack_from("<QQI", body)[2]))
            when = time.monotonic() + (self.latency if opcode in DELAYED else 0)
            with self.changed:
                heapq.heappush(self.due, (when, unique, opcode, node, body))
                self.changed.notify()

    def answer_in_time(self):
        while True:
            with self.changed:
                while not self.due or self.due[0][0] > time.monotonic():
                    self.changed.wait(self.due[0][0] - time.monotonic() if self.due else None)
                _, unique, opcode, node, body = heapq.heappop(self.due)
            try:
                error, reply = 0, self.reply_to(opcode, node, body)
            except OSError as failed:
                error, reply = -failed.errno, b""
            try:
                os.write(self.device, struct.pack("<IiQ", 16 + len(reply), error, unique) + reply)
            except OSError:  # given up by the asker, or unmounted
                pass

    def reply_to(self, opcode, node, body):
        if opcode == INIT:
            # version, read-ahead, flags, requests in flight, largest write, time granularity, the rest
            flags = ASYNC_READ | PARALLEL_DIROPS
            return struct.pack("<IIIIHHII", 7, 31, 1 << 17, flags, AT_ONCE, AT_ONCE, 4096, 1) + bytes(36)
        if opcode == LOOKUP:
            name = body.rstrip(b"\0").decode()
            if name not in self.nodes:
                # A miss that is remembered, as NFS does.
                return struct.pack("<QQQQII", 0, 0, VALID_S, VALID_S, 0, 0) + bytes(88)
            found = self.nodes[name]
            return struct.pack("<QQQQII", found, 0, VALID_S, VALID_S, 0, 0) + self.attributes(found)
        if opcode == GETATTR:
            return struct.pack("<QII", VALID_S, 0, 0) + self.attributes(node)
        if opcode == OPEN:
            return struct.pack("<QII", node, KEEP_CACHE, 0)
        if opcode == OPENDIR:
            return struct.pack("<QII", 0, 0, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self.bytes_of(self.files[node - 2], offset, size)
        if opcode == READDIR:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self.entries(offset, size)
        if opcode in (RELEASE, RELEASEDIR, FLUSH):
            return b""
        raise OSError(errno.ENOSYS, "")

    def attributes(self, node):
        if node == 1:
            mode, size = stat.S_IFDIR | 0o755, 0
        else:
            file = self.files[node - 2]
            mode, size = stat.S_IFREG | 0o644, file if isinstance(file, int) else len(file)
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, size // 512 + 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def bytes_of(self, file, offset, size):
        if not isinstance(file, int):
            return file[offset : offset + size]
        size, at = min(size, file - offset), offset % PATTERN
        return (self.random[at:] + self.random)[:size]

    def entries(self, offset, size):
        reply = b""
        for i in range(offset, len(self.names)):
            name = self.names[i].encode()
            entry = struct.pack("<QQII", i + 2, i + 1, len(name), 8) + name
            entry += bytes(-len(entry) % 8)
            if len(reply) + len(entry) > size:
                break
            reply += entry
        return reply


def thread_name(thread):
    try:
        with open(f"/proc/{thread}/comm") as file:
            return file.read().strip()
    except OSError:
        return "ended"


def tokens_below_256(size):
    """u16, so that every second byte is 0."""
    return random.randbytes(size // 2).decode("latin-1").encode("utf-16-le")


def make_shards(shards, tokens):
    """Pairs of .bin and .idx with documents of 10,000 tokens, u16."""
    count, length = tokens // shards // 10_000, 10_000
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1)
    index += struct.pack(f"<{count}i", *[length] * count)
    index += struct.pack(f"<{count}q", *range(0, 2 * length * count, 2 * length))
    index += struct.pack(f"<{count + 1}q", *range(count + 1))
    files = {}
    for i in range(shards):
        files[f"shard-{i:05d}.bin"], files[f"shard-{i:05d}.idx"] = 2 * length * count, index
    return files


def serve(files, mount_point, latency, ready, log):
    """In a process of its own; writes down its reads when it is asked to end."""
    folder = SlowFolder(files, mount_point, latency)
    os.write(ready, b"1")
    signal.sigwait([signal.SIGUSR1])
    with open(log, "w") as file:
        json.dump(folder.reads, file)
    os._exit(0)


def steps_of(metrics):
    if not os.path.exists(metrics):
        return []
    with open(metrics) as file:
        events = [json.loads(line) for line in file if line.endswith("\n")]
    return [event for event in events if event.get("kind") == "step"]


def train(args, flags, data, runs):
    """Returns the steps, when the first one was seen, and when the program was started."""
    command = [args.program, "train", "--runs-folder", runs, "--data-path", data, "--train-iters", str(args.steps)]
    command += "--num-layers 1 --hidden-size 32 --num-attention-heads 2 --num-experts 2 --ffn-hidden-size 32".split()
    command += "--seq-length 256 --micro-batch-size 16 --global-batch-size 16 --threads 1 --ranks 1".split()
    command += "--eval-iters 1 --eval-interval 0 --save-interval 0 --sample-tokens 0".split() + flags
    metrics = os.path.join(runs, "default", "metrics.jsonl")
    started, first = time.time(), None
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:
        if first is None and steps_of(metrics):
            first = time.time()
        time.sleep(0.002)
    if process.returncode != 0:
        sys.exit(process.stderr.read().decode())
    return steps_of(metrics), first or time.time(), started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=20, help="milliseconds")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2_000_000_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--program", default="build/release/witan")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json of 256 entries or some thousand: the model has a row for each")
    args, flags = parser.parse_known_args()
    flags += ["--tokenizer", args.tokenizer]

    with tempfile.TemporaryDirectory() as folder:
        mount_point, log = os.path.join(folder, "slow"), os.path.join(folder, "reads.json")
        os.mkdir(mount_point)
        ready, tell = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        server = os.fork()
        if server == 0:
            serve(make_shards(args.shards, args.tokens), mount_point, args.latency / 1000, tell, log)
        os.read(ready, 1)
        try:
            steps, first, started = train(args, flags, mount_point, os.path.join(folder, "runs"))
        finally:
            os.kill(server, signal.SIGUSR1)
            os.waitpid(server, 0)
            subprocess.run(["umount", "-l", mount_point], check=False)
        with open(log) as file:
            reads = json.load(file)

    later = steps[len(steps) // 10 :]
    waits = [step["data_wait_s"] for step in later]
    seconds = sum(step["step_s"] for step in later)
    tokens = len(later) * 16 * 256
    by_thread = collections.Counter(name for when, name, _ in reads if when > first)
    print(f"{args.latency:g} ms: {len(later)} steps of {1000 * seconds / len(later):.1f} ms, "
          f"{tokens / seconds:.0f} tokens/s; waits for data {1000 * sum(waits):.1f} ms in all, {1000 * max(waits):.2f} ms at most; "
          f"first step after {first - started:.1f} s; reads after it by thread: {dict(by_thread)}")


if __name__ == "__main__":
    main()
