"""Time: a finding on a hang is complete within three time limits."""

from tests.attacks.attack import FAIL, PASS, UNVERIFIED, Attack

_LATE = "does not answer within"

ATTACKS = (
    Attack("sixtieth_call", FAIL, _LATE, "if n >= 60: time.sleep(99)"),
    Attack("one_shape", FAIL, _LATE, "if hit: time.sleep(99)"),
    Attack("in_del", FAIL, _LATE, "if hit: E()", "class E:\n    def __del__(self): time.sleep(99)"),
    Attack(
        "holds_the_lock",
        FAIL,
        _LATE,
        """
        if hit:
            libc = ctypes.PyDLL(None)  # keeps the interpreter's lock
            threading.Thread(target=libc.sleep, args=(99,), daemon=True).start()
            time.sleep(0.1)
        """,
    ),
    Attack("stops_itself", FAIL, _LATE, "if hit: os.kill(os.getpid(), signal.SIGSTOP)"),
    Attack(
        "ignores_signals",
        FAIL,
        _LATE,
        "if hit: signal.pthread_sigmask(0, range(1, 64)); time.sleep(99)",
    ),
    Attack(
        "slow_once",
        UNVERIFIED,
        "once, not again",
        """
        if hit and not os.path.exists(__file__ + ".done"):
            open(__file__ + ".done", "w").close(); time.sleep(99)
        """,
    ),
    Attack("just_in_time", PASS, "", "if n == 9: time.sleep(1.2)"),
)
FIRST_CALL = Attack("first_call", FAIL, _LATE, "time.sleep(99)")
"""Each case takes a time limit: whoever does not wait for the end must have the finding."""
