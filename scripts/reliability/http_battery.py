"""Hostile clients of `witan serve`: http_battery.py PORT PID KEY REQUESTS SEED. Uses the standard library alone.

Prints a line with counts for each part, and ends with 1 at the first answer that is not what it must be.
"""
import json
import random
import socket
import sys
import threading
import time

PORT, PID, KEY, REQUESTS, SEED = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
HOST = "Host: localhost\r\n"
AUTHORIZED = f"Authorization: Bearer {KEY}\r\n"
JSON = "Content-Type: application/json\r\n"
MIB = 1 << 20
CONNECTIONS, BODIES = 256, 64 * MIB  # the server's limits (docs/serve.md)


def give_up(why):
    print(f"http: {why}", file=sys.stderr)
    sys.exit(1)


def resident():
    """MiB of the server."""
    with open(f"/proc/{PID}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def connect(timeout=60):
    return socket.create_connection(("127.0.0.1", PORT), timeout)


def send(connection, data):
    """False: the server does not take it any more."""
    try:
        connection.sendall(data if isinstance(data, bytes) else data.encode("latin-1"))
        return True
    except OSError:
        return False


def read_all(connection):
    """What comes until the connection ends."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionError:
        pass
    return received


class Client:
    """One connection that asks and waits."""

    def __init__(self):
        self.connection = connect()
        self.received = b""

    def ask(self, method, path, lines="", body=b""):
        """(status, body)"""
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        send(self.connection, f"{method} {path} HTTP/1.1\r\n{HOST}{lines}{length}\r\n".encode() + body)
        head = self.take_until(b"\r\n\r\n").decode("latin-1")
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        return int(head.split(" ", 2)[1]), self.take(int(fields["content-length"]))

    def complete(self, prompt, tokens=1):
        body = json.dumps({"prompt": prompt, "max_tokens": tokens}, ensure_ascii=False).encode()
        return self.ask("POST", "/v1/completions", AUTHORIZED + JSON, body)

    def more(self):
        piece = self.connection.recv(65536)
        if not piece:
            raise ConnectionError("the connection ended within an answer")
        self.received += piece

    def take_until(self, end):
        while end not in self.received:
            self.more()
        return self.take(self.received.index(end) + len(end))

    def take(self, count):
        while len(self.received) < count:
            self.more()
        taken, self.received = self.received[:count], self.received[count:]
        return taken


def framing_faults(rng):
    """Lines of a head, and a body, that two readers may divide differently."""
    codings = ["identity", "xchunked", "gzip", "chunked, chunked", '"chunked"', "", "chunked, gzip", "chunked;a=b",
               "gzip, chunked", "chunked,", "\x0bchunked", "chunked\x00", " chunked x", "deflate", "trailers"]
    lengths = ["+5", "-5", "5, 5", "5 5", "0x5", "", "5;", "99999999999999999999999", "5\r\nContent-Length: 6", "\t5\x0c"]
    coding, length = rng.choice(codings), rng.choice(lengths)
    line = rng.choice([
        f"Transfer-Encoding: {coding}\r\n", f"Content-Length: {length}\r\n",
        f"Transfer-Encoding: chunked\r\nContent-Length: {rng.randrange(99)}\r\n",
        f"Content-Length: {rng.randrange(99)}\r\nTransfer-Encoding: {rng.choice(['chunked', coding])}\r\n",
        "Transfer-Encoding : chunked\r\n", "Transfer-Encoding:\r\n chunked\r\n", "Transfer-Encoding: chunked\n",
        "X: a\nTransfer-Encoding: chunked\r\n", "X: a\r\n Content-Length: 5\r\n", "X: a\rY: b\r\n", HOST, " X: a\r\n",
        "Content-Length : 5\r\n", "Content\tLength: 5\r\n", "X\r\n", ": a\r\n"])
    return line, rng.choice(["", "5\r\nhello\r\n0\r\n\r\n", "0\r\n\r\n", "hello", "0\n\n", "5\nhello\n0\n\n"])


def smuggle(rng, count):
    statuses = {}
    for _ in range(count):
        line, body = framing_faults(rng)
        noise = "".join(f"X-{rng.randrange(999)}: {rng.randrange(10**9)}\r\n" for _ in range(rng.randrange(4)))
        hidden = f"GET /v1/hidden HTTP/1.1\r\n{HOST}{AUTHORIZED}\r\n"
        connection = connect()
        send(connection, f"POST /v1/completions HTTP/1.1\r\n{HOST}{AUTHORIZED}{JSON}{noise}{line}\r\n{body}{hidden}")
        answer = read_all(connection)
        connection.close()
        status = answer[9:12].decode()
        statuses[status] = statuses.get(status, 0) + 1
        if answer.count(b"HTTP/1.1 ") != 1 or b"hidden" in answer or status not in ("400", "501"):
            give_up(f"{line!r} with the body {body!r} was answered with {answer!r}")
    print(f"http: {count} requests with faulty framing: each refused ({statuses}), what followed never answered")


def hold(count, lines, sent):
    """The server's memory before, at most, and after `count` bodies that do not end; statuses of what it refuses."""
    before, peak, statuses, held = resident(), 0.0, {}, []
    piece = bytes(64 << 10)
    for _ in range(count):
        connection = connect()
        head = f"POST /v1/completions HTTP/1.1\r\n{HOST}{lines}{JSON}Content-Length: {8 * MIB}\r\n\r\n"
        connection.settimeout(5)
        if send(connection, head):
            for _ in range(sent // len(piece)):
                if not send(connection, piece):
                    break
        held.append(connection)
        peak = max(peak, resident())
    for connection in held:
        connection.settimeout(0.01)
        try:
            status = connection.recv(12)[9:12].decode() or "closed"
        except TimeoutError:
            status = "waits"
        except OSError:
            status = "closed"
        statuses[status] = statuses.get(status, 0) + 1
        connection.close()
    deadline = time.monotonic() + 20
    while resident() > before + 16 and time.monotonic() < deadline:
        time.sleep(0.1)
    return before, peak, resident(), statuses


def hold_bodies():
    for count, lines, most, who in ((60, "", 16, "without a key"), (250, "", 32, "without a key"),
                                    (250, AUTHORIZED, BODIES / MIB + 64, "with the key")):
        before, peak, after, statuses = hold(count, lines, 7 * MIB)
        what = f"{count} bodies of 7 MiB {who}: {before:.0f} MiB before, {peak:.0f} at most, {after:.0f} after"
        if peak > before + most or after > before + 32:
            give_up(f"{what}: too much")
        print(f"http: {what}; {statuses}")


def longest_wait(times, ask):
    longest = 0.0
    for _ in range(times):
        begun = time.monotonic()
        ask()
        longest = max(longest, time.monotonic() - begun)
    return longest


def ask_anew():
    client = Client()
    status, _ = client.complete("The king")
    client.connection.close()
    if status != 200:
        give_up(f"a good client was answered with {status}")


def slow_connections(count):
    slow = []
    for i in range(count):
        connection = connect()
        send(connection, ("GET /health HTTP/1.1\r\nX: ", "", f"POST /v1/completions HTTP/1.1\r\n{HOST}{AUTHORIZED}{JSON}"
                          "Content-Length: 100\r\n\r\n{")[i % 3])
        slow.append(connection)
    ended = threading.Event()

    def drip():
        while not ended.wait(0.2):
            for connection in slow:
                send(connection, "a")

    dripping = threading.Thread(target=drip)
    dripping.start()
    longest = longest_wait(50, ask_anew)
    ended.set()
    dripping.join()
    for connection in slow:
        connection.close()
    if longest > 5:
        give_up(f"beside {count} slow connections a good client waited {longest:.1f} s")
    print(f"http: beside {count} slow connections of {CONNECTIONS} allowed: 50 good clients, the longest wait {longest:.2f} s")


def long_prompts(count):
    texts = ["a" * (7 * MIB), "the ship " * (7 * MIB // 9), "\u00e9" * (3 * MIB)]
    answers = []

    def ask(text):
        answers.append(Client().complete(text))

    asking = [threading.Thread(target=ask, args=(texts[i % len(texts)],)) for i in range(count)]
    for thread in asking:
        thread.start()
    longest = longest_wait(30, ask_anew)
    for thread in asking:
        thread.join()
    for status, body in answers:
        if status != 503 and b"context_length_exceeded" not in body:
            give_up(f"a prompt of megabytes was answered with {status} {body[:200]!r}")
    if longest > 5:
        give_up(f"beside prompts of 7 MiB a good client waited {longest:.1f} s")
    refused = sum(status == 400 for status, _ in answers)
    print(f"http: {count} prompts of 6 to 7 MiB: {refused} too long, {count - refused} asked to come again (503); beside them "
          f"30 good clients, the longest wait {longest:.2f} s")


def many_requests(rng, count):
    kinds = [("GET", "/health", "", b"", 200), ("HEAD_", "/health", "", b"", 405), ("GET", "/v1/models", AUTHORIZED, b"", 200),
             ("GET", "/v1/models", "", b"", 401), ("GET", "/v1/none", AUTHORIZED, b"", 404),
             ("GET", "/v1/completions", AUTHORIZED, b"", 405), ("POST", "/v1/completions", AUTHORIZED + JSON, b"{", 400),
             ("POST", "/v1/completions", AUTHORIZED + JSON, b'{"prompt": []}', 400),
             ("POST", "/v1/completions", AUTHORIZED + JSON, b'{"prompt": "a", "max_tokens": 0}', 200)]
    statuses, lock, wrong = {}, threading.Lock(), []

    def ask(share, seed):
        own = random.Random(seed)
        client = Client()
        mine = {}
        for _ in range(share):
            method, path, lines, body, expected = own.choice(kinds)
            status, answer = client.ask(method, path, lines, body)
            mine[status] = mine.get(status, 0) + 1
            if status != expected:
                wrong.append((method, path, lines, body, status, answer[:200]))
                break
            if own.random() < 0.01:
                client.connection.close()
                client = Client()
        with lock:
            for status, number in mine.items():
                statuses[status] = statuses.get(status, 0) + number

    for name, share in (("warm", count // 10), ("all", count - count // 10)):
        threads = [threading.Thread(target=ask, args=(share // 8, rng.random())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if wrong:
            give_up(f"not what was expected: {wrong[0]}")
        if name == "warm":
            before = resident()
    after = resident()
    if after > before + 16:
        give_up(f"the server grew from {before:.0f} to {after:.0f} MiB")
    print(f"http: {sum(statuses.values())} requests over 8 connections at a time: {dict(sorted(statuses.items()))}, none "
          f"otherwise; {before:.0f} MiB after a tenth of them, {after:.0f} at the end")


def main():
    rng = random.Random(SEED)
    smuggle(rng, max(100, REQUESTS // 50))
    hold_bodies()
    slow_connections(300)
    long_prompts(12)
    many_requests(rng, REQUESTS)
    ask_anew()


main()
