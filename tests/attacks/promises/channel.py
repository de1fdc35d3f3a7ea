"""The channel: no byte that a candidate writes is taken for a reply.

Out of scope, as SECURITY.md says: a candidate that finds the nonce of the request in its own
memory can forge the reply, and so lie about its own outputs.
"""

from tests.attacks.attack import FAIL, PASS, Attack

_SOCKETS = """
def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield int(name)
        except OSError:
            pass
def frame(payload, nonce=b"n" * 16, size=None):
    return b"\\xa7npf" + nonce + struct.pack("!Q", len(payload) if size is None else size) + payload
def own_channel():
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "_channel"):
        frame = frame.f_back
    return frame.f_locals["self"]._channel
"""
_WRITES = "writes to the channel"
_GONE = "closes the channel|ends the process|writes to the channel|crashes"


def _written(name: str, data: str) -> Attack:
    return Attack(
        name,
        FAIL,
        _WRITES,
        f"for s in sockets() if hit else (): os.write(s, {data}); time.sleep(0.3)",
        _SOCKETS,
    )


ATTACKS = (
    _written("one_byte", "b'x'"),
    _written("the_mark", "frame(b'')[:4]"),
    _written("half_a_header", "frame(b'')[:11]"),
    _written("forged_reply", "frame(b'\\x81')"),
    _written("forged_later", "frame(b'') * 2"),
    _written("huge_length", "frame(b'abc', size=1 << 62)"),
    _written("flood", "b'\\xa7npf' * 30_000"),
    Attack(
        "every_descriptor",
        FAIL,
        "",
        """
        for fd in range(0, 64) if hit else ():
            try: os.write(fd, b"z" * (1 + 997 * (fd % 5)))
            except OSError: pass
        """,
    ),
    Attack("closes_it", FAIL, _GONE, "for s in sockets() if hit else (): os.close(s)", _SOCKETS),
    Attack("closes_all", FAIL, _GONE, "os.closerange(0, 4096) if hit else None"),
    Attack(
        "shuts_it_down",
        FAIL,
        _GONE,
        """
        for s in sockets() if hit else ():
            socket.socket(fileno=s).shutdown(socket.SHUT_RDWR)
        """,
        _SOCKETS,
    ),
    Attack(
        "dup2_over_all",
        FAIL,
        "",
        """
        if hit:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(10): os.dup2(null, fd)
        """,
    ),
    Attack(
        "stdout_is_the_channel",
        FAIL,
        "",
        "os.dup2([*sockets()][0], 1) and print(3, flush=True)",
        _SOCKETS,
    ),
    Attack(
        "replies_twice", FAIL, _WRITES, "own_channel().send(b'\\x80') if hit else None", _SOCKETS
    ),
    Attack(
        "replies_in_a_thread",
        FAIL,
        _WRITES,
        """
        if hit:
            channel = own_channel()
            thread = threading.Thread(target=lambda: [channel.send(b"x" * 9) for _ in range(50)])
            thread.start(); thread.join()
        """,
        _SOCKETS,
    ),
    Attack(
        "fork_replies",
        FAIL,
        "",
        """
        if hit and not os.fork():
            own_channel()._pid = os.getpid()
            own_channel().send(b"forged"); os._exit(0)
        """,
        _SOCKETS,
    ),
    Attack("fork_returns", FAIL, "", "if hit: os.fork()\nr = not r"),
    Attack("fork_and_parent_ends", FAIL, "", "if hit and os.fork(): os._exit(0)"),
    Attack(
        "reads_the_requests",
        FAIL,
        "",
        """
        for s in sockets() if hit else ():
            os.set_blocking(s, False); socket.socket(fileno=os.dup(s)).recv(99)
        """,
        _SOCKETS,
    ),
    Attack("nothing", PASS, "", "pass"),
)
