"""The process: whatever a candidate does to its own process is a finding on its case.

Out of scope, as SECURITY.md says: a candidate that changes files of the run while it is called.
It cannot do so later, as no process of it survives.
"""

from tests.attacks.attack import FAIL, PASS, Attack

_LEAVES = "leaves processes behind"


def _ends(name: str, words: str, statement: str, before: str = "") -> Attack:
    return Attack(name, FAIL, words, f"if hit: {statement}", before)


def _left(name: str, body: str) -> Attack:
    return Attack(name, FAIL, _LEAVES, body)


ENDINGS = (
    _ends("os_exit_0", "ends the process with status 0", "os._exit(0)"),
    _ends("os_exit_70", "ends the process with status 70", "os._exit(70)"),
    _ends("sys_exit", "SystemExit|status", "sys.exit(0)"),
    _ends("kills_itself", "SIGKILL", "os.kill(os.getpid(), 9)"),
    _ends("segfault", "SIGSEGV", "ctypes.string_at(0)"),
    _ends("aborts", "SIGABRT", "os.abort()"),
    _ends("kills_its_group", "SIGTERM|SIGKILL|ends", "os.killpg(0, signal.SIGTERM)"),
    _ends("kills_its_parent", "", "os.kill(os.getppid(), 9); time.sleep(9)"),
    _ends("execs", "ends the process with status 0", "os.execv('/bin/true', ['true'])"),
    _ends("execs_python", "ends|channel", "os.execv(sys.executable, [sys.executable, '-c', '1'])"),
    _ends("alarm", "SIGALRM", "signal.alarm(1); time.sleep(1.5)"),
    _ends(
        "recursion", "RecursionError|SIGSEGV", "again(0)", "def again(x): return again(x + 1) + 1"
    ),
    _ends("recursion_limit_50", "", "sys.setrecursionlimit(50)"),
    _ends("memory_error", "MemoryError", "raise MemoryError"),
    _ends("allocates", "MemoryError|memory|RuntimeError", "torch.zeros(1 << 40)"),
    _ends(
        "descriptors",
        "OSError|EMFILE|open files|ends",
        "[os.open('/dev/null', 0) for _ in range(1 << 21)]",
    ),
    _ends(
        "rlimits",
        "",
        "[resource.setrlimit(i, (0, 0)) for i in range(16)]; bytearray(99 << 20)",
    ),
)
LEFT = (
    _left("child", "if hit: subprocess.Popen(['sleep', '99'])"),
    _left("setsid", "if hit: subprocess.Popen(['sleep', '99'], start_new_session=True)"),
    _left("clean_environ", "if hit: subprocess.Popen(['sleep', '99'], env={}, cwd='/')"),
    _left(
        "double_fork",
        """
        if hit and not os.fork():
            os.setsid()
            if not os.fork():
                signal.signal(15, signal.SIG_IGN); time.sleep(99)
            os._exit(0)
        """,
    ),
    _left("fifty_children", "for _ in range(50 * (n == 9)):\n    if not os.fork(): time.sleep(99)"),
    _left("busy_child", "if n == 9 and not os.fork():\n    while True: pass"),
    _left("stopped_child", "if n == 9 and not os.fork(): os.kill(os.getpid(), signal.SIGSTOP)"),
    _left(
        "respawning",
        """
        if n == 9 and not os.fork():
            for _ in range(200):
                time.sleep(0.01)
                if os.fork(): os._exit(0)
            time.sleep(99)
        """,
    ),
    Attack("right_with_a_helper", PASS, "", "if hit: subprocess.run(['true'], check=True)"),
    Attack(
        "right_with_a_thread",
        PASS,
        "",
        "if n == 9: threading.Thread(target=time.sleep, args=(99,)).start()",
    ),
    Attack(
        "right_with_daemon_threads",
        PASS,
        "",
        "if n < 99: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    ),
)
_WRONG = "r = not r"
STATE = (
    Attack(
        "right_signals", PASS, "", "[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 13, 14, 15)]"
    ),
    Attack("right_chdir", PASS, "", "os.chdir('/'); os.umask(0o777)"),
    Attack(
        "right_environ",
        PASS,
        "",
        "os.environ.clear(); os.environ['LC_ALL'] = 'tr_TR'; time.tzset()",
    ),
    Attack("right_without_collection", PASS, "", "gc.disable(); gc.freeze(); gc.set_threshold(1)"),
    Attack("right_atexit", PASS, "", "pass", "import atexit; atexit.register(time.sleep, 99)"),
    Attack("right_without_faulthandler", PASS, "", "import faulthandler; faulthandler.disable()"),
    Attack(
        "right_gc_callback",
        PASS,
        "",
        "pass",
        "sys.unraisablehook = lambda _: None\ngc.callbacks.append(lambda *_: 1 / 0)",
    ),
    Attack(
        "right_del_raises", PASS, "", "E()", "class E:\n    def __del__(self): raise ValueError"
    ),
    Attack(
        "right_settrace", PASS, "", "sys.settrace(lambda *_: None); sys.setprofile(lambda *_: None)"
    ),
    Attack("right_closes_sys_stdout", PASS, "", "sys.stdout.close() if n == 9 else None"),
    Attack(
        "right_stdout_raises",
        PASS,
        "",
        "sys.stdout = sys.stderr = E()",
        "class E:\n    def __getattr__(self, name): raise RuntimeError",
    ),
    Attack(
        "wrong_settrace",
        FAIL,
        "",
        f"sys.settrace(T); sys.setprofile(T)\n{_WRONG}",
        "def T(*_): raise ValueError",
    ),
    Attack("wrong_atexit", FAIL, "", _WRONG, "import atexit; atexit.register(time.sleep, 99)"),
    Attack(
        "wrong_gc_callback",
        FAIL,
        "",
        _WRONG,
        "gc.callbacks.append(lambda *_: os._exit(0) if n > 50 else 0)",
    ),
    Attack(
        "wrong_hooks",
        FAIL,
        "",
        _WRONG,
        "sys.excepthook = sys.unraisablehook = threading.excepthook = None",
    ),
    Attack(
        "wrong_stdout_raises",
        FAIL,
        "",
        f"sys.stdout = E()\n{_WRONG}",
        "class E:\n    def __getattr__(self, name): raise SystemExit",
    ),
    Attack("closes_the_streams", FAIL, "standard output", "if n == 9: os.close(1); os.close(2)"),
)
MEMORY = (
    Attack("memory_error_real", FAIL, "MemoryError|memory", "if hit: bytearray(3 << 30)"),
    Attack(
        "small_steps",
        FAIL,
        "MemoryError|memory",
        "if hit:\n    while True: keep.append(bytearray(64 << 20))",
        "keep = []",
    ),
    Attack("mmap_shared", FAIL, "memory|OSError", "if hit: mmap.mmap(-1, 3 << 30)"),
    Attack(
        "stderr_flood", FAIL, "floods", "if hit:\n    while True: os.write(2, b'x' * (1 << 20))"
    ),
    Attack(
        "stdout_flood", FAIL, "floods", "if hit:\n    while True: os.write(1, b'x' * (1 << 20))"
    ),
)
