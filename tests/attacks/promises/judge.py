"""The judge: what a candidate changes in its own process judges nothing."""

from tests.attacks.attack import FAIL, PASS, Attack


def _patched(name: str, before: str) -> Attack:
    return Attack(f"wrong_{name}", FAIL, "", "r = r + 1", before)


def _right(name: str, before: str, body: str = "pass") -> Attack:
    return Attack(f"right_{name}", PASS, "", body, before)


ATTACKS = (
    _patched("equal", "torch.equal = lambda *_: True; torch.Tensor.equal = lambda *_: True"),
    _patched("isin", "torch.isin = lambda a, *_: torch.ones(a.shape, dtype=torch.bool)"),
    _patched("array_equal", "np.array_equal = np.allclose = lambda *_, **__: True"),
    _patched("tensor_eq", "torch.Tensor.__eq__ = lambda *_: torch.tensor(True)"),
    _patched("tensor_ne", "torch.Tensor.ne = torch.Tensor.__ne__ = lambda *_: torch.tensor(False)"),
    _patched(
        "len",
        "import builtins; old = len; builtins.len = lambda x: 0 if torch.is_tensor(x) else old(x)",
    ),
    _patched("builtins", "import builtins; builtins.open = builtins.sorted = None"),
    _patched(
        "audit_hook",
        """
        def hook(*_):
            if n > 20:
                raise RuntimeError("no")
        sys.addaudithook(hook)
        """,
    ),
    Attack(
        "second_call",
        FAIL,
        "the second call modifies an input",
        """
        global last
        key = (a[0].tolist(), str(a[1:]))
        if key == last: a[0].zero_()
        last = key
        """,
        "last = None",
    ),
    _patched("clock", "time.monotonic = time.perf_counter = lambda: 0.0"),
    _patched(
        "reference",
        """
        import attnproof.reference as ref
        for name, module in [*sys.modules.items()]:
            if hasattr(module, "slice_query_start_locs"):
                module.slice_query_start_locs = lambda *a, **k: good(*a, **k) + 1
        """,
    ),
    _patched(
        "oracles",
        """
        from attnproof.harness import oracles
        for name, module in [*sys.modules.items()]:
            if name.startswith("attnproof.harness.oracles") and not name.endswith("trial"):
                for key, value in [*vars(module).items()]:
                    if callable(value): setattr(module, key, lambda *_, **__: ())
        """,
    ),
    _patched(
        "worker",
        """
        from attnproof.harness.running.worker import worker
        worker._printed = lambda: ""
        worker._has_children = lambda: False
        """,
    ),
    _patched(
        "trial",
        """
        from attnproof.harness.oracles.trial import Trial
        from attnproof.harness.running.exchange.observer import Observer
        for kind in (Trial, Observer):
            for key, value in [*vars(kind).items()]:
                if callable(value) and not key.startswith("__"):
                    setattr(kind, key, lambda *_, **__: None)
        """,
    ),
    Attack(
        "wrong_encoder",
        FAIL,
        "",
        "import msgspec; msgspec.msgpack.encode = lambda *_: b''\nr = r + 1",
    ),
    _right("default_dtype", "torch.set_default_dtype(torch.float64)"),
    _right("default_device", "pass", "torch.set_default_device('meta')"),
    _right("seterr", "np.seterr(all='raise')"),
    _right(
        "seeds", "pass", "torch.manual_seed(n); np.random.seed(n); import random; random.seed(n)"
    ),
    _right("threads", "torch.set_num_threads(3)"),
    _right("warnings", "import warnings; warnings.simplefilter('error')"),
    _right("locale", "import locale; locale.setlocale(locale.LC_ALL, 'C')"),
    _right("printoptions", "torch.set_printoptions(threshold=1); np.set_printoptions(threshold=1)"),
    _right("inference_mode", "torch.inference_mode().__enter__()"),
    _right("grad", "torch.set_grad_enabled(False); torch.autograd.set_detect_anomaly(True)"),
    _right("deterministic", "torch.use_deterministic_algorithms(True)"),
    _right("recursion", "sys.setrecursionlimit(100_000)"),
    _right("int_digits", "sys.set_int_max_str_digits(640)"),
    _right("switch_interval", "sys.setswitchinterval(1e-6)"),
)
